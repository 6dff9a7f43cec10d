package linalg

import (
	"errors"
	"math"

	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

// Eigen returns the eigenvalues of a, ascending, and the eigenvectors of length
// 1, as the rows of a matrix [n, n].
//
// It works as LAPACK's dsyevd does: Householder's reflections make the matrix
// tridiagonal, divide and conquer finds the eigenvectors of that, and the
// reflections turn them into those of a. Most of the work are products of matrices.
func Eigen(a *mat.SymDense) (values []float64, vectors *mat.Dense, err error) {
	kernels.UseBLAS()
	n := a.SymmetricDim()
	if n == 0 {
		return nil, nil, errors.New("a matrix without elements has no eigenvalues")
	}
	upper := a.RawSymmetric()
	var largest float64
	for i := range n {
		for _, v := range upper.Data[i*upper.Stride+i : i*upper.Stride+n] {
			if v-v != 0 {
				return nil, nil, errors.New("a matrix with values that are not finite has no eigenvalues")
			}
			largest = max(largest, math.Abs(v))
		}
	}
	// Squares of what is scaled by a power of two neither overflow nor vanish.
	_, exponent := math.Frexp(largest)
	lower := make([]float64, n*n)
	// A number can have 2⁻ˣ without 2ˣ, so in two steps.
	first, second := math.Ldexp(1, -exponent/2), math.Ldexp(1, exponent/2-exponent)
	const tile = 16 // rows and columns that stay in the cache
	for from := 0; from < n; from += tile {
		for i := from; i < n; i++ {
			for j := from; j <= min(i, from+tile-1); j++ {
				lower[i*n+j] = first * upper.Data[j*upper.Stride+i] * second
			}
		}
	}

	t := tridiagonalise(n, lower)
	c := newConquest(n, t.d, t.e)
	if err := c.solve(0, n); err != nil {
		return nil, nil, err
	}
	values, x := c.ascending()
	for i, v := range values {
		values[i] = math.Ldexp(v, exponent)
	}
	t.turn(x, c.turns)
	return values, mat.NewDense(n, n, x), nil
}
