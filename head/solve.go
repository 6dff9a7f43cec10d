package head

import (
	"context"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/floats"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

const (
	remembered = 8   // pairs of steps and changes of the gradient
	mostSteps  = 300 // several times as many as a fit needs
	halvings   = 30  // of a step that does not lower the loss
	rounding   = 4e-16

	narrowRounding = 1e-8 // of a loss whose products are in float32
)

// solver minimises the penalised loss by L-BFGS (Nocedal and Wright, algorithm
// 7.5). It reuses what it learnt about the curvature for the next penalty.
//
// The metric of the first step is the inverse of a diagonal in the axes: for a
// class the mean of p(1−p) times the variance of the axis, plus the penalty. It is
// the Hessian, were the probabilities independent of the features. Where they are
// not, as with more features than rows, it is several times too small, so that the
// inverse is scaled by the last pair (there, formula 7.20, with its metric for I).
type solver struct {
	axes   *axes
	pairs  []pair
	passes int // over the rows
}

// pair is a step with the change that it made to the gradient of the loss, without
// the penalty.
type pair struct{ step, change []float64 }

// times returns the product of x with the change of the gradient, penalty included.
func (q pair) times(x []float64, weights int, penalty float64) float64 {
	return dot(q.change, x) + penalty*dot(q.step[:weights], x[:weights])
}

// partSize is how many elements of long vectors a core takes at a time.
const partSize = 1 << 16

// inParts calls do for parts of n elements, on all cores.
func inParts(n int, do func(from, to int)) {
	_ = parallel.Blocks(context.Background(), n, partSize, do) // cannot fail
}

// dot returns Σ x·y. Parts are added in their order.
func dot(x, y []float64) float64 {
	sums := make([]float64, (len(x)+partSize-1)/partSize)
	inParts(len(x), func(from, to int) { sums[from/partSize] = floats.Dot(x[from:to], y[from:to]) })
	return floats.Sum(sums)
}

// addScaled adds a·x to dst, and addScaledTo sets dst to y + a·x.
func addScaled(dst []float64, a float64, x []float64) { addScaledTo(dst, dst, a, x) }

func addScaledTo(dst, y []float64, a float64, x []float64) {
	inParts(len(dst), func(from, to int) { floats.AddScaledTo(dst[from:to], y[from:to], a, x[from:to]) })
}

// subTo sets dst to x − y.
func subTo(dst, x, y []float64) {
	inParts(len(dst), func(from, to int) { floats.SubTo(dst[from:to], x[from:to], y[from:to]) })
}

// remember keeps a step from theta to trial and the change of the gradient, in the room of
// the oldest if there are enough.
func (s *solver) remember(theta, trial, gradient, trialGradient []float64) {
	var next pair
	if len(s.pairs) < remembered {
		next = pair{make([]float64, len(theta)), make([]float64, len(theta))}
	} else {
		next = s.pairs[0]
		s.pairs = append(s.pairs[:0], s.pairs[1:]...)
	}
	subTo(next.step, trial, theta)
	subTo(next.change, trialGradient, gradient)
	if dot(next.step, next.change) > 0 { // always, except for rounding
		s.pairs = append(s.pairs, next)
	}
}

// minimise changes theta until a step would gain less than the tolerance.
func (s *solver) minimise(ctx context.Context, p *problem, theta []float64, c, tolerance float64) error {
	if len(p.labels) < 2 {
		return nil
	}
	weights := len(p.labels) * p.rows.D
	penalty := 1 / (c * float64(p.rows.Len()))
	spread, noise := make([]float64, len(p.labels)), rounding
	if p.narrow() {
		noise = narrowRounding
	}
	// objective puts the gradient of the loss alone into gradient.
	objective := func(at, gradient []float64) (float64, error) {
		s.passes++
		loss, err := p.loss(ctx, at, gradient, spread)
		return loss + penalty/2*dot(at[:weights], at[:weights]), err
	}
	vector := func() []float64 { return make([]float64, len(theta)) }
	gradient, trial, trialGradient, whole, direction := vector(), vector(), vector(), vector(), vector()
	turned := make([]float64, weights)
	loss, err := objective(theta, gradient)
	if err != nil {
		return err
	}
	var factors, products [remembered]float64
	for range mostSteps {
		copy(whole, gradient)
		addScaled(whole[:weights], penalty, theta[:weights])
		copy(direction, whole)
		for i := len(s.pairs) - 1; i >= 0; i-- {
			q := s.pairs[i]
			products[i] = q.times(q.step, weights, penalty)
			factors[i] = dot(q.step, direction) / products[i]
			addScaled(direction, -factors[i], q.change)
			addScaled(direction[:weights], -factors[i]*penalty, q.step[:weights])
		}
		gamma := 1.
		if n := len(s.pairs); n > 0 {
			q := s.pairs[n-1]
			addScaledTo(trial[:weights], q.change[:weights], penalty, q.step[:weights])
			copy(trial[weights:], q.change[weights:])
			gamma = products[n-1] / s.axes.square(trial, turned, spread, penalty)
		}
		s.axes.divide(direction, turned, spread, penalty)
		floats.Scale(gamma, direction)
		for i, q := range s.pairs {
			addScaled(direction, factors[i]-q.times(direction, weights, penalty)/products[i], q.step)
		}
		slope := dot(whole, direction)
		if !(slope/2 > tolerance*min(gamma, 1)) { // the scaled metric expects less
			return nil
		}
		length, lower := 1., 0.
		for halved := 0; ; halved++ {
			addScaledTo(trial, theta, -length, direction)
			if lower, err = objective(trial, trialGradient); err != nil {
				return err
			}
			if lower <= loss-1e-4*length*slope+noise*loss {
				break
			}
			if halved == halvings {
				return nil // rounding hides what is left to gain
			}
			// The minimum of the parabola through the known values.
			length *= max(.1, min(.5, length*slope/2/(lower-loss+length*slope)))
		}
		s.remember(theta, trial, gradient, trialGradient)
		copy(theta, trial)
		gradient, trialGradient, loss = trialGradient, gradient, lower
	}
	return nil
}

// leastSpread keeps the metric finite if all probabilities are 0 or 1.
const leastSpread = 1e-6

// divide divides a vector like the parameters by the diagonal. Its weights along the
// axes go through turned [K·D].
func (a *axes) divide(x, turned, spread []float64, penalty float64) {
	k, d := len(spread), len(a.variances)
	a.turn(turned, x, k)
	for c, s := range spread {
		s = max(s, leastSpread)
		for j, v := range a.variances {
			turned[c*d+j] /= s*v + penalty
		}
		x[k*d+c] /= s
	}
	if a.vectors == nil {
		copy(x, turned)
		return
	}
	kernels.BLAS{}.Dgemm(blas.NoTrans, blas.NoTrans, k, d, d, 1, turned, d, a.vectors, d, 0, x, d)
}

// square returns the product of a vector like the parameters with itself divided by
// the diagonal.
func (a *axes) square(x, turned, spread []float64, penalty float64) float64 {
	k, d := len(spread), len(a.variances)
	a.turn(turned, x, k)
	sum := 0.
	for c, s := range spread {
		s = max(s, leastSpread)
		for j, v := range a.variances {
			sum += turned[c*d+j] * turned[c*d+j] / (s*v + penalty)
		}
		sum += x[k*d+c] * x[k*d+c] / s
	}
	return sum
}

// turn sets turned to the weights of x along the axes.
func (a *axes) turn(turned, x []float64, k int) {
	if a.vectors == nil {
		copy(turned, x)
		return
	}
	d := len(a.variances)
	kernels.BLAS{}.Dgemm(blas.NoTrans, blas.Trans, k, d, d, 1, x, d, a.vectors, d, 0, turned, d)
}
