package posthoc

import (
	"context"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// logSumExp returns log Σ exp(x/t), and the index of the largest term. It is −Inf if
// all x are.
func logSumExp(x []float64, t float64) (sum float64, top int) {
	top = linalg.ArgMax(x)
	if math.IsInf(x[top], 0) {
		return x[top], top
	}
	for _, v := range x {
		sum += math.Exp((v - x[top]) / t)
	}
	return x[top]/t + math.Log(sum), top
}

// possible returns z, or zeros for logits that are all −Inf: no class is likelier
// than another.
func possible(z []float64) []float64 {
	if math.IsInf(z[linalg.ArgMax(z)], -1) {
		return make([]float64, len(z))
	}
	return z
}

// softmaxAll returns the softmax of rows of logits, computed on all cores.
func softmaxAll(ctx context.Context, logits []float64, classes int) ([]float64, error) {
	p := make([]float64, len(logits))
	err := parallel.Blocks(ctx, len(p)/classes, blockRows, func(from, to int) {
		copy(p[from*classes:], softmaxRows(logits[from*classes:to*classes], classes))
	})
	return p, err
}

// softmaxRows returns the softmax of rows of logits.
func softmaxRows(logits []float64, classes int) []float64 {
	p := make([]float64, 0, len(logits))
	for z := range slices.Chunk(logits, classes) {
		z = possible(z)
		sum, _ := logSumExp(z, 1)
		for _, v := range z {
			p = append(p, math.Exp(v-sum))
		}
	}
	return p
}
