package head

import (
	"context"
	"errors"
	"math"

	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// squares is how many bytes whitening and PCA take for each of the D² elements of
// a covariance: five float64 matrices and the result.
const squares = 44

// fits reports whether matrices of D×D fit into the memory.
func (o ConditioningOptions) fits(d int) bool {
	return o.Memory == 0 || float64(squares)*float64(d)*float64(d) <= float64(o.Memory)
}

// mostAxes is the largest number of rows to compute the axes of a reduction from.
const mostAxes = 4096

// reduction projects rows, divided by their lengths if l2, onto the principal
// axes of some of the training rows: z = (x − μ)V, V [D, R] with orthonormal
// columns, the axis of the largest variance first. It is for features whose
// covariance does not fit into memory. With axes from all training rows no
// variance of these is lost.
type reduction struct {
	l2   bool
	mean []float64 // [D], μ
	axes []float64 // [R, D], V transposed
	d, r int
}

// reduce computes the axes from as many training rows as fit into memory, from
// the products of these rows with each other [n, n].
func reduce(ctx context.Context, train features.Rows, classes int, l2 bool, memory int64) (*reduction, error) {
	// The rows and the axes in float64, and n×n matrices.
	n := min(train.Len(), mostAxes)
	need := func(n int) float64 { return 8 * (2*float64(n)*float64(train.D) + 5*float64(n)*float64(n)) }
	for n > 1 && need(n) > float64(memory) {
		n = n * 9 / 10
	}
	if n < 2 {
		return nil, options.Errorf("Memory", "%d bytes: %d features need at least %.0f bytes to be conditioned; give more, or take another Kind", memory, train.D, need(2))
	}
	d := train.D
	some := features.Spread(train.Index, n)
	rows := momentRows(train.With(some), classes, l2)
	r := &reduction{l2: l2, d: d, mean: make([]float64, d)}
	x := make([]float64, n*d)
	err := parallel.Blocks(ctx, n, 16, func(from, to int) {
		for i := from; i < to; i++ {
			rows.Read(x[i*d:(i+1)*d], some[i])
		}
	})
	if err != nil {
		return nil, err
	}
	for i := range n {
		for j, v := range x[i*d : (i+1)*d] {
			r.mean[j] += v / float64(n)
		}
	}
	for i := range x {
		x[i] -= r.mean[i%d]
	}
	gram := make([]float64, n*n)
	linalg.NT(n, n, d, x, x, gram)
	values, vectors, err := linalg.Eigen(mat.NewSymDense(n, gram))
	if err != nil {
		return nil, err
	}
	var scaled []float64 // [R, n], the eigenvectors over the roots of their eigenvalues, the largest first
	for i := n - 1; i >= 0 && values[i] > 1e-10*values[n-1]; i-- {
		for _, v := range vectors.RawRowView(i) {
			scaled = append(scaled, v/math.Sqrt(values[i]))
		}
		r.r++
	}
	if r.r == 0 {
		return nil, errors.New("the features of all rows are the same: a conditioning cannot be fitted")
	}
	r.axes = make([]float64, r.r*d)
	linalg.NN(r.r, d, n, scaled, x, r.axes)
	return r, ctx.Err()
}

// rows reduces as many of the rows as fit into memory.
func (r *reduction) rows(ctx context.Context, data features.Rows, memory int64) (features.Rows, error) {
	most := max(1000, int(memory/int64(16*r.r)))
	some := features.Every(data.Index, most)
	from := momentRows(data, 0, r.l2)
	out := features.All(make([]float32, len(some)*r.r), r.r, make([]int64, len(some)))
	block := min(len(some), r.r) // the memory that reduce took for its rows
	x, z := make([]float64, block*r.d), make([]float64, block*r.r)
	for at := 0; at < len(some); at += block {
		part := some[at:min(at+block, len(some))]
		err := parallel.Blocks(ctx, len(part), 16, func(first, to int) {
			for i := first; i < to; i++ {
				row := x[i*r.d : (i+1)*r.d]
				from.Read(row, part[i])
				for j, mu := range r.mean {
					row[j] -= mu
				}
			}
		})
		if err != nil {
			return out, err
		}
		z := z[:len(part)*r.r]
		linalg.NT(len(part), r.r, r.d, x[:len(part)*r.d], r.axes, z)
		kernels.Convert(out.X[at*r.r:], z)
		for i, row := range part {
			out.Labels[at+i] = data.Labels[row]
		}
	}
	return out, ctx.Err()
}

// project makes c the projection to the principal axes, as many as it wants.
func (r *reduction) project(c *Conditioning) {
	dims := r.r
	if c.Dims > 0 {
		dims = min(dims, c.Dims)
	}
	kernels.Convert(c.Mean, r.mean)
	c.Matrix = make([]float32, r.d*dims)
	for e := range dims {
		for j, v := range r.axes[e*r.d : (e+1)*r.d] {
			c.Matrix[j*dims+e] = float32(v)
		}
	}
}

// fitReduced is Fit for features whose covariance does not fit into memory: it
// fits the conditioning to reduced rows, and combines both maps into one of D×R.
func fitReduced(ctx context.Context, train, validation features.Rows, classes int, o ConditioningOptions) (*Conditioning, error) {
	candidates := []bool{o.L2}
	if o.Kind == Auto {
		candidates = []bool{true, false}
	}
	reductions := map[bool]*reduction{}
	gaussians := map[bool]reduced{}
	for _, l2 := range candidates {
		r, err := reduce(ctx, train, classes, l2, o.Memory/2)
		if err != nil {
			return nil, err
		}
		reductions[l2] = r
		if o.Kind == PCA {
			continue
		}
		var rows reduced
		if rows.train, err = r.rows(ctx, train, o.Memory/4); err != nil {
			return nil, err
		}
		if rows.validation, err = r.rows(ctx, validation, o.Memory/4); err != nil {
			return nil, err
		}
		gaussians[l2] = rows
	}
	inner := o
	inner.Memory = 0
	var err error
	if o.Kind == Auto {
		inner, err = choose(ctx, func(l2 bool) (features.Rows, features.Rows, bool) {
			return gaussians[l2].train, gaussians[l2].validation, false
		}, classes, inner)
		if err != nil {
			return nil, err
		}
		if inner.Kind == None {
			return FitConditioning(ctx, train, validation, classes, inner)
		}
	}
	r := reductions[inner.L2]
	c := &Conditioning{ConditioningOptions: inner, Mean: make([]float32, r.d)}
	if inner.Kind == PCA {
		r.project(c)
		return c, c.Validate()
	}
	inner.L2 = false // the reduced rows are divided by their lengths already
	rows := gaussians[c.L2]
	within, err := FitConditioning(ctx, rows.train, rows.validation, classes, inner)
	if err != nil {
		return nil, err
	}
	// (x − μ)V − μ' = (x − (μ + Vμ'))V, as Vᵀ V = 1.
	c.Shrinkage = within.Shrinkage
	for j := range c.Mean {
		mean := r.mean[j]
		for e, v := range within.Mean {
			mean += r.axes[e*r.d+j] * float64(v)
		}
		c.Mean[j] = float32(mean)
	}
	e := within.Out()
	w := kernels.Converted[float64](within.Matrix)
	joined := make([]float64, r.d*e)
	kernels.NewProducts[float64]().TN(r.d, e, r.r, 1, r.axes, w, 0, joined)
	c.Matrix = make([]float32, len(joined))
	kernels.Convert(c.Matrix, joined)
	return c, c.Validate()
}

// reduced holds the rows after a reduction.
type reduced struct{ train, validation features.Rows }
