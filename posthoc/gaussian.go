package posthoc

import (
	"context"
	"errors"
	"fmt"
	"math"

	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

// Gaussian is a mean and a covariance Σ, stored as a whitening matrix W, by which
// Mahalanobis distances become Euclidean: (f−μ)ᵀ Σ⁺ (f−μ) = ‖W(f−μ)‖².
type Gaussian struct {
	Mean   []float64 // [D], μ
	Whiten []float64 // [R, D], W with WᵀW = Σ⁺; R is the rank of Σ

	packed right
}

// newGaussian inverts a covariance. If the pseudo-inverse would drop no eigenvalue,
// W comes from Cholesky's factor, W = L⁻¹, which is much faster and does not lose
// accuracy when features differ in scale. Otherwise W = Λ^−½Eᵀ of the eigenpairs
// with λ > D·ε·max λ, ε = 2.2e-16, as in numpy.linalg.pinv(hermitian=True) and
// scipy.linalg.pinvh.
func newGaussian(ctx context.Context, mean []float64, sigma *mat.SymDense) (*Gaussian, error) {
	d := len(mean)
	g := &Gaussian{Mean: mean}
	kernels.UseBLAS()
	var factor mat.Cholesky
	// The condition number in the 1-norm, which Cond bounds from below by
	// no more than a small factor, is never less than that in the 2-norm.
	if factor.Factorize(sigma) && 10*factor.Cond() < 1/smallest(d) {
		var lower mat.TriDense
		factor.LTo(&lower)
		if err := lower.InverseTri(&lower); err != nil && !errors.As(err, new(mat.Condition)) {
			return nil, fmt.Errorf("invert the features' covariance: %w", err)
		}
		g.Whiten = make([]float64, d*d)
		for i := range d {
			for j := range i + 1 {
				g.Whiten[i*d+j] = lower.At(i, j)
			}
		}
		return g, nil
	}
	values, vectors, err := eigen(ctx, sigma)
	if err != nil {
		return nil, err
	}
	if !(values[d-1] > 0) {
		return nil, errors.New("the features' covariance is zero: they do not differ within the classes")
	}
	for k := d - 1; k >= 0 && values[k] > smallest(d)*values[d-1]; k-- {
		for j := range d {
			g.Whiten = append(g.Whiten, vectors.At(k, j)/math.Sqrt(values[k]))
		}
	}
	return g, nil
}

// rank is R.
func (g *Gaussian) rank() int { return len(g.Whiten) / max(len(g.Mean), 1) }

// gaussian is a field; when reading, d is the size of its mean unless that is
// negative.
func (f *fields) gaussian(name string, v **Gaussian, d int) {
	if f.find != nil {
		*v = &Gaussian{}
	}
	g := *v
	f.within(name, func(f *fields) {
		f.vector("mean", &g.Mean, d)
		f.matrix("whiten", &g.Whiten, -1, len(g.Mean))
	})
}

// apply puts W(f−μ) into z [n, R] for the rows f [n, D].
func (g *Gaussian) apply(z, f []float64) {
	centred, done := scratch(len(f))
	defer done()
	copy(centred, f)
	subtract(centred, g.Mean)
	g.packed.times(g.rank(), len(g.Mean), centred, g.Whiten, z)
}

// graph adds W(x−μ).
func (s *Gaussian) graph(g *graph, x onnx.Value) onnx.Value {
	return g.Times(g.centred(x, s.Mean), s.Whiten, len(s.Mean))
}
