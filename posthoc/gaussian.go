package posthoc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// Gaussian is a mean and a covariance Σ, stored as a whitening matrix W, by which
// Mahalanobis distances become Euclidean: (f−μ)ᵀ Σ⁺ (f−μ) = ‖W(f−μ)‖².
type Gaussian struct {
	Mean   []float64 // [D], μ
	Whiten []float64 // [R, D], W with WᵀW = Σ⁺; R is the rank of Σ

	packed right
}

// right is the transpose of a matrix, packed for products when it is first used. A
// large matrix whose numbers float32 holds is packed as such, because products with
// few rows take the time of reading it.
type right struct {
	once   sync.Once
	matrix interface{ NN(m int, a, c []float64) }
}

// large is how many numbers of a head float32 is to hold, so that it is read fast.
const large = 1 << 18

// pack packs b [n,k] for times, which needs it no longer. Later calls do nothing.
func (r *right) pack(n, k int, b []float64) {
	r.once.Do(func() {
		if n*k < large || slices.ContainsFunc(b, func(v float64) bool { return float64(float32(v)) != v }) {
			r.matrix = kernels.NewRightTransposed(n, k, b)
			return
		}
		turned := make([]float32, n*k)
		for i := range n {
			for j, v := range b[i*k : (i+1)*k] {
				turned[j*n+i] = float32(v)
			}
		}
		r.matrix = kernels.NewRight(n, k, turned)
	})
}

// times puts A·Bᵀ [·, n] into c, for A [·, k] and B [n, k]. B must be the same in
// every call; after pack it is not read.
func (r *right) times(n, k int, a, b, c []float64) {
	if n == 0 {
		return
	}
	r.pack(n, k, b)
	r.matrix.NN(len(a)/k, a, c)
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

// smallest is the share of the largest eigenvalue up to which others are noise.
func smallest(d int) float64 { return float64(d) * 0x1p-52 }

// eigen returns eigenvalues, ascending, and eigenvectors, in rows.
func eigen(ctx context.Context, sigma *mat.SymDense) (values []float64, vectors *mat.Dense, err error) {
	type answer struct {
		values  []float64
		vectors *mat.Dense
		err     error
	}
	a, err := await(ctx, func() answer {
		values, vectors, err := linalg.Eigen(sigma)
		return answer{values, vectors, err}
	})
	if err == nil {
		err = a.err
	}
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("the features' covariance: %w", err)
	}
	return a.values, a.vectors, err
}

// await returns the error of do, or that of the context as soon as it is cancelled:
// a factorisation takes up to minutes and cannot be cancelled.
func await[T any](ctx context.Context, do func() T) (answer T, err error) {
	task := parallel.Start(do)
	select {
	case <-ctx.Done():
		return answer, ctx.Err()
	case <-task.Done():
		return task.Wait(), nil
	}
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
