package head

import (
	"math"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

// adam is the optimiser of Kingma and Ba as torch.optim.Adam computes it, with
// β₁ = 0.9, β₂ = 0.999, ε = 1e-8 and no weight decay:
//
//	m = β₁m + (1−β₁)g,  v = β₂v + (1−β₂)g²
//	p = p − lr/(1−β₁ᵗ) · m / (√v/√(1−β₂ᵗ) + ε)
type adam[T kernels.Real] struct {
	Params    [][]T // the arrays that training changes
	gradients [][]T // of each array; every step overwrites them
	M, V      [][]T // the moments of each
	Steps     int   // so far
}

// newAdam returns an optimiser that has taken no step yet.
func newAdam[T kernels.Real](params, gradients [][]T) *adam[T] {
	a := &adam[T]{Params: params, gradients: gradients}
	for _, p := range params {
		a.M = append(a.M, make([]T, len(p)))
		a.V = append(a.V, make([]T, len(p)))
	}
	return a
}

// Step changes the parameters by their gradients with the learning rate lr.
func (a *adam[T]) Step(lr float64) {
	const beta1, beta2 = 0.9, 0.999
	a.Steps++
	size := T(lr / (1 - math.Pow(beta1, float64(a.Steps))))
	scale := T(1 / math.Sqrt(1-math.Pow(beta2, float64(a.Steps))))
	vectors := kernels.VectorsOf[T]()
	for i, p := range a.Params {
		vectors.Adam(p, a.gradients[i], a.M[i], a.V[i], size, scale)
	}
}
