// Package numeric holds the arithmetic that all networks of package head share:
// the kernels, the losses and the optimiser.
package numeric

import (
	"math"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

// Real is the type that a network computes in: float32 for training, float64 for
// scoring and for tests against finite differences.
type Real = kernels.Real

// Arithmetic holds the kernels: matrix products and elementwise operations.
type Arithmetic[T Real] struct {
	kernels.Products[T]
	kernels.Vectors[T]
}

// New returns an Arithmetic for one goroutine.
func New[T Real]() Arithmetic[T] {
	return Arithmetic[T]{kernels.NewProducts[T](), kernels.VectorsOf[T]()}
}

// Convert copies src to dst in another type.
func Convert[To, From Real](dst []To, src []From) {
	for i, v := range src {
		dst[i] = To(v)
	}
}

// Argmax returns the index of the first largest value.
func Argmax[T Real](x []T) int {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return best
}

// NotFinite tells whether v is NaN or infinite.
func NotFinite[T Real](v T) bool {
	return math.IsNaN(float64(v)) || math.IsInf(float64(v), 0)
}

// Softplus is log(1+eˣ), and x itself above 20, as in torch.
func Softplus(x float64) float64 {
	if x > 20 {
		return x
	}
	return math.Log1p(math.Exp(x))
}
