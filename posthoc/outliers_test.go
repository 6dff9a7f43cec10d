package posthoc

import (
	"errors"
	"math"
	"strings"
	"testing"
)

// TestOutliers: the score is the log-odds by the head, and a file keeps it.
func TestOutliers(t *testing.T) {
	s := &Outliers{Head: &Linear{In: 2, Out: 3, Weights: []float64{1, 0, 0, 2, -1, 1}, Bias: []float64{0.5, -1, 3}}}
	b := Batch{Features: []float32{1, 2, -4, 0.5}}
	want := []float64{ // of the logits 1.5, 3, 4 and −3.5, 0, 7.5
		math.Log(math.Exp(1.5)+math.Exp(3)) - 4,
		math.Log(math.Exp(-3.5)+1) - 7.5,
	}
	kind, tensors, err := Tensors(s)
	if err != nil || kind != "Outliers" {
		t.Fatal(kind, err)
	}
	find := func(name string) (Tensor, bool) {
		for _, t := range tensors {
			if t.Name == name {
				return t, true
			}
		}
		return Tensor{}, false
	}
	loaded, err := Load(kind, find)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []Scorer{s, loaded} {
		got := make([]float64, 2)
		if err := s.Score(t.Context(), got, b); err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if math.Abs(got[i]-want[i]) > 1e-12 {
				t.Errorf("row %d has %g, want %g", i, got[i], want[i])
			}
		}
		if err := s.Score(t.Context(), got, Batch{}); !errors.Is(err, ErrMissing) {
			t.Errorf("without features: %v", err)
		}
	}
	s.Head = &Linear{In: 2, Out: 1, Weights: []float64{1, 0}, Bias: []float64{0}}
	if _, tensors, err = Tensors(s); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(kind, find); err == nil || !strings.Contains(err.Error(), "classes") {
		t.Errorf("a head without a class beside the outliers': %v", err)
	}
}
