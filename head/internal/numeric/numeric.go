package head

import "mlrbfn/internal/kernels"

// real is the arithmetic that a head is computed in: float32 to train, float64
// to score and to be held against finite differences.
type real = kernels.Real

// arithmetic is the seam to the kernels: matrix products and what happens to
// each element between them.
type arithmetic[T real] struct {
	kernels.Products[T]
	kernels.Vectors[T]
}

func arithmeticOf[T real]() arithmetic[T] {
	return arithmetic[T]{kernels.NewProducts[T](), kernels.VectorsOf[T]()}
}
