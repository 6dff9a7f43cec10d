package posthoc_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// TestNeeds fits each score on what it declares to need, and scores with what it
// declares to read. Without any of that the error wraps ErrMissing.
func TestNeeds(t *testing.T) {
	t.Parallel()
	full := testInput{problem(60, 6, 3, 3)}
	full.relabel()
	full.Val = posthoc.NewData(full.Train.Features(0, 60), 6, slices.Clone(full.Train.Labels), 3)
	full.Val.Logits = full.Train.Logits
	full.Network = full.LastLayer
	for _, name := range posthoc.Names() {
		reads, needs := posthoc.NeedsOf(name)
		if _, err := posthoc.Fit(t.Context(), name, only(full.Input, needs)); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if posthoc.ReadsLogits(name) != (reads&posthoc.Logits != 0) {
			t.Errorf("%s: whether it reads logits is said wrongly", name)
		}
		s := fit(t, name, full.Input)
		dst := make([]float64, 60)
		if err := s.Score(t.Context(), dst, batchOf(full.Input, reads)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, need := range posthoc.AllNeeds {
			if needs&need != 0 && need != posthoc.Validation {
				if _, err := posthoc.Fit(t.Context(), name, only(full.Input, needs&^need)); !errors.Is(err, posthoc.ErrMissing) {
					t.Errorf("%s was fitted without %d: %v", name, need, err)
				}
			}
			if reads&need != 0 {
				if err := s.Score(t.Context(), dst, batchOf(full.Input, reads&^need)); !errors.Is(err, posthoc.ErrMissing) {
					t.Errorf("%s scored without %d: %v", name, need, err)
				}
			}
		}
	}
}

// only returns what is needed of an input.
func only(in posthoc.Input, needs posthoc.Needs) posthoc.Input {
	data := &posthoc.Data{N: in.Train.N, D: in.Train.D, Classes: in.Train.Classes}
	if needs&posthoc.Features != 0 {
		data.Features = in.Train.Features
	}
	if needs&posthoc.Logits != 0 {
		data.Logits = in.Train.Logits
	}
	if needs&posthoc.Labels != 0 {
		data.Labels = in.Train.Labels
	}
	some := posthoc.Input{Train: data}
	if needs&posthoc.Validation != 0 {
		some = posthoc.Input{Val: data}
	}
	if needs&posthoc.LastLayer != 0 {
		some.LastLayer = in.LastLayer
	}
	if needs&posthoc.NetworkNeeded != 0 {
		some.Network = in.Network
	}
	return some
}

func batchOf(in posthoc.Input, reads posthoc.Needs) posthoc.Batch {
	b := whole(in.Train)
	if reads&posthoc.Features == 0 {
		b.Features = nil
	}
	if reads&posthoc.Logits == 0 {
		b.Logits = nil
	}
	return b
}

// TestMemory: matrices that do not fit into Memory are refused before they are
// taken, with an error about that option.
func TestMemory(t *testing.T) {
	t.Parallel()
	// Features that would take 19 GB a matrix, and classes that would take 8 TB.
	const d, classes = 49_152, 1 << 20
	wide := posthoc.NewData(make([]float32, 4*d), d, []int64{0, 1, 0, 1}, 2)
	wide.Logits = posthoc.Matrix([]float64{1, 0, 0, 1, 1, 0, 0, 1}, 2)
	head := &posthoc.Linear{In: d, Out: 2, Weights: make([]float64, 2*d), Bias: make([]float64, 2)}
	many := posthoc.NewData(make([]float32, 4), 1, []int64{0, 1, 0, 1}, classes)
	many.Logits = posthoc.Matrix(make([]float64, 4*classes), classes)
	manyHead := &posthoc.Linear{In: 1, Out: classes, Weights: make([]float64, classes), Bias: make([]float64, classes)}
	for _, name := range posthoc.Names() {
		for _, in := range []posthoc.Input{{Train: wide, LastLayer: head}, {Train: many, LastLayer: manyHead}} {
			if posthoc.MemoryOf(name, in.LastLayer.In, in.LastLayer.Out) <= posthoc.DefaultMemory {
				continue
			}
			if _, err := posthoc.Fit(t.Context(), name, in); options.Name(err) != "Memory" {
				t.Errorf("%s of %d features in %d classes: %v", name, in.LastLayer.In, in.LastLayer.Out, err)
			}
		}
	}
	// Sizes that no number holds, without the rows that would be needed for them.
	huge := &posthoc.Data{N: 1, D: math.MaxInt, Classes: math.MaxInt, Labels: []int64{0}, Features: wide.Features, Logits: wide.Logits}
	for _, name := range posthoc.Names() {
		if posthoc.MemoryOf(name, 1, 1) == 0 {
			continue
		}
		in := posthoc.Input{Train: huge, LastLayer: head, Memory: math.MaxInt64 - 1}
		if _, err := posthoc.Fit(t.Context(), name, in); options.Name(err) != "Memory" {
			t.Errorf("%s of no end of features: %v", name, err)
		}
	}
}

// TestMemoryIsEnough: what fits is fitted, and one byte less is refused.
func TestMemoryIsEnough(t *testing.T) {
	t.Parallel()
	in := testInput{problem(60, 6, 3, 3)}
	in.relabel()
	for _, name := range posthoc.Names() {
		need := posthoc.MemoryOf(name, 6, 3)
		if need == 0 {
			continue
		}
		in.Memory = need
		if _, err := posthoc.Fit(context.Background(), name, in.Input); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		in.Memory--
		if _, err := posthoc.Fit(context.Background(), name, in.Input); options.Name(err) != "Memory" {
			t.Errorf("%s with a byte less: %v", name, err)
		}
	}
}

// TestSearchIsOutOfMemory: a bank of which no row fits into Memory is an error
// about that option.
func TestSearchIsOutOfMemory(t *testing.T) {
	t.Parallel()
	in := problem(60, 6, 3, 3)
	in.Memory = 100
	for _, name := range []string{"knn", "nnguide", "relation"} {
		err := fit(t, name, in).Score(t.Context(), make([]float64, 60), whole(in.Train))
		if options.Name(err) != "Memory" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRelated: related scores name each other.
func TestRelated(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"knn": {"knn", "relation"}, "relation": {"knn", "relation"}, "mds++": {"mds++", "rmds++"}, "rmds": {"mds", "rmds"},
		"vim": {"residual", "vim"}, "msp": {"msp"}, "nonsense": {"nonsense"},
	} {
		if got := posthoc.Related(name); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
