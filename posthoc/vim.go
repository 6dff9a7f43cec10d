package posthoc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/lapack/lapack64"
	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

const groupResidual = "residual"

var _ = declare[Residual]("Residual", method{
	name:  "residual",
	words: Words{"features outside of the space that the training images span", "features in the space that the training images span", "with features more outside of the space that the training images span"},
	reads: featureRows, needs: featureRows | lastLayer, group: groupResidual, memory: residualMemory,
	fit: func(ctx context.Context, in Input) (Scorer, error) {
		return FitResidual(ctx, in.Train, in.LastLayer, 0)
	},
})

var _ = declare[ViM]("ViM", method{
	name:  "vim",
	words: Words{"features outside of the space that the training images span", "features in the space that the training images span", "with features more outside of the space that the training images span, beside the evidence for a class,"},
	reads: featureRows, needs: featureRows | lastLayer, group: groupResidual, memory: residualMemory,
	fit: func(ctx context.Context, in Input) (Scorer, error) { return FitViM(ctx, in.Train, in.LastLayer, 0) },
})

func (s *Residual) fields(f *fields) {
	f.vector("origin", &s.Origin, -1)
	f.matrix("basis", &s.Basis, -1, len(s.Origin))
}

func (s *ViM) fields(f *fields) {
	f.layer("head", &s.Head)
	if f.find != nil {
		s.Residual = &Residual{}
	}
	f.within("residual", s.Residual.fields)
	f.refuse(len(s.Residual.Origin) != s.Head.In, "residual.origin", "it has %d values for %d features", len(s.Residual.Origin), s.Head.In)
	f.float("alpha", &s.Alpha)
}

// Residual is the length of the features' part outside of their principal space:
// −‖Rᵀ(f−u)‖ with u = −pinv(W)b, the features at which all logits are 0, and R
// all eigenvectors of (F−u)ᵀ(F−u)/N except the first ones. Reads features.
//
// Source: Wang et al., 2022 (OpenOOD: ResidualPostprocessor).
type Residual struct {
	Origin []float64 // [D], u
	Basis  []float64 // [D−dim, D], Rᵀ

	packed right
}

// FitResidual fits Residual with all but the dim first eigenvectors; 0 means
// 512 from 768 features on, 1,000 from 2,048 on, else half of the features.
// There must be fewer than features; more than rows count as many as rows.
func FitResidual(ctx context.Context, data *Data, head *Linear, dim int) (*Residual, error) {
	if err := data.fits(head); err != nil {
		return nil, err
	}
	d := data.D
	dim = cmp.Or(dim, principal(d))
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
	s := &Residual{Origin: u}
	if data.N < d {
		s.Basis, err = data.unreached(ctx, u, dim)
	} else {
		s.Basis, err = data.unused(ctx, u, dim)
	}
	if err != nil {
		return nil, err
	}
	if data.residuals == nil {
		data.residuals = map[residualKey]*Residual{}
	}
	data.residuals[key] = s
	return s, nil
}

// unused returns all but the dim last eigenvectors, by ascending eigenvalues, of
// (F−u)ᵀ(F−u): about u it is the covariance about the mean, and how far the mean is from u.
func (data *Data) unused(ctx context.Context, u []float64, dim int) (basis []float64, err error) {
	sigma, m, err := data.totalLocked(ctx, false)
	if err != nil {
		return nil, err
	}
	offset := mat.NewVecDense(data.D, slices.Clone(m.Mean))
	offset.SubVec(offset, mat.NewVecDense(data.D, u))
	sigma.SymRankOne(sigma, 1, offset)
	_, vectors, err := eigen(ctx, sigma)
	if err != nil {
		return nil, err
	}
	return vectors.RawMatrix().Data[:(data.D-dim)*data.D], nil
}

// unreached is unused for fewer rows than features, in a fraction of the time: with (F−u)ᵀ = QR
// these are the eigenvectors of RRᵀ, turned by Q, and the columns of Q that no row reaches. All
// of these, since none of them comes before another: the principal space has at most N dimensions.
func (data *Data) unreached(ctx context.Context, u []float64, dim int) (basis []float64, err error) {
	n, d := data.N, data.D
	q := mat.NewDense(d, n, nil)
	for i, v := range data.Features(0, n) {
		if v-v != 0 {
			return nil, errors.New("features that are not finite have no principal space")
		}
		q.Set(i%d, i/d, float64(v)-u[i%d])
	}
	waited, stopped := await(ctx, func() (err error) {
		basis, err = complement(q, min(dim, n))
		return err
	})
	if err := cmp.Or(stopped, waited); err != nil {
		return nil, err
	}
	return basis, nil
}

// complement returns all but the dim last eigenvectors of q qᵀ, in rows, for q [d, n] with
// n < d and dim ≤ n. It overwrites q.
func complement(q *mat.Dense, dim int) ([]float64, error) {
	kernels.UseBLAS()
	d, n := q.Dims()
	a := q.RawMatrix()
	tau, work := make([]float64, n), make([]float64, 1)
	lapack64.Geqrf(a, tau, work, -1)
	work = make([]float64, int(work[0]))
	lapack64.Geqrf(a, tau, work, len(work))
	columns := mat.NewDense(d, d-dim, nil)
	reached := n - dim // of the columns are eigenvectors
	for i := range d - n {
		columns.Set(n+i, reached+i, 1)
	}
	if reached > 0 {
		upper := mat.NewDense(n, n, nil)
		for i := range n {
			copy(upper.RawRowView(i)[i:], q.RawRowView(i)[i:])
		}
		var rows mat.SymDense
		rows.SymOuterK(1, upper)
		_, vectors, err := linalg.Eigen(&rows)
		if err != nil {
			return nil, err
		}
		columns.Slice(0, n, 0, reached).(*mat.Dense).Copy(vectors.Slice(0, reached, 0, n).T())
	}
	lapack64.Ormqr(blas.Left, blas.NoTrans, a, tau, columns.RawMatrix(), work[:1], -1)
	work = make([]float64, int(work[0]))
	lapack64.Ormqr(blas.Left, blas.NoTrans, a, tau, columns.RawMatrix(), work, len(work))
	return mat.DenseCopyOf(columns.T()).RawMatrix().Data, nil
}

// residualKey names a Residual among those of the same data.
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
	u, err := await(ctx, func() []float64 {
		u, _ := linalg.Shortest(mat.NewDense(head.Out, head.In, head.Weights), head.Bias, 1e-15)
		return u
	})
	if err != nil {
		return nil, err
	}
	if u == nil {
		return nil, errors.New("the singular values of the linear head's weights could not be found")
	}
	for j, v := range u {
		u[j] = -v
	}
	return u, nil
}

// Score implements [Scorer].
func (s *Residual) Score(ctx context.Context, dst []float64, b Batch) error {
	return alone(ctx, s, dst, b)
}

func (s *Residual) join(t *together, dst []float64, _ Batch) error {
	workOn[lengths](t, s).join(s, dst, nil)
	return nil
}

// score changes x.
func (s *Residual) score(scores, x []float64) {
	d := len(s.Origin)
	left := len(s.Basis) / d
	subtract(x, s.Origin)
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
// space up to rounding, as with fewer rows than dimensions of the space, α is 0.
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
	err = parallel.Blocks(ctx, data.N, blockRows, func(from, to int) {
		x, done := scratch((to - from) * data.D)
		defer done()
		kernels.Convert(x, data.Features(from, to))
		z := make([]float64, (to-from)*head.Out)
		head.Logits(z, x)
		for i := from; i < to; i++ {
			row := z[(i-from)*head.Out : (i-from+1)*head.Out]
			top[i] = row[linalg.ArgMax(row)]
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

// Score implements [Scorer].
func (s *ViM) Score(ctx context.Context, dst []float64, b Batch) error {
	return alone(ctx, s, dst, b)
}

func (s *ViM) join(t *together, dst []float64, _ Batch) error {
	workOn[lengths](t, s.Residual).join(s.Residual, dst, s)
	return nil
}

// lengths computes a Residual and the ViMs that are based on it.
type lengths struct {
	residual *Residual
	dst      [][]float64
	vim      []*ViM // nil for the Residual itself
}

func (w *lengths) join(residual *Residual, dst []float64, vim *ViM) {
	w.residual, w.dst, w.vim = residual, append(w.dst, dst), append(w.vim, vim)
}

func (w *lengths) run(ctx context.Context, n int, b Batch) error {
	return eachFeatures(ctx, w.dst[0][:n], b, len(w.residual.Origin), false, func(scores, x []float64, at int) {
		for i, s := range w.vim { // before x is changed
			if s != nil {
				s.Head.energies(w.dst[i][at:at+len(scores)], x)
			}
		}
		residual, done := scratch(len(scores))
		defer done()
		w.residual.score(residual, x)
		for i, s := range w.vim {
			for row, v := range residual {
				if s == nil {
					w.dst[i][at+row] = v
				} else {
					w.dst[i][at+row] += s.Alpha * v
				}
			}
		}
	})
}

func (s *Residual) graph(g *graph) onnx.Value {
	return g.Neg(g.Length(g.Times(g.centred(g.Features, s.Origin), s.Basis, len(s.Origin))))
}

func (s *ViM) graph(g *graph) onnx.Value {
	residual := s.Residual.graph(g)
	return g.Op("Add", g.energy(g.linear(s.Head, g.Features), 1), g.Op("Mul", residual, g.Number(s.Alpha)))
}
