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

// notFinite tells whether v is NaN or infinite.
func notFinite[T kernels.Real](v T) bool {
	return math.IsNaN(float64(v)) || math.IsInf(float64(v), 0)
}
