package kernels

import "math"

// SymmetricTimes sets y = A·x for a symmetric A [n,n], whose rows are lda apart and of
// which it reads the lower triangle once.
func SymmetricTimes(n int, a []float64, lda int, x, y []float64) {
	if n == 0 {
		return
	}
	_, x, y = a[(n-1)*lda+n-1], x[:n], y[:n]
	clear(y)
	if n < 4 {
		for i := range n {
			lowerRow(a[i*lda:i*lda+i+1], x, y)
		}
		return
	}
	rows := chosen().f64.symmetricRows
	var sums [4]float64
	i := 0
	for ; i+4 <= n; i += 4 {
		if i > 0 {
			rows(&a[i*lda], lda, &x[0], &y[0], &x[i], &sums[0], i/4)
		}
		at, by, to := i*lda+i, x[i:i+4], y[i:i+4]
		r0, r1, r2, r3 := a[at], a[at+lda:at+lda+2], a[at+2*lda:at+2*lda+3], a[at+3*lda:at+3*lda+4]
		to[0] += sums[0] + r0*by[0] + r1[0]*by[1] + (r2[0]*by[2] + r3[0]*by[3])
		to[1] += sums[1] + r1[0]*by[0] + r1[1]*by[1] + (r2[1]*by[2] + r3[1]*by[3])
		to[2] += sums[2] + r2[0]*by[0] + r2[1]*by[1] + (r2[2]*by[2] + r3[2]*by[3])
		to[3] += sums[3] + r3[0]*by[0] + r3[1]*by[1] + (r3[2]*by[2] + r3[3]*by[3])
	}
	if i == n {
		return
	}
	// Four rows again, of which the first were taken already.
	var left [4]float64
	first := n - 4
	copy(left[i-first:], x[i:])
	columns := first / 4 * 4
	if columns > 0 {
		rows(&a[first*lda], lda, &x[0], &y[0], &left[0], &sums[0], columns/4)
	}
	for ; i < n; i++ {
		lowerRow(a[i*lda+columns:i*lda+i+1], x[columns:], y[columns:])
		if columns > 0 {
			y[i] += sums[i-first]
		}
	}
}

// lowerRow adds what a row of a triangle, up to the diagonal, contributes to A·x.
func lowerRow(row, x, y []float64) {
	i := len(row) - 1
	sum := row[i] * x[i]
	for j, v := range row[:i] {
		sum += v * x[j]
		y[j] += v * x[i]
	}
	y[i] += sum
}

// RowsTimes sets y_i = Σ_j a_ij·x_j for the rows of A, lda apart and as long as x.
func RowsTimes(a []float64, lda int, x, y []float64) {
	n, i := len(x), 0
	if whole := n / 4; whole > 0 {
		for ; i+4 <= len(y); i += 4 {
			_ = a[(i+3)*lda+n-1]
			chosen().f64.rowsTimes(&a[i*lda], lda, &x[0], &y[i], whole)
			for j := 4 * whole; j < n; j++ {
				for r := range 4 {
					y[i+r] += a[(i+r)*lda+j] * x[j]
				}
			}
		}
	}
	for ; i < len(y); i++ {
		y[i] = Dot(x, a[i*lda:])
	}
}

// TimesRows adds Σ_i v_i·a_ij to y_j for the rows of A, lda apart and as long as y.
func TimesRows(v, a []float64, lda int, y []float64) {
	n, i := len(y), 0
	if whole := n / 4; whole > 0 {
		for ; i+4 <= len(v); i += 4 {
			_ = a[(i+3)*lda+n-1]
			chosen().f64.timesRows(&a[i*lda], lda, &y[0], &v[i], whole)
			for j := 4 * whole; j < n; j++ {
				for r, by := range v[i : i+4] {
					y[j] += by * a[(i+r)*lda+j]
				}
			}
		}
	}
	for ; i < len(v); i++ {
		BLAS{}.Daxpy(n, v[i], a[i*lda:], 1, y, 1)
	}
}

// SecularTerms returns Σ squares_i/(poles_i − x), the derivative of that by x, and how
// large the error of the first can be, in units of the rounding of 1. All terms have the
// same sign. They are added from the first to the last, or from the last if backwards
// is set: the last ones should be the largest.
func SecularTerms(poles, squares []float64, backwards bool, x float64) (sum, slope, size float64) {
	n := len(poles)
	whole := n / 4
	first, past, step := n-4*whole, n, 4
	if backwards {
		first, past, step = 0, 4*whole, -4
	}
	squares = squares[:n]
	for i := range n - 4*whole { // the first of them, that is
		if backwards {
			i = n - 1 - i
		}
		t := 1 / (poles[i] - x)
		u := squares[i] * t
		sum += u
		slope += u * t
		size += sum
	}
	if whole > 0 {
		at := first
		if backwards {
			at = past - 4
		}
		var sums [3]float64
		chosen().f64.secularTerms(&poles[at], &squares[at], step, whole, x, &sums[0])
		sum, slope, size = sum+sums[0], slope+sums[1], size+sums[2]
	}
	return sum, slope, math.Abs(size)
}

// SecularWidth is the number of columns that Quotients takes.
const SecularWidth = 16

// Quotients multiplies each of SecularWidth products by
// Π_j rows_ji/(poles_i − others_j), for rows that are ld apart.
func Quotients(products, rows []float64, ld int, poles, others []float64) {
	if n := len(others); n > 0 {
		_, _, _ = products[SecularWidth-1], poles[SecularWidth-1], rows[(n-1)*ld+SecularWidth-1]
		chosen().f64.quotients(&products[0], &rows[0], ld, &poles[0], &others[0], n)
	}
}
