package head

import (
	"math"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
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

// argmax returns the index of the first largest value.
func argmax[T kernels.Real](x []T) int {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return best
}

// notFinite tells whether v is NaN or infinite.
func notFinite[T kernels.Real](v T) bool {
	return math.IsNaN(float64(v)) || math.IsInf(float64(v), 0)
}

// softplus is log(1+eˣ), and x itself above 20, as in torch.
func softplus(x float64) float64 {
	if x > 20 {
		return x
	}
	return math.Log1p(math.Exp(x))
}
