package head

import (
	"math"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
)

// arithmetic holds the kernels: matrix products and elementwise operations.
type arithmetic[T kernels.Real] struct {
	kernels.Products[T]
	kernels.Vectors[T]
}

// newArithmetic returns an arithmetic for one goroutine.
func newArithmetic[T kernels.Real]() arithmetic[T] {
	return arithmetic[T]{kernels.NewProducts[T](), kernels.VectorsOf[T]()}
}

// notFinite tells whether v is NaN or infinite.
func notFinite[T kernels.Real](v T) bool {
	return math.IsNaN(float64(v)) || math.IsInf(float64(v), 0)
}

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

// norm is the k of the distance ‖x−c‖_k^k = Σ_j |x_j−c_j|^k, k ≥ 1.
type norm float64

// power returns |a|^k.
func (k norm) power(a float64) float64 {
	a = math.Abs(a)
	switch k {
	case 1:
		return a
	case 2:
		return a * a
	case 3:
		return a * a * a
	}
	return math.Pow(a, float64(k))
}

// slope returns d|a|^k/da = k·|a|^(k−1)·sign(a), and, like torch.cdist, 0 at a = 0
// for k = 1.
func (k norm) slope(a float64) float64 {
	switch {
	case a == 0:
		return 0
	case k == 1:
		return math.Copysign(1, a)
	case k == 2:
		return 2 * a
	case k == 3:
		return 3 * a * math.Abs(a)
	}
	return math.Copysign(float64(k)*math.Pow(math.Abs(a), float64(k)-1), a)
}

// distance returns ‖x−c‖_k^k, summed term by term. Unlike the expansion of the
// square, this is exact near zero.
func distance[T kernels.Real](k norm, x, c []T) T {
	c = c[:len(x)]
	var sum T
	switch k {
	case 1:
		for j, v := range x {
			sum += max(v-c[j], c[j]-v)
		}
	case 2:
		for j, v := range x {
			e := v - c[j]
			sum += e * e
		}
	default:
		for j, v := range x {
			sum += T(k.power(float64(v - c[j])))
		}
	}
	return sum
}
