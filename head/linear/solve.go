package linear

import (
	"context"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/floats"

	"mlrbfn/internal/kernels"
)

const (
	remembered = 8   // pairs of steps and changes of the gradient
	mostSteps  = 300 // far more than any fit has taken
	halvings   = 30  // of a step that does not lower the loss
)

// minimise lowers the penalised loss from theta, which it changes, by L-BFGS (Nocedal
// and Wright, algorithm 7.5), until a step would gain less than the tolerance.
//
// The metric of the first step is the inverse of a diagonal in the axes: for a
// class the mean of p(1−p) times the variance of the axis, plus the penalty. It is
// the Hessian, were the probabilities independent of the features.
func (p *problem) minimise(ctx context.Context, theta []float64, c, tolerance float64, a *axes) error {
	if len(p.labels) < 2 {
		return nil
	}
	weights := len(p.labels) * p.rows.D
	penalty := 1 / (c * float64(p.rows.Len()))
	spread := make([]float64, len(p.labels))
	objective := func(at, gradient []float64) (float64, error) {
		loss, err := p.loss(ctx, at, gradient, spread)
		w := at[:weights]
		floats.AddScaled(gradient[:weights], penalty, w)
		return loss + penalty/2*floats.Dot(w, w), err
	}
	vector := func() []float64 { return make([]float64, len(theta)) }
	gradient, trial, trialGradient := vector(), vector(), vector()
	loss, err := objective(theta, gradient)
	if err != nil {
		return err
	}
	type pair struct {
		step, change []float64
		product      float64
	}
	var pairs []pair
	direction, factors := vector(), make([]float64, remembered)
	for range mostSteps {
		copy(direction, gradient)
		for i := len(pairs) - 1; i >= 0; i-- {
			factors[i] = floats.Dot(pairs[i].step, direction) / pairs[i].product
			floats.AddScaled(direction, -factors[i], pairs[i].change)
		}
		a.divide(direction, spread, penalty, p.rows.D)
		for i, q := range pairs {
			floats.AddScaled(direction, factors[i]-floats.Dot(q.change, direction)/q.product, q.step)
		}
		slope := floats.Dot(gradient, direction)
		if !(slope/2 > tolerance) {
			return nil
		}
		length, lower := 1., 0.
		for halved := 0; ; halved++ {
			floats.AddScaledTo(trial, theta, -length, direction)
			if lower, err = objective(trial, trialGradient); err != nil {
				return err
			}
			if lower <= loss-1e-4*length*slope {
				break
			}
			if halved == halvings {
				return nil // rounding hides what is left to gain
			}
			// The minimum of the parabola through what is known.
			length *= max(.1, min(.5, length*slope/2/(lower-loss+length*slope)))
		}
		next := pair{vector(), vector(), 0}
		if len(pairs) == remembered {
			next = pairs[0]
			pairs = append(pairs[:0], pairs[1:]...)
		}
		floats.SubTo(next.step, trial, theta)
		floats.SubTo(next.change, trialGradient, gradient)
		if next.product = floats.Dot(next.step, next.change); next.product > 0 {
			pairs = append(pairs, next)
		}
		copy(theta, trial)
		gradient, trialGradient, loss = trialGradient, gradient, lower
	}
	return nil
}

// divide divides a vector like the parameters by the diagonal.
func (a *axes) divide(x, spread []float64, penalty float64, d int) {
	k := len(spread)
	turned := x[:k*d]
	if a.vectors != nil {
		turned = make([]float64, k*d)
		kernels.BLAS{}.Dgemm(blas.NoTrans, blas.Trans, k, d, d, 1, x, d, a.vectors, d, 0, turned, d)
	}
	for c, s := range spread {
		s = max(s, 1e-6)
		for j, v := range a.variances {
			turned[c*d+j] /= s*v + penalty
		}
		x[k*d+c] /= s
	}
	if a.vectors != nil {
		kernels.BLAS{}.Dgemm(blas.NoTrans, blas.NoTrans, k, d, d, 1, turned, d, a.vectors, d, 0, x, d)
	}
}
