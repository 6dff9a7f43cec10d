package detector

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/options"
)

func TestLogAdd(t *testing.T) {
	t.Parallel()
	inf := math.Inf(-1)
	for _, tt := range [][3]float64{{0, 0, math.Ln2}, {-1000, -1000, -1000 + math.Ln2}, {inf, -3, -3}, {-3, inf, -3}, {inf, inf, inf}} {
		if got := logAdd(tt[0], tt[1]); got != tt[2] {
			t.Errorf("log(e^%g + e^%g) = %g, want %g", tt[0], tt[1], got, tt[2])
		}
	}
}

func TestThreshold(t *testing.T) {
	t.Parallel()
	ascending := func(n int) []float64 {
		s := make([]float64, n)
		for i := range s {
			s[i] = float64(i + 1)
		}
		return s
	}
	for _, tt := range []struct {
		n    int
		tpr  float64
		want float64 // the rank, as scores are their ranks
	}{
		{0, 0.95, math.Inf(-1)}, {18, 0.95, math.Inf(-1)}, {19, 0.95, 1}, {39, 0.95, 2}, {100, 0.95, 5},
		{999, 0.95, 50}, {9, 0.9, 1}, {8, 0.9, math.Inf(-1)}, {99, 0.99, 1}, {3, 0.01, 3},
	} {
		if got := Threshold(ascending(tt.n), tt.tpr); got != tt.want {
			t.Errorf("n=%d tpr=%g: rank %g, want %g", tt.n, tt.tpr, got, tt.want)
		}
	}
}

func TestPValue(t *testing.T) {
	t.Parallel()
	scores := []float64{-3, -2, -2, -1}
	for _, tt := range []struct{ score, want float64 }{
		{-4, 1. / 5}, {-3, 2. / 5}, {-2.5, 2. / 5}, {-2, 4. / 5}, {-1, 1}, {0, 1}, {math.Inf(-1), 1. / 5},
	} {
		if got := pValue(scores, tt.score); got != tt.want {
			t.Errorf("p(%g) = %g, want %g", tt.score, got, tt.want)
		}
	}
	if got := pValue(nil, 1); got != 1 {
		t.Errorf("without calibration p = %g", got)
	}
}

// TestThresholdKeepsItsPromise: of scores drawn like the calibration scores at
// most a share 1−tpr is flagged, on average over calibration sets.
func TestThresholdKeepsItsPromise(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(4, 2))
	const rounds, n, tpr = 20000, 50, 0.9
	flagged := 0
	scores := make([]float64, n)
	for range rounds {
		for i := range scores {
			scores[i] = rng.NormFloat64()
		}
		slices.Sort(scores)
		if rng.NormFloat64() < Threshold(scores, tpr) {
			flagged++
		}
	}
	// The share is at most 5/51; its standard error here is 0.0021.
	if got := float64(flagged) / rounds; got > 5./51+0.007 || got < 5./51-0.03 {
		t.Errorf("%g of fresh scores are flagged, promised at most %g", got, 1-tpr)
	}
}

func TestSplitScores(t *testing.T) {
	t.Parallel()
	for list, want := range map[string][]string{
		"all":                       {"all"},
		"msp,ensemble(gen,knn),vim": {"msp", "ensemble(gen,knn)", "vim"},
		"ensemble(gen,knn":          {"ensemble(gen,knn"},
		"a),b":                      {"a)", "b"},
	} {
		if got := SplitScores(list); !slices.Equal(got, want) {
			t.Errorf("%s: %q", list, got)
		}
	}
}

// TestSetMaxFalseAlarms: the threshold is what training with that share would have
// set.
func TestSetMaxFalseAlarms(t *testing.T) {
	t.Parallel()
	d := detectorOf(1)
	d.CalibrationScores = nil
	for i := range 99 {
		d.CalibrationScores = append(d.CalibrationScores, float64(i+1)) // their ranks
	}
	for share, want := range map[float64]float64{0.01: 1, 0.05: 5, 0.1: 10, 0.5: 50} {
		if err := d.SetMaxFalseAlarms(share); err != nil || d.Threshold != want || math.Abs(d.TargetTPR-(1-share)) > 1e-15 {
			t.Errorf("at most %g: threshold %g for %g, %v, want %g", share, d.Threshold, d.TargetTPR, err, want)
		}
		loaded, err := Load(save(t, d))
		if err != nil || loaded.Threshold != want || *loaded.FalseAlarms() != *d.FalseAlarms() {
			t.Errorf("at most %g: from the file %v, %v", share, loaded, err)
		}
	}
	before := *d
	for _, share := range []float64{0.009, 0, 1, -1, math.NaN()} {
		if err := d.SetMaxFalseAlarms(share); options.Name(err) != "MaxFalseAlarms" || d.Threshold != before.Threshold || d.TargetTPR != before.TargetTPR {
			t.Errorf("at most %g: %v", share, err)
		}
	}
}
