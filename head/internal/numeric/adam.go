package head

import (
	"math"

	"mlrbfn/internal/kernels"
)

// param is one array of a head and its gradient, which every step overwrites.
type param[T real] struct{ value, grad []T }

// adam is the optimiser of Kingma and Ba as torch.optim.Adam computes it, with
// β₁ = 0.9, β₂ = 0.999, ε = 1e-8 and no weight decay:
//
//	m = β₁m + (1−β₁)g,  v = β₂v + (1−β₂)g²
//	p = p − lr/(1−β₁ᵗ) · m / (√v/√(1−β₂ᵗ) + ε)
type adam[T real] struct {
	params []param[T]
	m, v   [][]T
	steps  int
}

func newAdam[T real](params []param[T]) *adam[T] {
	a := &adam[T]{params: params}
	for _, p := range params {
		a.m = append(a.m, make([]T, len(p.value)))
		a.v = append(a.v, make([]T, len(p.value)))
	}
	return a
}

func (a *adam[T]) step(lr float64) {
	const beta1, beta2 = 0.9, 0.999
	a.steps++
	size := T(lr / (1 - math.Pow(beta1, float64(a.steps))))
	scale := T(1 / math.Sqrt(1-math.Pow(beta2, float64(a.steps))))
	vectors := kernels.VectorsOf[T]()
	for i, p := range a.params {
		vectors.Adam(p.value, p.grad, a.m[i], a.v[i], size, scale)
	}
}

// plateau halves the learning rate when the loss has not improved by a
// relative 1e-4 for more than patience epochs: torch's ReduceLROnPlateau with
// mode min and factor 0.5. A NaN counts as no improvement.
type plateau struct {
	lr       float64
	patience int
	best     float64 // lowest loss so far; +Inf before the first
	bad      int     // epochs since then
}

func newPlateau(lr float64, patience int) *plateau {
	return &plateau{lr: lr, patience: patience, best: math.Inf(1)}
}

func (p *plateau) step(loss float64) {
	const factor, threshold, smallest = 0.5, 1e-4, 1e-8
	if loss < p.best*(1-threshold) {
		p.best, p.bad = loss, 0
	} else {
		p.bad++
	}
	if p.bad > p.patience {
		p.bad = 0
		if p.lr-p.lr*factor > smallest {
			p.lr *= factor
		}
	}
}
