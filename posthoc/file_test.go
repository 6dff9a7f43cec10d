package posthoc_test

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/safetensors"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// stored returns the tensors that hold a score.
func stored(t *testing.T, s posthoc.Scorer) (kind string, tensors map[string]posthoc.Tensor) {
	t.Helper()
	kind, all, err := posthoc.Tensors(s)
	if err != nil {
		t.Fatal(err)
	}
	tensors = map[string]posthoc.Tensor{}
	for _, tensor := range all {
		tensors[tensor.Name] = tensor
	}
	return kind, tensors
}

func load(kind string, tensors map[string]posthoc.Tensor) (posthoc.Scorer, error) {
	return posthoc.Load(kind, func(name string) (posthoc.Tensor, bool) {
		t, ok := tensors[name]
		return t, ok
	})
}

// everything is a problem with an MLP as the network.
func everything() posthoc.Input {
	in := testInput{problem(60, 5, 3, 3)}
	in.relabel()
	first := &posthoc.Linear{In: 5, Out: 5, Weights: make([]float64, 25), Bias: []float64{1, 2, 3, 4, 5}}
	for i := range 5 {
		first.Weights[6*i] = 0.5
	}
	in.Network = posthoc.MLP{first, in.LastLayer}
	return in.Input
}

// TestStored stores every fitted score and loads it again: it scores as before.
// Without any one of its tensors it is refused.
func TestStored(t *testing.T) {
	t.Parallel()
	in := everything()
	for _, name := range posthoc.Names() {
		s := fit(t, name, in)
		kind, tensors := stored(t, s)
		again, err := load(kind, tensors)
		if err != nil {
			t.Fatal(err)
		}
		want, got := score(t, s, 60, whole(in.Train)), score(t, again, 60, whole(in.Train))
		if !slices.Equal(got, want) {
			t.Errorf("%s scores %v, before it was stored %v", name, got, want)
		}
		for missing, tensor := range tensors {
			delete(tensors, missing)
			if _, err := load(kind, tensors); err == nil || !strings.Contains(err.Error(), missing) {
				t.Errorf("%s without %s: %v", name, missing, err)
			}
			tensors[missing] = posthoc.Tensor{Data: []float32{}}
			if _, err := load(kind, tensors); err == nil {
				t.Errorf("%s was loaded with an empty %s", name, missing)
			}
			tensors[missing] = tensor
		}
	}
	if _, err := load("Nonsense", nil); err == nil {
		t.Error("an unknown kind was loaded")
	}
	if kind, _ := stored(t, posthoc.MaxLogit{}); kind != "MaxLogit" {
		t.Errorf("a score that is not a pointer is stored as %q", kind)
	}
}

// TestTensorsOfAnotherShape are refused.
func TestTensorsOfAnotherShape(t *testing.T) {
	t.Parallel()
	in := problem(60, 5, 3, 3)
	for _, name := range posthoc.Names() {
		if name == "temperature" {
			continue
		}
		kind, tensors := stored(t, fit(t, name, in))
		for place, tensor := range tensors {
			if len(tensor.Shape) < 2 {
				continue
			}
			for _, shape := range [][]int{{tensor.Shape[0] * tensor.Shape[1], 1}, {tensor.Shape[0] * tensor.Shape[1]}} {
				bad := tensor
				bad.Shape = shape
				tensors[place] = bad
				_, err := load(kind, tensors)
				// Any number of columns makes a bank of some features.
				if err == nil && !strings.HasPrefix(place, "bank.") || len(shape) == 1 && err == nil {
					t.Errorf("%s: %s was loaded with the shape %v", name, place, shape)
				}
			}
			tensors[place] = tensor
		}
	}
}

// TestTensorsThatDoNotFit are refused, at the latest when they score, which is not a
// panic.
func TestTensorsThatDoNotFit(t *testing.T) {
	t.Parallel()
	small, large := testInput{problem(60, 5, 3, 3)}, testInput{problem(60, 6, 4, 4)}
	small.relabel()
	large.relabel()
	for _, name := range posthoc.Names() {
		kind, tensors := stored(t, fit(t, name, small.Input))
		_, others := stored(t, fit(t, name, large.Input))
		for part, own := range tensors {
			other := others[part]
			tensors[part] = other
			s, err := load(kind, tensors)
			if err == nil {
				err = s.Score(t.Context(), make([]float64, 60), whole(small.Train))
			}
			if err == nil && !fits(own, other) {
				t.Errorf("%s scores with %s of another, of the shape %v instead of %v", name, part, other.Shape, own.Shape)
			}
			tensors[part] = own
		}
	}
	for part, bad := range map[string]any{"k": []int64{-1}, "bank.features": []float32{}} {
		kind, tensors := stored(t, fit(t, "knn", small.Input))
		tensors[part] = posthoc.Tensor{Shape: []int{0, 5}, Data: bad}
		if _, err := load(kind, tensors); err == nil {
			t.Errorf("KNN was loaded with %s of %v", part, bad)
		}
	}
}

// fits reports whether a tensor may stand in for another: it has as many columns, as
// a matrix of more axes has, or as an integer the same value.
func fits(own, other posthoc.Tensor) bool {
	if _, ok := own.Data.([]int64); ok {
		return reflect.DeepEqual(own.Data, other.Data)
	}
	n := len(own.Shape)
	return n == len(other.Shape) && (n == 0 || own.Shape[n-1] == other.Shape[n-1])
}

// TestTensorsOfDetectors loads the score of every detector of
// pipeline/detector/testdata/scores and stores it again: the names in files, and the
// tensors, are the same. Names that a file may hold never change.
func TestTensorsOfDetectors(t *testing.T) {
	t.Parallel()
	for _, name := range posthoc.Names() {
		file, err := safetensors.Read(filepath.Join("..", "pipeline", "detector", "testdata", "scores", name+".safetensors"))
		if err != nil {
			t.Errorf("%v: CONTRIBUTING.md says how to write it", err)
			continue
		}
		var header struct {
			Scores struct{ Parts []struct{ Kind string } }
		}
		if err := json.Unmarshal([]byte(file.Metadata["mlrbfn"]), &header); err != nil {
			t.Fatal(err)
		}
		want := map[string]posthoc.Tensor{}
		for _, tensor := range file.Tensors {
			if own, ok := strings.CutPrefix(tensor.Name, "scores.0."); ok {
				tensor.Name = own
				want[own] = posthoc.Tensor(tensor)
			}
		}
		s, err := load(header.Scores.Parts[0].Kind, want)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_, got := stored(t, s)
		for place := range got { // an empty shape is as good as none
			if tensor := got[place]; tensor.Shape == nil {
				tensor.Shape = []int{}
				got[place] = tensor
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// TestNamesOfAnMLP are frozen too; the detectors above have linear heads.
func TestNamesOfAnMLP(t *testing.T) {
	t.Parallel()
	_, tensors := stored(t, fit(t, "odin", everything()))
	want := []string{"epsilon"}
	for _, layer := range []string{"0", "1"} {
		for _, field := range []string{"bias", "in", "out", "weights"} {
			want = append(want, "network."+layer+"."+field)
		}
	}
	if got := slices.Sorted(maps.Keys(tensors)); !slices.Equal(got, append(want, "temperature")) {
		t.Errorf("detectors would be written with %v", got)
	}
}
