package evaluation_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// TestIntervals: in that share of simulated streams the numbers lie in their intervals.
func TestIntervals(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, test := range []struct{ n, m, k int }{{50, 100, 5}, {400, 100, 5}, {20, 400, 20}, {1, 19, 1}} {
		flaggedLow, flaggedHigh := evaluation.FlaggedInterval(test.n, test.m, test.k)
		meanLow, meanHigh := evaluation.MeanPValueInterval(test.n, test.m)
		const runs = 2000
		inFlagged, inMean := 0, 0
		calibration := make([]float64, test.m)
		for range runs {
			for i := range calibration {
				calibration[i] = rng.Float64()
			}
			slices.Sort(calibration)
			flagged, sum := 0, 0.0
			for range test.n {
				s := rng.Float64()
				at, _ := slices.BinarySearch(calibration, s)
				sum += float64(1+at) / float64(test.m+1)
				if s < calibration[test.k-1] {
					flagged++
				}
			}
			if share := float64(flagged) / float64(test.n); share >= flaggedLow && share <= flaggedHigh {
				inFlagged++
			}
			if mean := sum / float64(test.n); mean >= meanLow && mean <= meanHigh {
				inMean++
			}
		}
		if share := float64(inFlagged) / runs; share < 0.94 {
			t.Errorf("%+v: the share flagged lies in [%.3f, %.3f] in %.3f of the streams", test, flaggedLow, flaggedHigh, share)
		}
		if share := float64(inMean) / runs; math.Abs(share-0.95) > 0.015 && test.n > 1 {
			t.Errorf("%+v: the mean p-value lies in [%.3f, %.3f] in %.3f of the streams", test, meanLow, meanHigh, share)
		}
	}
	if low, high := evaluation.FlaggedInterval(10, 5, 0); low != 0 || high != 1 {
		t.Errorf("without a threshold [%v, %v]", low, high)
	}
	// SciPy 1.17: betabinom(100, 20.5, 80.5).ppf([.025, .975]) is 10 and 32.
	if low, high := evaluation.ShareInterval(100, 100, 20); low != 0.1 || high != 0.32 {
		t.Errorf("[%v, %v]", low, high)
	}
	if low, high := evaluation.ShareInterval(10, 0, 0); low != 0 || high != 1 {
		t.Errorf("without calibration images [%v, %v]", low, high)
	}
	// SciPy 1.17: betabinom(100, 5, 96).ppf([.025, .975]) is 0 and 12.
	if low, high := evaluation.FlaggedInterval(100, 100, 5); low != 0 || high != 0.12 {
		t.Errorf("[%v, %v]", low, high)
	}
}
