package posthoc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"gonum.org/v1/gonum/mat"

	"mlrbfn/internal/kernels"
	"mlrbfn/internal/moments"
	"mlrbfn/internal/products"
	"mlrbfn/internal/symmetric"
)

// Gaussian is a mean and a covariance Σ, kept as a map that makes Mahalanobis
// distances plain ones: (f−μ)ᵀ Σ⁺ (f−μ) = ‖W(f−μ)‖².
type Gaussian struct {
	Mean   []float64 // [D], μ
	Whiten []float64 `cols:"Mean"` // [R, D], W with WᵀW = Σ⁺; R is the rank of Σ

	packed right
}

// right is the transpose of a matrix, packed when it is first asked for.
type right struct {
	once   sync.Once
	matrix *kernels.Right[float64]
}

// times puts A·Bᵀ [·, n] for the rows A [·, k] into c, with B [n, k], which is ever
// the same.
func (r *right) times(n, k int, a, b, c []float64) {
	if n == 0 {
		return
	}
	r.once.Do(func() { r.matrix = kernels.NewRightTransposed(n, k, b) })
	r.matrix.NN(len(a)/k, a, c)
}

// newGaussian inverts a covariance. Where no eigenvalue is so small that the
// pseudo-inverse drops it, that is the inverse, and W comes from Cholesky's
// factor, W = L⁻¹: far quicker, and scaling a feature costs it no accuracy.
// Otherwise W = Λ^−½Eᵀ of the eigenpairs with λ > D·ε·max λ, ε = 2.2e-16, as
// numpy.linalg.pinv(hermitian=True) and scipy.linalg.pinvh have it.
func newGaussian(ctx context.Context, mean []float64, sigma *mat.SymDense) (*Gaussian, error) {
	d := len(mean)
	g := &Gaussian{Mean: mean}
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
		values, vectors, err := symmetric.Eigen(sigma)
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

// await returns do's answer, or the error of the context as soon as that is
// cancelled: a factorisation, which takes up to minutes, does not look at it.
func await[T any](ctx context.Context, do func() T) (answer T, err error) {
	done := make(chan T, 1)
	go func() { done <- do() }()
	select {
	case <-ctx.Done():
		return answer, ctx.Err()
	case answer = <-done:
		return answer, nil
	}
}

// rank is R.
func (g *Gaussian) rank() int { return len(g.Whiten) / len(g.Mean) }

// apply puts W(f−μ) into z [n, R] for the rows f [n, D].
func (g *Gaussian) apply(z, f []float64) {
	centred, done := scratch(len(f))
	defer done()
	copy(centred, f)
	for row := range slices.Chunk(centred, len(g.Mean)) {
		for j, mu := range g.Mean {
			row[j] -= mu
		}
	}
	g.packed.times(g.rank(), len(g.Mean), centred, g.Whiten, z)
}

// MDS is the Mahalanobis distance score: −min_c (f−μ_c)ᵀ Σ⁺ (f−μ_c) with the
// means μ_c of the classes and the one covariance Σ = 1/N Σ_i (f_i−μ_y)(f_i−μ_y)ᵀ
// within them. Reads features. On features that are divided by their lengths,
// when fitting and when scoring, it is MDS++.
//
// Σ⁺ is the symmetric pseudo-inverse: directions in which no training features
// differ within a class do not count. Classes without training rows are left
// out.
//
// Source: Lee et al., 2018 (OpenOOD: MDSPostprocessor); ++: Mueller and Hein,
// 2025, Mahalanobis++.
type MDS struct {
	L2     bool      // divide each row by its length first; zeros stay zeros
	Within *Gaussian // the covariance, and the mean of all rows
	Means  []float64 `cols:"Within"` // [classes with rows, R], W(μ_c − μ)
}

// FitMDS fits MDS, or MDS++ if l2.
func FitMDS(ctx context.Context, data *Data, l2 bool) (*MDS, error) {
	if err := data.need(true, false, true); err != nil {
		return nil, err
	}
	data = data.source()
	data.mu.Lock()
	defer data.mu.Unlock()
	return data.mds(ctx, l2)
}

// RMDS is the relative Mahalanobis distance score: −min_c [d_c(f) − d_0(f)],
// with the distances d_c of [MDS] and the distance d_0 by the mean and the
// covariance (over N) of all training features. Reads features.
//
// Source: Ren et al., 2021 (OpenOOD: RMDSPostprocessor); ++: as for MDS.
type RMDS struct {
	MDS   *MDS
	Whole *Gaussian // of all rows, whatever their class
}

// FitRMDS fits RMDS, or RMDS++ if l2.
func FitRMDS(ctx context.Context, data *Data, l2 bool) (*RMDS, error) {
	if err := data.need(true, false, true); err != nil {
		return nil, err
	}
	data = data.source()
	data.mu.Lock()
	defer data.mu.Unlock()
	within, err := data.mds(ctx, l2)
	if err != nil {
		return nil, err
	}
	whole, err := data.whole(ctx, l2)
	if err != nil {
		return nil, err
	}
	return &RMDS{within, whole}, nil
}

// Score implements [Score].
func (s *MDS) Score(ctx context.Context, dst []float64, b Batch) error {
	return eachFeatures(ctx, dst, b, len(s.Within.Mean), s.L2, func(scores, x []float64, _ int) { s.score(scores, x) })
}

func (s *MDS) score(scores, x []float64) {
	r := s.Within.rank()
	z, done := scratch(len(scores) * r)
	defer done()
	s.Within.apply(z, x)
	classes := len(s.Means) / r
	inner := make([]float64, len(scores)*classes)
	products.NT(len(scores), classes, r, z, s.Means, inner)
	half := make([]float64, classes) // ½‖m_c‖²
	for c := range half {
		half[c] = dot(s.Means[c*r:(c+1)*r], s.Means[c*r:(c+1)*r]) / 2
	}
	for i := range scores {
		row := inner[i*classes : (i+1)*classes]
		for c := range row {
			row[c] -= half[c]
		}
		// ‖z−m‖² = ‖z‖² − 2(⟨z,m⟩ − ½‖m‖²) says which mean is the nearest; the
		// distance to it is taken without cancellation.
		c := argmax(row)
		to := distance(z[i*r:(i+1)*r], s.Means[c*r:(c+1)*r])
		scores[i] = -to * to
	}
}

// Score implements [Score].
func (s *RMDS) Score(ctx context.Context, dst []float64, b Batch) error {
	return s.relative(ctx, dst, b, nil)
}

// relative is Score, given what MDS scores unless that is nil.
func (s *RMDS) relative(ctx context.Context, dst []float64, b Batch, within []float64) error {
	return eachFeatures(ctx, dst, b, len(s.Whole.Mean), s.MDS.L2, func(scores, x []float64, at int) {
		if within != nil {
			copy(scores, within[at:])
		} else {
			s.MDS.score(scores, x)
		}
		r := s.Whole.rank()
		z, done := scratch(len(scores) * r)
		defer done()
		s.Whole.apply(z, x)
		for i := range scores {
			scores[i] += dot(z[i*r:(i+1)*r], z[i*r:(i+1)*r])
		}
	})
}

// of returns what is kept about the features, divided by their lengths if l2.
// The caller holds the lock of the data.
func (data *Data) of(l2 bool) *statistics {
	if l2 {
		return &data.computed[1]
	}
	return &data.computed[0]
}

// means returns the means of the features, divided by their lengths if l2, and
// of their classes.
func (data *Data) means(ctx context.Context, l2 bool) (*moments.Moments, error) {
	data = data.source()
	data.mu.Lock()
	defer data.mu.Unlock()
	return data.meansLocked(ctx, l2)
}

func (data *Data) meansLocked(ctx context.Context, l2 bool) (*moments.Moments, error) {
	s := data.of(l2)
	if s.moments == nil {
		m, err := moments.Means(ctx, data.rows(l2))
		if err != nil {
			return nil, err
		}
		s.moments = m
	}
	return s.moments, nil
}

// covariance returns the one within the classes; it is the caller's to change.
func (data *Data) covariance(ctx context.Context, l2 bool) (*mat.SymDense, *moments.Moments, error) {
	m, err := data.meansLocked(ctx, l2)
	if err != nil {
		return nil, nil, err
	}
	s := data.of(l2)
	if s.within == nil {
		if s.within, err = m.Within(ctx, data.rows(l2)); err != nil {
			return nil, nil, err
		}
	}
	sigma := mat.NewSymDense(data.D, nil)
	sigma.CopySym(s.within)
	return sigma, m, nil
}

func (data *Data) mds(ctx context.Context, l2 bool) (*MDS, error) {
	s := data.of(l2)
	if s.mds != nil {
		return s.mds, nil
	}
	sigma, m, err := data.covariance(ctx, l2)
	if err != nil {
		return nil, err
	}
	within, err := newGaussian(ctx, m.Mean, sigma)
	if err != nil {
		return nil, err
	}
	var means []float64
	for c, mean := range m.Means {
		if m.Counts[c] > 0 {
			means = append(means, mean...)
		}
	}
	s.mds = &MDS{L2: l2, Within: within, Means: make([]float64, len(means)/data.D*within.rank())}
	within.apply(s.mds.Means, means)
	return s.mds, nil
}

func (data *Data) whole(ctx context.Context, l2 bool) (*Gaussian, error) {
	s := data.of(l2)
	if s.whole != nil {
		return s.whole, nil
	}
	sigma, m, err := data.covariance(ctx, l2)
	if err != nil {
		return nil, err
	}
	if sigma, err = m.AddBetween(ctx, sigma); err != nil {
		return nil, err
	}
	s.whole, err = newGaussian(ctx, m.Mean, sigma)
	return s.whole, err
}

// Residual is the length of what a linear head does not see of the features:
// −‖Rᵀ(f−u)‖ with u = −pinv(W)b, the features at which all logits are 0, and R
// the eigenvectors of (F−u)ᵀ(F−u)/N but the first. Reads features.
//
// Source: Wang et al., 2022 (OpenOOD: ResidualPostprocessor).
type Residual struct {
	Origin []float64 // [D], u
	Basis  []float64 `cols:"Origin"` // [D−dim, D], Rᵀ

	packed right
}

// FitResidual fits Residual with all but the dim first eigenvectors; 0 means
// 512 from 768 features on, 1,000 from 2,048 on, else half of the features.
// There must be fewer than features.
func FitResidual(ctx context.Context, data *Data, head *Linear, dim int) (*Residual, error) {
	if err := data.fits(head); err != nil {
		return nil, err
	}
	d := data.D
	if dim == 0 {
		dim = principal(d)
	}
	if dim < 0 || dim >= d {
		return nil, fmt.Errorf("a principal space of %d dimensions leaves nothing of %d features", dim, d)
	}
	data = data.source()
	data.mu.Lock()
	defer data.mu.Unlock()
	key := residualKey{head, dim}
	if s := data.residuals[key]; s != nil {
		return s, nil
	}
	u, err := origin(ctx, head)
	if err != nil {
		return nil, err
	}
	sigma, m, err := data.covariance(ctx, false)
	if err != nil {
		return nil, err
	}
	// About u it is the covariance about the mean, and how far the mean is from u.
	if sigma, err = m.AddBetween(ctx, sigma); err != nil {
		return nil, err
	}
	offset := mat.NewVecDense(d, slices.Clone(m.Mean))
	offset.SubVec(offset, mat.NewVecDense(d, u))
	sigma.SymRankOne(sigma, 1, offset)
	_, vectors, err := eigen(ctx, sigma)
	if err != nil {
		return nil, err
	}
	s := &Residual{Origin: u}
	for k := range d - dim {
		s.Basis = append(s.Basis, vectors.RawRowView(k)...)
	}
	if data.residuals == nil {
		data.residuals = map[residualKey]*Residual{}
	}
	data.residuals[key] = s
	return s, nil
}

// residualKey is what else than the data a Residual depends on.
type residualKey struct {
	head *Linear
	dim  int
}

// principal returns OpenOOD's size of the principal space of d features.
func principal(d int) int {
	switch {
	case d >= 2048:
		return 1000
	case d >= 768:
		return 512
	}
	return d / 2
}

// origin returns −pinv(W)b.
func origin(ctx context.Context, head *Linear) ([]float64, error) {
	var svd mat.SVD
	ok, err := await(ctx, func() bool {
		return svd.Factorize(mat.NewDense(head.Out, head.In, head.Weights), mat.SVDThin)
	})
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, errors.New("the singular values of the linear head's weights could not be found")
	}
	u := make([]float64, head.In)
	rank := svd.Rank(1e-15)
	if rank == 0 { // no weights at all: every feature is as good
		return u, nil
	}
	var x mat.Dense
	svd.SolveTo(&x, mat.NewDense(head.Out, 1, head.Bias), rank)
	for j := range u {
		u[j] = -x.At(j, 0)
	}
	return u, nil
}

// Score implements [Score].
func (s *Residual) Score(ctx context.Context, dst []float64, b Batch) error {
	return eachFeatures(ctx, dst, b, len(s.Origin), false, func(scores, x []float64, _ int) { s.score(scores, x) })
}

// score changes x.
func (s *Residual) score(scores, x []float64) {
	d := len(s.Origin)
	left := len(s.Basis) / d
	for row := range slices.Chunk(x, d) {
		for j, u := range s.Origin {
			row[j] -= u
		}
	}
	z, done := scratch(len(scores) * left)
	defer done()
	s.packed.times(left, d, x, s.Basis, z)
	for i := range scores {
		scores[i] = -norm(z[i*left : (i+1)*left])
	}
}

// ViM is virtual-logit matching: log Σ_c exp(z_c) − α‖Rᵀ(f−u)‖ with z = Wf + b,
// the norm of [Residual], and α = mean max_c z_c / mean ‖Rᵀ(f−u)‖ over the
// training rows. Reads features. If all training features lie in the principal
// space but for rounding, as fewer rows than it has dimensions do, α is 0.
//
// Source: Wang et al., 2022 (OpenOOD: VIMPostprocessor).
type ViM struct {
	Head     *Linear
	Residual *Residual
	Alpha    float64
}

// FitViM fits ViM; dim is that of FitResidual.
func FitViM(ctx context.Context, data *Data, head *Linear, dim int) (*ViM, error) {
	residual, err := FitResidual(ctx, data, head, dim)
	if err != nil {
		return nil, err
	}
	top, length, size := make([]float64, data.N), make([]float64, data.N), make([]float64, data.N)
	err = eachBlock(ctx, data.N, blockRows, func(from, to int) {
		x, done := scratch((to - from) * data.D)
		defer done()
		widen(x, data.Features(from, to))
		z := make([]float64, (to-from)*head.Out)
		head.Logits(z, x)
		for i := from; i < to; i++ {
			row := z[(i-from)*head.Out : (i-from+1)*head.Out]
			top[i] = row[argmax(row)]
		}
		residual.score(length[from:to], x)
		for i := from; i < to; i++ {
			size[i] = norm(x[(i-from)*data.D : (i-from+1)*data.D]) // ‖f−u‖
		}
	})
	if err != nil {
		return nil, err
	}
	s := &ViM{Head: head, Residual: residual}
	if l := -sum(length); l > 1e-10*sum(size) {
		s.Alpha = sum(top) / l
	}
	return s, nil
}

// Score implements [Score].
func (s *ViM) Score(ctx context.Context, dst []float64, b Batch) error {
	return s.match(ctx, dst, b, nil)
}

// match is Score, given what Residual scores unless that is nil.
func (s *ViM) match(ctx context.Context, dst []float64, b Batch, residual []float64) error {
	d, c := s.Head.Size()
	return eachFeatures(ctx, dst, b, d, false, func(scores, x []float64, at int) {
		z := make([]float64, len(scores)*c)
		s.Head.Logits(z, x)
		if residual != nil {
			copy(scores, residual[at:])
		} else {
			s.Residual.score(scores, x)
		}
		for i := range scores {
			scores[i] = energy(z[i*c:(i+1)*c], 1) + s.Alpha*scores[i]
		}
	})
}
