// Package posthoc computes out-of-distribution scores from what a classifier
// makes of an image: its features, its logits or both. In every score higher
// means more in-distribution.
package posthoc

import "math"

// MSP returns the maximum softmax probability (Hendrycks and Gimpel, 2017) of
// each row of logits [N, C]: max_c softmax(z)_c. It is computed as
// 1/Σ_c exp(z_c − max z) in float64, so rows whose runner-up is e⁻³⁰ away still
// differ, where float32 would tie them at 1. A row with a NaN gives NaN.
func MSP(logits []float64, classes int) []float64 {
	scores := make([]float64, len(logits)/classes)
	for i := range scores {
		row := logits[i*classes : (i+1)*classes]
		top := math.Inf(-1)
		for _, z := range row {
			top = max(top, z)
		}
		var sum float64
		for _, z := range row {
			sum += math.Exp(z - top)
		}
		scores[i] = 1 / sum
	}
	return scores
}
