// Package moments computes class means and covariances of feature rows in
// float64, a block of rows at a time, so that no second copy of the rows is
// held.
package moments

import (
	"context"
	"math"

	"gonum.org/v1/gonum/mat"

	"mlrbfn/internal/products"
)

// Rows are feature rows to take moments of.
type Rows struct {
	D       int
	Index   []int                        // the rows to use
	Label   func(row int) int            // class in [0, Classes)
	Classes int                          // C
	Read    func(dst []float64, row int) // puts a row [D] into dst
}

// Moments are the first two moments of rows in C classes.
type Moments struct {
	N      int
	Counts []int       // [C]
	Means  [][]float64 // [C][D]; all zero for a class without rows
	Mean   []float64   // [D], of all rows
}

// Means returns the means of the rows and of their classes.
func Means(ctx context.Context, r Rows) (*Moments, error) {
	m := &Moments{N: len(r.Index), Counts: make([]int, r.Classes), Means: make([][]float64, r.Classes), Mean: make([]float64, r.D)}
	for c := range m.Means {
		m.Means[c] = make([]float64, r.D)
	}
	row := make([]float64, r.D)
	for i, at := range r.Index {
		if i%block == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r.Read(row, at)
		c := r.Label(at)
		m.Counts[c]++
		for j, v := range row {
			m.Means[c][j] += v
		}
	}
	for c, mean := range m.Means {
		for j, v := range mean {
			m.Mean[j] += v / float64(max(m.N, 1))
			mean[j] = v / float64(max(m.Counts[c], 1))
		}
	}
	return m, nil
}

// Within returns the within-class covariance, 1/N Σ (x−μ_y)(x−μ_y)ᵀ.
func (m *Moments) Within(ctx context.Context, r Rows) (*mat.SymDense, error) {
	return covariance(ctx, r, func(row int) []float64 { return m.Means[r.Label(row)] })
}

// Total returns the covariance about the mean of all rows, 1/N Σ (x−μ)(x−μ)ᵀ.
func (m *Moments) Total(ctx context.Context, r Rows) (*mat.SymDense, error) {
	return covariance(ctx, r, func(int) []float64 { return m.Mean })
}

// AddBetween turns the within-class covariance, in place, into that about the
// mean of all rows, which it returns: Σ + 1/N Σ_c n_c (μ_c−μ)(μ_c−μ)ᵀ. It
// spares a second pass over the rows where both are wanted.
func (m *Moments) AddBetween(ctx context.Context, within *mat.SymDense) (*mat.SymDense, error) {
	d := len(m.Mean)
	var offsets []float64 // [classes with rows, D], √(n_c/N)·(μ_c−μ)
	for c, n := range m.Counts {
		for j := 0; n > 0 && j < d; j++ {
			offsets = append(offsets, math.Sqrt(float64(n)/float64(m.N))*(m.Means[c][j]-m.Mean[j]))
		}
	}
	products.AddGram(len(offsets)/d, d, offsets, within.RawSymmetric().Data)
	return within, ctx.Err()
}

// block is how many rows are in float64 at once.
const block = 1024

func covariance(ctx context.Context, r Rows, centre func(row int) []float64) (*mat.SymDense, error) {
	sum := make([]float64, r.D*r.D)
	x := make([]float64, min(block, len(r.Index))*r.D)
	for from := 0; from < len(r.Index); from += block {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		part := r.Index[from:min(from+block, len(r.Index))]
		for i, at := range part {
			row := x[i*r.D : (i+1)*r.D]
			r.Read(row, at)
			for j, mu := range centre(at) {
				row[j] -= mu
			}
		}
		products.AddGram(len(part), r.D, x, sum)
	}
	for i := range sum {
		sum[i] /= float64(len(r.Index))
	}
	return mat.NewSymDense(r.D, sum), nil
}
