package posthoc_test

import (
	"context"
	"math"
	"slices"
	"testing"

	"mlrbfn/posthoc"
)

// TestScoreAllIsEachAlone computes every score by two heads on the same features
// at once.
func TestScoreAllIsEachAlone(t *testing.T) {
	const n, d, classes = 300, 6, 3
	first := testInput{problem(n, d, classes, classes)}
	first.relabel()
	other := posthoc.Input{Head: &posthoc.Linear{In: d, Out: classes, Weights: slices.Clone(first.Head.Weights), Bias: []float64{0, 1, 2}}}
	for i := range other.Head.Weights {
		other.Head.Weights[i] += float64(i % 4)
	}
	logits := make([]float64, n*classes)
	other.Head.Logits(logits, wide(first.Train.Features(0, n)))
	other.Train = first.Train.WithLogits(posthoc.Matrix(logits, classes))
	var names []string
	var scores []posthoc.Scorer
	var batches []posthoc.Batch
	var got, want [][]float64
	for _, name := range posthoc.Names() {
		for _, in := range []posthoc.Input{first.Input, other} {
			s := fit(t, name, in)
			names, scores, batches = append(names, name), append(scores, s), append(batches, whole(in.Train))
			got, want = append(got, make([]float64, n)), append(want, score(t, s, n, whole(in.Train)))
		}
	}
	if err := posthoc.ScoreAll(context.Background(), got, scores, batches); err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		for row, v := range got[i] {
			if !(math.Abs(v-want[i][row]) <= 1e-12*math.Abs(want[i][row])) {
				t.Fatalf("%s: row %d scores %v, alone %v", name, row, v, want[i][row])
			}
		}
		if i%2 == 1 && !posthoc.Headless(name) && slices.Equal(got[i], got[i-1]) {
			t.Errorf("%s scores the same by two heads", name)
		}
	}
}

// TestScoreAllOfNaN: limits that are NaN, as a damaged file may hold, give NaN.
func TestScoreAllOfNaN(t *testing.T) {
	in := problem(4, 6, 3, 3)
	clip := &posthoc.Clip{Head: in.Head, Low: math.NaN(), High: 1}
	for row, v := range score(t, clip, 4, whole(in.Train)) {
		if !math.IsNaN(v) {
			t.Errorf("row %d scores %v", row, v)
		}
	}
}

// TestASHByDefault prunes.
func TestASHByDefault(t *testing.T) {
	in := problem(4, 30, 3, 3)
	got := score(t, posthoc.ASH{Head: in.Head}, 4, whole(in.Train))
	if want := score(t, posthoc.ASH{Head: in.Head, Shape: posthoc.ASHP}, 4, whole(in.Train)); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestScoreAllStops with one error, not with that of each score.
func TestScoreAllStops(t *testing.T) {
	in := problem(4, 6, 3, 3)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	scores := []posthoc.Scorer{fit(t, "knn", in), fit(t, "nnguide", in), fit(t, "ash-s", in)}
	dst := [][]float64{make([]float64, 4), make([]float64, 4), make([]float64, 4)}
	if err := posthoc.ScoreAll(ctx, dst, scores, []posthoc.Batch{whole(in.Train), whole(in.Train), whole(in.Train)}); err != context.Canceled {
		t.Errorf("%v", err)
	}
}
