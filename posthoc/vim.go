package posthoc

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"gonum.org/v1/gonum/mat"
)

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
