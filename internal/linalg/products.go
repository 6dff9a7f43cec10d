// Package linalg is the linear algebra that conditionings and scores need:
// products of matrices, means and covariances of feature rows, and eigenvectors
// of symmetric matrices. It works on all cores with the arithmetic of package
// kernels; what it computes does not depend on how many cores there are.
package linalg

import (
	"sync"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

// Real is a type that products are computed in.
type Real = kernels.Real

// NT sets C = A·Bᵀ with A [m,k], B [n,k], C [m,n]. Matrices are row-major and
// dense. Any number of goroutines may call it and NN.
func NT[T Real](m, n, k int, a, b, c []T) {
	borrow(func(p kernels.Products[T]) { p.NT(m, n, k, 1, a, b, 0, c) })
}

// NN sets C = A·B with A [m,k], B [k,n], C [m,n].
func NN[T Real](m, n, k int, a, b, c []T) {
	borrow(func(p kernels.Products[T]) { p.NN(m, n, k, 1, a, b, 0, c) })
}

// idle32 and idle64 hold kernels between calls: each serves one goroutine at a time
// and has buffers to reuse.
var idle32, idle64 sync.Pool

func borrow[T Real](do func(kernels.Products[T])) {
	pool := &idle32
	if _, wide := any(T(0)).(float64); wide {
		pool = &idle64
	}
	p, ok := pool.Get().(kernels.Products[T])
	if !ok {
		p = kernels.NewProducts[T]()
	}
	defer pool.Put(p)
	do(p)
}

// addGram adds the upper triangle of XᵀX, X [n,d], to sum [d,d], on all cores;
// the result does not depend on how many there are.
func addGram(n, d int, x, sum []float64) {
	kernels.BLAS{}.Dsyrk(blas.Upper, blas.Trans, d, n, 1, x, d, 1, sum, d)
}

// many is how many rows and columns a matrix has whose singular values take longer
// than other factorisations: gonum finds them on one core.
const many = 256

// mostCondition is the condition number up to which Shortest trusts a QR
// factorisation; singular values are far above any tolerance then.
const mostCondition = 1e8

// Shortest returns the shortest of the x that minimise ‖Ax − b‖. Singular values of
// at most tolerance times the largest count as 0. It reports whether they were found.
// A tall matrix with many columns that are clearly independent needs none: there is
// one x, which QR gives in a fraction of the time.
func Shortest(a *mat.Dense, b []float64, tolerance float64) ([]float64, bool) {
	kernels.UseBLAS()
	rows, columns := a.Dims()
	x, right := make([]float64, columns), mat.NewDense(rows, 1, b)
	var found mat.Dense
	if rows >= columns && columns >= many {
		var qr mat.QR
		qr.Factorize(a)
		if qr.Cond() < mostCondition && qr.SolveTo(&found, false, right) == nil {
			return mat.Col(x, 0, &found), true
		}
		found.Reset()
	}
	var svd mat.SVD
	if !svd.Factorize(a, mat.SVDThin) {
		return nil, false
	}
	if rank := svd.Rank(tolerance); rank > 0 { // else any x will do
		svd.SolveTo(&found, right, rank)
		mat.Col(x, 0, &found)
	}
	return x, true
}

// Axes returns the left singular vectors of a [n, m], the largest singular value
// first, as the columns of a matrix [n, min(n, m)], and reports whether they were
// found. Those of a large matrix are the eigenvectors of A·Aᵀ: their order is only
// that of the singular values as far as these are above 10⁻⁸ of the largest.
func Axes(a *mat.Dense) (*mat.Dense, bool) {
	kernels.UseBLAS()
	n, m := a.Dims()
	if min(n, m) < many {
		var svd mat.SVD
		if !svd.Factorize(a, mat.SVDThin) {
			return nil, false
		}
		var axes mat.Dense
		svd.UTo(&axes)
		return &axes, true
	}
	var gram mat.SymDense
	gram.SymOuterK(1, a)
	_, vectors, err := Eigen(&gram)
	if err != nil {
		return nil, false
	}
	axes := mat.NewDense(n, min(n, m), nil)
	for k := range min(n, m) {
		axes.SetCol(k, vectors.RawRowView(n-1-k))
	}
	return axes, true
}
