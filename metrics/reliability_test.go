package metrics_test

import (
	"math"
	"testing"

	"github.com/mlrbfn/mlrbfn/metrics"
)

// TestReliable has its numbers by hand.
func TestReliable(t *testing.T) {
	t.Parallel()
	r := metrics.Reliable([]float64{0.1, 0.3, 0.6, 0.8, 1}, []bool{false, true, true, true, false}, 2)
	// Bin 0: confidence 0.2, right 0.5; bin 1: 0.8 and 2/3.
	want := (math.Abs(0.4-1) + math.Abs(2.4-2)) / 5
	if math.Abs(r.Error-want) > 1e-12 || r.Bins[0].N != 2 || r.Bins[1].N != 3 || math.Abs(r.Bins[0].Confidence-0.2) > 1e-12 || r.Bins[0].Right != 0.5 || math.Abs(r.Bins[1].Right-2./3) > 1e-12 {
		t.Errorf("%+v, want the error %g", r, want)
	}
	if r := metrics.Reliable([]float64{0, 0.999, 1}, []bool{false, true, true}, 15); r.Error > 0.001 || r.Bins[14].N != 2 {
		t.Errorf("%+v", r)
	}
}
