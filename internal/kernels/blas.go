package kernels

import (
	"sync"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// BLAS is gonum's, with the matrix products of float64 computed by the chosen
// kernels and, if they are large, on all cores. An element of a result depends
// neither on the number of cores nor on other elements.
type BLAS struct {
	gonum.Implementation
}

// UseBLAS makes gonum's factorisations use BLAS. Call it before one of a large
// matrix; later calls do nothing.
var UseBLAS = sync.OnceFunc(func() { blas64.Use(BLAS{}) })

// scale multiplies the wanted part of C by beta and reports whether a product must
// be added to it; otherwise the product replaces it.
func scale(m, n int, beta float64, c []float64, ldc int, wanted part) bool {
	if beta == 1 || beta == 0 {
		return beta == 1
	}
	for i := range m {
		from, to := 0, n
		switch wanted {
		case upper:
			from = i
		case lower:
			to = i + 1
		}
		for j := from; j < to; j++ {
			c[i*ldc+j] *= beta
		}
	}
	return true
}

// Dgemm computes C = alpha·op(A)·op(B) + beta·C.
func (b BLAS) Dgemm(tA, tB blas.Transpose, m, n, k int, alpha float64, x []float64, ldx int, y []float64, ldy int, beta float64, c []float64, ldc int) {
	if m*n*k < 1<<12 || alpha == 0 { // too small to be worth packing
		b.Implementation.Dgemm(tA, tB, m, n, k, alpha, x, ldx, y, ldy, beta, c, ldc)
		return
	}
	add := scale(m, n, beta, c, ldc, all)
	chosen().f64.contract(m, n, k, alpha, viewOf(tA, x, ldx), viewOf(transposed(tB), y, ldy), add, c, ldc, all, workersFor(m*n*k))
}

func partOf(ul blas.Uplo) part {
	if ul == blas.Upper {
		return upper
	}
	return lower
}

// Dsyrk computes a triangle of C = alpha·op(A)·op(A)ᵀ + beta·C.
func (b BLAS) Dsyrk(ul blas.Uplo, t blas.Transpose, n, k int, alpha float64, x []float64, ldx int, beta float64, c []float64, ldc int) {
	if n*n*k < 1<<12 || alpha == 0 {
		b.Implementation.Dsyrk(ul, t, n, k, alpha, x, ldx, beta, c, ldc)
		return
	}
	a := viewOf(t, x, ldx)
	add := scale(n, n, beta, c, ldc, partOf(ul))
	chosen().f64.contract(n, n, k, alpha, a, a, add, c, ldc, partOf(ul), workersFor(n*n*k/2))
}

// Dsyr2k computes a triangle of C = alpha·op(A)·op(B)ᵀ + alpha·op(B)·op(A)ᵀ +
// beta·C.
func (b BLAS) Dsyr2k(ul blas.Uplo, t blas.Transpose, n, k int, alpha float64, x []float64, ldx int, y []float64, ldy int, beta float64, c []float64, ldc int) {
	if n*n*k < 1<<12 || alpha == 0 {
		b.Implementation.Dsyr2k(ul, t, n, k, alpha, x, ldx, y, ldy, beta, c, ldc)
		return
	}
	// One product with [op(A) op(B)] and [op(B) op(A)].
	p, q := viewOf(t, x, ldx), viewOf(t, y, ldy)
	left, right := p, q
	left.cols, left.then, right.cols, right.then = k, &q, k, &p
	add := scale(n, n, beta, c, ldc, partOf(ul))
	chosen().f64.contract(n, n, 2*k, alpha, left, right, add, c, ldc, partOf(ul), workersFor(n*n*k))
}

// Dtrsm solves op(A)·X = alpha·B or X·op(A) = alpha·B for a triangular A, in
// place of B. It halves A until a part is small, and multiplies by the rest.
func (b BLAS) Dtrsm(s blas.Side, ul blas.Uplo, tA blas.Transpose, d blas.Diag, m, n int, alpha float64, a []float64, lda int, x []float64, ldx int) {
	order := m
	if s == blas.Right {
		order = n
	}
	const small = 32
	if order <= small || alpha == 0 {
		b.leaf(s, ul, tA, d, m, n, alpha, a, lda, x, ldx)
		return
	}
	h := order / 2 / small * small
	h = max(h, small)
	// The two parts of A on the diagonal, and the part between them.
	first, last, off := a, a[h*lda+h:], a[h:]
	if ul == blas.Lower {
		off = a[h*lda:]
	}
	scale(m, n, alpha, x, ldx, all)
	forward := (ul == blas.Lower) == (tA == blas.NoTrans) // as far as the left side is concerned
	if s == blas.Left {
		top, bottom := x, x[h*ldx:]
		if forward {
			b.Dtrsm(s, ul, tA, d, h, n, 1, first, lda, top, ldx)
			b.Dgemm(tA, blas.NoTrans, m-h, n, h, -1, off, lda, top, ldx, 1, bottom, ldx)
			b.Dtrsm(s, ul, tA, d, m-h, n, 1, last, lda, bottom, ldx)
		} else {
			b.Dtrsm(s, ul, tA, d, m-h, n, 1, last, lda, bottom, ldx)
			b.Dgemm(tA, blas.NoTrans, h, n, m-h, -1, off, lda, bottom, ldx, 1, top, ldx)
			b.Dtrsm(s, ul, tA, d, h, n, 1, first, lda, top, ldx)
		}
		return
	}
	left, right := x, x[h:]
	if forward {
		b.Dtrsm(s, ul, tA, d, m, n-h, 1, last, lda, right, ldx)
		b.Dgemm(blas.NoTrans, tA, m, h, n-h, -1, right, ldx, off, lda, 1, left, ldx)
		b.Dtrsm(s, ul, tA, d, m, h, 1, first, lda, left, ldx)
	} else {
		b.Dtrsm(s, ul, tA, d, m, h, 1, first, lda, left, ldx)
		b.Dgemm(blas.NoTrans, tA, m, n-h, h, -1, left, ldx, off, lda, 1, right, ldx)
		b.Dtrsm(s, ul, tA, d, m, n-h, 1, last, lda, right, ldx)
	}
}

// leaf solves with a small A for parts of B in parallel.
func (b BLAS) leaf(s blas.Side, ul blas.Uplo, tA blas.Transpose, d blas.Diag, m, n int, alpha float64, a []float64, lda int, x []float64, ldx int) {
	const columns = 64
	if s == blas.Left {
		parallel.Each(workersFor(8*m*m*n), (n+columns-1)/columns, func(at int) {
			j := at * columns
			b.Implementation.Dtrsm(s, ul, tA, d, m, min(columns, n-j), alpha, a, lda, x[j:], ldx)
		})
		return
	}
	parallel.Each(workersFor(8*m*n*n), (m+columns-1)/columns, func(at int) {
		i := at * columns
		b.Implementation.Dtrsm(s, ul, tA, d, min(columns, m-i), n, alpha, a, lda, x[i*ldx:], ldx)
	})
}

// Dot returns Σ x·y in float64, in which products of two float32s are exact. The
// same numbers give the same result in both types.
func Dot[T Real](x, y []T) (sum float64) {
	y = y[:len(x)]
	whole := len(x) / 32
	switch x := any(x).(type) {
	case []float32:
		if whole > 0 {
			sum = chosen().f64.dot32(&x[0], &any(y).([]float32)[0], whole)
		}
	case []float64:
		if whole > 0 {
			sum = chosen().f64.dot64(&x[0], &any(y).([]float64)[0], whole)
		}
	}
	for i := 32 * whole; i < len(x); i++ {
		sum += float64(x[i]) * float64(y[i])
	}
	return sum
}

// Rows divides the number of rows that Below and AtLeast take.
const Rows = 32

// Below weighs x [n] by w_j = Σ_c q_c·p_cj, with q [C] and p [C, ·] whose rows
// are ld apart. It returns the sum of the x_j·w_j that are less than
// low − band·w_j. For the others, the bit j%8 of near[j/8] is set if they are at
// most high + band·w_j. NaN counts for neither.
func Below(x []float32, p []float64, ld int, q []float64, low, high, band float64, near []byte) (sum float64) {
	n := len(x)
	if n == 0 || n%Rows != 0 || len(q) == 0 || len(p) < (len(q)-1)*ld+n || len(near) < n/8 {
		panic("kernels: a matrix is too short for its sizes")
	}
	return chosen().f64.below(&x[0], &p[0], &q[0], len(q), ld, n, low, high, band, &near[0])
}

// AtLeast sets the bit i%8 of bits[i/8] if x[i] ≥ floor, and clears it otherwise,
// also for NaN.
func AtLeast(x []float32, floor float32, bits []byte) {
	if len(x) == 0 || len(x)%Rows != 0 || len(bits) < len(x)/8 {
		panic("kernels: a matrix is too short for its sizes")
	}
	chosen().f64.atLeast(&x[0], floor, &bits[0], len(x))
}

// Prefetch asks for a row that will be read soon, where a set can.
func Prefetch(row []float32) {
	if f := chosen().f64.prefetch; f != nil && len(row) > 0 {
		f(&row[0], (len(row)+15)/16)
	}
}
