package head

import (
	"math"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
)

// logShift keeps log y below 0, where log(1−y) is defined.
const logShift = 1e-6

// logBCE returns the paper's loss (appendix, log_bce_loss): binary
// cross-entropy over the C problems "is it of class c?", on log-probabilities
// log y [C, N], averaged over all N·C entries. Each entry is −log y′ for the
// row's own class and −log(1−y′) for the others, with log y′ = log y − 1e-6.
// An entry of log y = −∞ counts 0 for the other classes, as the limit does.
// grad [C, N] receives the derivative by log y and may be nil.
func logBCE[T kernels.Real](logY []T, labels []int, grad []T) float64 {
	scale := 1 / float64(len(logY))
	return kernels.VectorsOf[T]().LogBCE(grad, logY, labels, logShift, T(scale)) * scale
}

// crossEntropy returns the mean over the N rows of −log softmax(z)[label] for
// logits z [N, C]. grad [N, C] receives its derivative and may be nil.
func crossEntropy[T kernels.Real](logits []T, labels []int, classes int, grad []T) float64 {
	scale := 1 / float64(len(labels))
	var sum float64
	for i, own := range labels {
		row := logits[i*classes : (i+1)*classes]
		top := float64(row[linalg.ArgMax(row)])
		var total float64
		for _, z := range row {
			total += math.Exp(float64(z) - top)
		}
		norm := top + math.Log(total)
		sum += norm - float64(row[own])
		if grad == nil {
			continue
		}
		for c, z := range row {
			g := math.Exp(float64(z) - norm)
			if c == own {
				g--
			}
			grad[i*classes+c] = T(g * scale)
		}
	}
	return sum * scale
}
