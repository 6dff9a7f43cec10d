package linalg

import (
	"cmp"
	"errors"
	"math"
	"runtime"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/lapack"
	"gonum.org/v1/gonum/lapack/gonum"
	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
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

// conquest finds the eigenvectors of a symmetric tridiagonal matrix by divide and
// conquer (Cuppen 1981; Gu and Eisenstat 1995), as LAPACK's dstedc does. A range of
// its rows and columns is a part; its halves, solved alone, are joined by one change of
// rank 1.
type conquest struct {
	n int
	// d is the diagonal; of a part that is solved it has the eigenvalues, and the same
	// rows and columns of y have the eigenvectors, in rows. sorted has these rows by
	// ascending eigenvalues.
	d, e, y []float64
	sorted  []int
	// rows and turns are room for a part's vectors, in groups, and for what turns them
	// into those of the whole.
	rows, turns []float64
}

func newConquest(n int, d, e []float64) *conquest {
	return &conquest{n, d, e, make([]float64, n*n), make([]int, n), make([]float64, n*n), make([]float64, n*n)}
}

// small is the size of a part that QL steps solve.
const small = 32

// solve solves the part from … to.
func (c *conquest) solve(from, to int) error {
	n := to - from
	if n <= small {
		return c.solveSmall(from, to)
	}
	half := from + n/2
	coupling := c.e[half-1]
	c.d[half-1] -= math.Abs(coupling)
	c.d[half] -= math.Abs(coupling)
	var errs [2]error
	parallel.Each(min(2, workersOf(n)), 2, func(at int) {
		if at == 0 {
			errs[0] = c.solve(from, half)
		} else {
			errs[1] = c.solve(half, to)
		}
	})
	if err := cmp.Or(errs[0], errs[1]); err != nil {
		return err
	}
	c.join(from, half, to, coupling)
	return nil
}

// workersOf is how many goroutines work on a part of n rows.
func workersOf(n int) int { return min(runtime.GOMAXPROCS(0), 1+n*n>>14) }

func (c *conquest) solveSmall(from, to int) error {
	n := to - from
	z, work := make([]float64, n*n), make([]float64, max(1, 2*n-2))
	if !(gonum.Implementation{}).Dsteqr(lapack.EVTridiag, n, c.d[from:to], slices.Clone(c.e[from:max(from, to-1)]), z, n, work) {
		return errors.New("the eigenvalues do not converge")
	}
	for i := range n {
		c.sorted[from+i] = from + i
		for j := range n {
			c.y[(from+i)*c.n+from+j] = z[j*n+i]
		}
	}
	return nil
}

// join makes of the eigenvectors of two parts those of both together with coupling
// between them: |coupling|·u·uᵀ is added, where u has two elements that are not 0.
func (c *conquest) join(from, half, to int, coupling float64) {
	n, d, y := c.n, c.d, c.y
	// With the parts' eigenvectors, that is the diagonal d and rho·z·zᵀ, |z| = 1.
	z := make([]float64, n)
	for i := from; i < half; i++ {
		z[i] = y[i*n+half-1] / math.Sqrt2
	}
	for i := half; i < to; i++ {
		z[i] = math.Copysign(1, coupling) * y[i*n+half] / math.Sqrt2
	}
	rho := 2 * math.Abs(coupling)
	slices.SortStableFunc(c.sorted[from:to], func(a, b int) int { return cmp.Compare(d[a], d[b]) })

	kept, still := c.deflate(from, half, to, rho, z)
	k := len(kept)
	if k > 0 {
		c.turnKept(from, half, to, kept, still, rho, z)
	}
	for i := from; i < to; i++ {
		c.sorted[i] = i
	}
	slices.SortStableFunc(c.sorted[from:to], func(a, b int) int { return cmp.Compare(d[a], d[b]) })
}

// deflate returns which rows the change turns, by ascending eigenvalues, and which
// stay as they are: those with a z of nearly 0, and of two rows with nearly the same
// eigenvalue one, after a rotation that makes its z 0.
func (c *conquest) deflate(from, half, to int, rho float64, z []float64) (kept, still []int) {
	n, d, y := c.n, c.d, c.y
	var largest float64
	for i := from; i < to; i++ {
		largest = max(largest, math.Abs(d[i]), math.Abs(z[i]))
	}
	tolerance := 8 * 0x1p-53 * largest
	previous := -1
	for _, next := range c.sorted[from:to] {
		if rho*math.Abs(z[next]) <= tolerance {
			still = append(still, next)
			continue
		}
		if previous < 0 {
			previous = next
			continue
		}
		length := math.Hypot(z[previous], z[next])
		cosine, sine := z[next]/length, -z[previous]/length
		if math.Abs((d[next]-d[previous])*cosine*sine) > tolerance {
			kept = append(kept, previous)
			previous = next
			continue
		}
		z[next], z[previous] = length, 0
		a, b := y[previous*n+from:previous*n+to], y[next*n+from:next*n+to]
		for j, v := range a {
			a[j], b[j] = cosine*v+sine*b[j], cosine*b[j]-sine*v
		}
		cc, ss := cosine*cosine, sine*sine
		d[previous], d[next] = d[previous]*cc+d[next]*ss, d[previous]*ss+d[next]*cc
		still = append(still, previous)
		previous = next
	}
	if previous >= 0 {
		kept = append(kept, previous)
	}
	return kept, still
}

// turnKept solves what the kept rows are part of, and puts their eigenvectors and
// eigenvalues first, then the others.
func (c *conquest) turnKept(from, half, to int, kept, still []int, rho float64, z []float64) {
	n, k := c.n, len(kept)
	corner := from*n + from
	poles, weights := make([]float64, k), make([]float64, k)
	for i, row := range kept {
		poles[i], weights[i] = c.d[row], z[row]
	}
	// Rows that are 0 in one half save a part of the product: first those of the first
	// half, then those of both, which a rotation made, then those of the second.
	var groups [3][]int
	for i, row := range kept {
		first, second := !zeros(c.y[row*n+from:row*n+half]), !zeros(c.y[row*n+half:row*n+to])
		switch {
		case !second:
			groups[0] = append(groups[0], i)
		case first:
			groups[1] = append(groups[1], i)
		default:
			groups[2] = append(groups[2], i)
		}
	}
	place := slices.Concat(groups[:]...)
	for at, i := range place {
		copy(c.rows[corner+at*n:][:to-from], c.y[kept[i]*n+from:])
	}
	others := make([]float64, len(still))
	for at, row := range still {
		copy(c.rows[corner+(k+at)*n:][:to-from], c.y[row*n+from:])
		others[at] = c.d[row]
	}

	secular(rho, poles, weights, c.d[from:from+k], c.turns[corner:], n, place)
	copy(c.d[from+k:to], others)

	var b kernels.BLAS
	left, right := len(groups[0])+len(groups[1]), len(groups[1])+len(groups[2])
	b.Dgemm(blas.NoTrans, blas.NoTrans, k, half-from, left, 1, c.turns[corner:], n, c.rows[corner:], n, 0, c.y[corner:], n)
	skip, second := k-right, half-from
	b.Dgemm(blas.NoTrans, blas.NoTrans, k, to-half, right, 1, c.turns[corner+skip:], n, c.rows[corner+skip*n+second:], n, 0, c.y[corner+second:], n)
	for at := range still {
		copy(c.y[corner+(k+at)*n:][:to-from], c.rows[corner+(k+at)*n:])
	}
}

func zeros(x []float64) bool {
	for _, v := range x {
		if v != 0 {
			return false
		}
	}
	return true
}

// ascending returns the eigenvalues of the whole and their vectors, in rows.
func (c *conquest) ascending() (values, vectors []float64) {
	values = make([]float64, c.n)
	for to, row := range c.sorted {
		values[to] = c.d[row]
		copy(c.rows[to*c.n:(to+1)*c.n], c.y[row*c.n:])
	}
	return values, c.rows
}
