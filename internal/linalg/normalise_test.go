package linalg_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/linalg"
)

// TestNormalise compares bits: the conditioning of old detectors and checkpoints
// rounds in this way.
func TestNormalise(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 6))
	for _, scale := range []float64{1, 1e300, 1e-310, 0, math.Inf(1)} {
		for d := range 20 {
			row := make([]float64, d)
			var largest, sum float64
			for i := range row {
				row[i] = scale * rng.NormFloat64()
				largest = max(largest, math.Abs(row[i]))
			}
			for _, v := range row {
				sum += (v / largest) * (v / largest)
			}
			got := slices.Clone(row)
			linalg.Normalise(got)
			for i, v := range row {
				if want := v / (largest * math.Sqrt(sum)); scale == 0 && got[i] != 0 || scale > 0 && got[i] != want && !(math.IsNaN(got[i]) && math.IsNaN(want)) {
					t.Errorf("%g of %d values near %g becomes %g, want %g", v, d, scale, got[i], want)
				}
			}
		}
	}
}
