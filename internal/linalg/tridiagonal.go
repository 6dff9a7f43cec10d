package linalg

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/lapack/gonum"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// tridiagonal is T = QᵀAQ of a symmetric A, with Q = H_{n−1} … H_1 for reflections
// H_i = I − tau_i·v_i·v_iᵀ. Row i of reflections begins with v_i, which has i elements.
type tridiagonal struct {
	n           int
	d, e        []float64 // the diagonal [n], and what is beside it [n−1]
	tau         []float64 // [n]; tau_0 is not used
	reflections []float64 // [n, n]
}

// reduced is how many rows are reduced before the others change by a product of
// matrices; turned is how many reflections turn turnedRows vectors at a time.
const (
	reduced    = 32
	turned     = 64
	turnedRows = 96
)

// tridiagonalise reduces A [n, n], of which it reads the lower triangle, from its last
// row to its first, and keeps the reflections in its place. It is LAPACK's dsytrd: each
// row needs a product with all of A, the changes of which wait for the end of a block
// of rows.
func tridiagonalise(n int, a []float64) *tridiagonal {
	t := &tridiagonal{n, make([]float64, n), make([]float64, n-1), make([]float64, n), a}
	var lapack gonum.Implementation
	var b kernels.BLAS
	w := make([]float64, reduced*n) // A changes by −Σ v·wᵀ + w·vᵀ
	// Of the rows that are reduced, an element of each v and w, or its product with v.
	fromV, fromW := make([]float64, reduced), make([]float64, reduced)
	for last := n; last > 1; {
		first := max(last-reduced, 1)
		for i := last - 1; i >= first; i-- {
			row := a[i*n : i*n+i+1]
			vs, ws, count := a[(i+1)*n:], w[(i+1-first)*n:], last-1-i
			for j := range count {
				fromV[j], fromW[j] = -vs[j*n+i], -ws[j*n+i]
			}
			kernels.TimesRows(fromV[:count], ws, n, row)
			kernels.TimesRows(fromW[:count], vs, n, row)
			t.d[i] = row[i]
			t.e[i-1], t.tau[i] = lapack.Dlarfg(i, row[i-1], row[:i-1], 1)
			v, wi := row[:i], w[(i-first)*n:(i-first)*n+i]
			v[i-1] = 1
			if t.tau[i] == 0 {
				clear(wi)
				continue
			}
			kernels.SymmetricTimes(i, a, n, v, wi)
			kernels.RowsTimes(ws, n, v, fromV[:count])
			kernels.RowsTimes(vs, n, v, fromW[:count])
			for j := range count {
				fromV[j], fromW[j] = -fromV[j], -fromW[j]
			}
			kernels.TimesRows(fromV[:count], vs, n, wi)
			kernels.TimesRows(fromW[:count], ws, n, wi)
			b.Dscal(i, t.tau[i], wi, 1)
			b.Daxpy(i, -t.tau[i]/2*kernels.Dot(wi, v), v, 1, wi, 1)
		}
		b.Dsyr2k(blas.Lower, blas.Trans, first, last-first, -1, a[first*n:], n, w, n, 1, a, n)
		last = first
	}
	t.d[0] = a[0]
	return t
}

// turn makes of eigenvectors of T, in the rows of x [n, n], those of A. It overwrites
// room [n, n].
func (t *tridiagonal) turn(x, room []float64) {
	var b kernels.BLAS
	n, v := t.n, t.reflections
	blocks := (n - 1 + turned - 1) / turned
	block := func(at int) (first, last, width int) {
		first = 1 + at*turned
		last = min(first+turned, n)
		return first, last, last - 1
	}
	// H_first … H_{last−1} = I − VᵀFV with an upper triangular F. Room has FV.
	parallel.Each(workersOf(n), blocks, func(at int) {
		first, last, width := block(at)
		count := last - first
		products, factor := make([]float64, count*count), make([]float64, count*count)
		for i := first; i < last; i++ {
			clear(v[i*n+i : i*n+width])
		}
		b.Dsyrk(blas.Lower, blas.NoTrans, count, width, 1, v[first*n:], n, 0, products, count)
		for k := range count {
			tau := t.tau[first+k]
			for i := range k {
				var sum float64
				for j := i; j < k; j++ {
					sum += factor[i*count+j] * products[k*count+j]
				}
				factor[i*count+k] = -tau * sum
			}
			factor[k*count+k] = tau
		}
		b.Dgemm(blas.NoTrans, blas.NoTrans, count, width, count, 1, factor, count, v[first*n:], n, 0, room[first*n:], n)
	})
	// Some rows at a time stay in the second-level cache.
	parallel.Each(workersOf(n), (n+turnedRows-1)/turnedRows, func(at int) {
		from := at * turnedRows
		m := min(turnedRows, n-from)
		products, part := make([]float64, m*turned), x[from*n:]
		for at := range blocks {
			first, last, width := block(at)
			b.Dgemm(blas.NoTrans, blas.Trans, m, last-first, width, 1, part, n, v[first*n:], n, 0, products, last-first)
			b.Dgemm(blas.NoTrans, blas.NoTrans, m, width, last-first, -1, products, last-first, room[first*n:], n, 1, part, n)
		}
	})
}
