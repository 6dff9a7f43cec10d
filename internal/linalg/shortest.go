package linalg

import (
	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

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
