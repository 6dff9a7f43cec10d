package linalg

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/lapack/gonum"
	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

// Eigen returns the eigenvalues of a, ascending, and the eigenvectors of length
// 1, as the rows of a matrix [n, n].
//
// Householder's reflections make a tridiagonal, and implicit QL steps that
// diagonal (Golub and Van Loan, 8.3), as LAPACK's dsyev does. The rotations of many
// steps are collected and then applied to a stripe of the vectors at a time, which
// stays in the cache.
func Eigen(a mat.Symmetric) (values []float64, vectors *mat.Dense, err error) {
	kernels.UseBLAS()
	n := a.SymmetricDim()
	if n == 0 {
		return nil, nil, errors.New("a matrix without elements has no eigenvalues")
	}
	full := mat.DenseCopyOf(a)
	var largest float64
	for _, v := range full.RawMatrix().Data {
		if v-v != 0 {
			return nil, nil, errors.New("a matrix with values that are not finite has no eigenvalues")
		}
		largest = max(largest, math.Abs(v))
	}
	// Squares of what is scaled by a power of two neither overflow nor vanish.
	_, exponent := math.Frexp(largest)
	full.Scale(math.Ldexp(1, -exponent), full)

	d, e, q := tridiagonal(full.RawMatrix().Data, n)
	z := kernels.NewStripes(n, n)
	for i := range n {
		for k := range n {
			*z.At(k, i) = q[i*n+k]
		}
	}
	if err := diagonal(d, e, z); err != nil {
		return nil, nil, err
	}
	order := make([]int, n)
	for k := range order {
		order[k] = k
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(d[a], d[b]) })
	vectors = mat.NewDense(n, n, nil)
	for to, k := range order {
		values = append(values, math.Ldexp(d[k], exponent))
		for i := range n {
			vectors.Set(to, i, *z.At(k, i))
		}
	}
	return values, vectors, nil
}

// tridiagonal finds T = QᵀAQ with the diagonal d [n] and the off-diagonal e, n−1
// elements and a zero; it returns Q in place of a [n, n].
func tridiagonal(a []float64, n int) (d, e, q []float64) {
	d, e = make([]float64, n), make([]float64, n)
	if n == 1 {
		d[0], a[0] = a[0], 1
		return d, e, a
	}
	var lapack gonum.Implementation
	tau := make([]float64, n-1)
	size := make([]float64, 1)
	lapack.Dsytrd(blas.Upper, n, a, n, d, e, tau, size, -1)
	work := make([]float64, int(size[0]))
	lapack.Dsytrd(blas.Upper, n, a, n, d, e, tau, work, len(work))
	lapack.Dorgtr(blas.Upper, n, a, n, tau, size, -1)
	work = make([]float64, int(size[0]))
	lapack.Dorgtr(blas.Upper, n, a, n, tau, work, len(work))
	return d, e, a
}

// manyRotations is how many rotations are collected before they are applied.
const manyRotations = 1 << 18

// diagonal turns d into the eigenvalues and applies the same rotations to the rows of z.
func diagonal(d, e []float64, z *kernels.Stripes) error {
	n := len(d)
	var sweeps []kernels.Sweep
	kept := 0
	for l := range n {
		for steps := 0; ; steps++ {
			m := l // the block l … m is separate
			for m < n-1 && math.Abs(e[m]) > 0x1p-53*(math.Abs(d[m])+math.Abs(d[m+1])) {
				m++
			}
			if m == l {
				break
			}
			if steps == 50 {
				return errors.New("the eigenvalues do not converge")
			}
			s := stepQL(d, e, l, m)
			sweeps, kept = append(sweeps, s), kept+len(s.C)
			if kept >= manyRotations {
				z.Rotate(sweeps)
				sweeps, kept = sweeps[:0], 0
			}
		}
	}
	z.Rotate(sweeps)
	return nil
}

// stepQL is one step of QL with Wilkinson's shift on the block l … m. It returns its
// rotations.
func stepQL(d, e []float64, l, m int) kernels.Sweep {
	cosines, sines := make([]float64, m-l), make([]float64, m-l)
	g := (d[l+1] - d[l]) / (2 * e[l])
	g = d[m] - d[l] + e[l]/(g+math.Copysign(math.Hypot(g, 1), g))
	s, c, p := 1., 1., 0.
	for i := m - 1; i >= l; i-- {
		f, b := s*e[i], c*e[i]
		r := math.Hypot(f, g)
		e[i+1] = r
		if r == 0 { // the block splits here
			d[i+1] -= p
			e[m] = 0
			return kernels.Sweep{First: i + 1, C: cosines[i+1-l:], S: sines[i+1-l:]}
		}
		s, c = f/r, g/r
		g = d[i+1] - p
		r = (d[i]-g)*s + 2*c*b
		p = s * r
		d[i+1] = g + p
		g = c*r - b
		cosines[i-l], sines[i-l] = c, s
	}
	d[l] -= p
	e[l], e[m] = g, 0
	return kernels.Sweep{First: l, C: cosines, S: sines}
}
