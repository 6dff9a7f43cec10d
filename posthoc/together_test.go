package posthoc_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/posthoc"
)

// TestScoreAllIsEachAlone computes every score by two heads on the same features
// at once, in several orders: the results are bit-identical to those of each score
// alone. 70 classes are more than those of which Relation sums all up.
func TestScoreAllIsEachAlone(t *testing.T) {
	t.Parallel()
	for _, classes := range []int{3, 70} {
		t.Run(fmt.Sprint(classes), func(t *testing.T) { scoreAllIsEachAlone(t, classes) })
	}
}

func scoreAllIsEachAlone(t *testing.T, classes int) {
	const n, d = 300, 6
	first := testInput{problem(n, d, classes, classes)}
	first.relabel()
	other := posthoc.Input{LastLayer: &posthoc.Linear{In: d, Out: classes, Weights: slices.Clone(first.LastLayer.Weights), Bias: make([]float64, classes)}}
	for c := range other.LastLayer.Bias {
		other.LastLayer.Bias[c] = float64(c)
	}
	for i := range other.LastLayer.Weights {
		other.LastLayer.Weights[i] += float64(i % 4)
	}
	logits := make([]float64, n*classes)
	other.LastLayer.Logits(logits, wide(first.Train.Features(0, n)))
	other.Train = first.Train.WithLogits(posthoc.Matrix(logits, classes))
	type part struct {
		name  string
		score posthoc.Scorer
		batch posthoc.Batch
		want  []float64
	}
	var parts []part
	for _, name := range posthoc.Names() {
		for _, in := range []posthoc.Input{first.Input, other} {
			s, b := fit(t, name, in), whole(in.Train)
			b.Logits = each(b.Logits, 1./9)
			parts = append(parts, part{name, s, b, score(t, s, n, b)})
		}
		if last := parts[len(parts)-2:]; !posthoc.Headless(name) && slices.Equal(last[0].want, last[1].want) {
			t.Errorf("%s scores the same by two heads", name)
		}
	}
	knn, err := posthoc.FitKNN(first.Train, 3)
	if err != nil {
		t.Fatal(err)
	}
	b := posthoc.Batch{Features: first.Train.Features(0, n)}
	parts = append(parts, part{"knn of 3", knn, b, score(t, knn, n, b)})

	random := rand.New(rand.NewPCG(3, 4))
	orders := 5
	if testing.Short() { // on an emulated processor
		orders = 1
	}
	for range orders {
		random.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		var scores []posthoc.Scorer
		var batches []posthoc.Batch
		got := make([][]float64, len(parts))
		for i, p := range parts {
			scores, batches, got[i] = append(scores, p.score), append(batches, p.batch), make([]float64, n)
		}
		if err := posthoc.ScoreAll(context.Background(), got, scores, batches); err != nil {
			t.Fatal(err)
		}
		for i, p := range parts {
			if !slices.Equal(got[i], p.want) {
				t.Fatalf("%s at place %d scores %v, alone %v", p.name, i, got[i], p.want)
			}
		}
	}
}

// each returns values times a factor.
func each(values []float64, factor float64) []float64 {
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = v * factor
	}
	return out
}

// TestRelationsOfFewAndManyClasses with one bank do not change each other.
func TestRelationsOfFewAndManyClasses(t *testing.T) {
	t.Parallel()
	const n, d = 300, 6
	in := problem(n, d, 3, 3)
	var scores []posthoc.Scorer
	var batches []posthoc.Batch
	var want [][]float64
	for _, classes := range []int{3, 80, 64, 65} {
		logits := make([]float64, n*classes)
		random := rand.New(rand.NewPCG(uint64(classes), 1))
		for i := range logits {
			logits[i] = 3 * random.NormFloat64()
		}
		data := in.Train.WithLogits(posthoc.Matrix(logits, classes))
		data.Classes = classes
		s, b := fit(t, "relation", posthoc.Input{Train: data}), whole(data)
		scores, batches, want = append(scores, s), append(batches, b), append(want, score(t, s, n, b))
	}
	got := [][]float64{make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)}
	if err := posthoc.ScoreAll(context.Background(), got, scores, batches); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("score %d is %v, alone %v", i, got[i], want[i])
		}
	}
}

// TestScoreAllOfNaN: limits that are NaN, as a damaged file may hold, give NaN.
func TestScoreAllOfNaN(t *testing.T) {
	t.Parallel()
	in := problem(4, 6, 3, 3)
	clip := &posthoc.Clip{Head: in.LastLayer, Low: math.NaN(), High: 1}
	for row, v := range score(t, clip, 4, whole(in.Train)) {
		if !math.IsNaN(v) {
			t.Errorf("row %d scores %v", row, v)
		}
	}
}

// TestASHByDefault prunes.
func TestASHByDefault(t *testing.T) {
	t.Parallel()
	in := problem(4, 30, 3, 3)
	got := score(t, posthoc.ASH{Head: in.LastLayer}, 4, whole(in.Train))
	if want := score(t, posthoc.ASH{Head: in.LastLayer, Shape: posthoc.ASHP}, 4, whole(in.Train)); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestScoreAllStops with one error, not with that of each score.
func TestScoreAllStops(t *testing.T) {
	t.Parallel()
	in := problem(4, 6, 3, 3)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	scores := []posthoc.Scorer{fit(t, "knn", in), fit(t, "nnguide", in), fit(t, "ash-s", in)}
	dst := [][]float64{make([]float64, 4), make([]float64, 4), make([]float64, 4)}
	if err := posthoc.ScoreAll(ctx, dst, scores, []posthoc.Batch{whole(in.Train), whole(in.Train), whole(in.Train)}); err != context.Canceled {
		t.Errorf("%v", err)
	}
}
