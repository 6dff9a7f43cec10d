package kernels

import (
	"runtime"
	"sync"

	"gonum.org/v1/gonum/blas"

	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// tiles contract packed matrices of float64 in tiles of rows by up to float64Vectors
// vectors of columns. They are listed by the vectors of B.
type tiles struct {
	rows int
	of64 [float64Vectors + 1]tileOf[float64]
	of32 [float64Vectors + 1]tileOf[float32] // the same for a B in float32
}

// float64Kernels contract packed matrices of float64 with vectors of width columns.
type float64Kernels struct {
	tiles
	width int
	// low are tiles with fewer rows, for matrices with few rows; the fewest first. They
	// give the same bits.
	low []tiles
	// four transposes four rows of 4·n columns.
	four func(dst *float64, ldd int, src *float64, lds, n int)
	// copyRows copies n rows of 4·fours columns.
	copyRows func(dst *float64, ldd int, src *float64, lds, fours, n int)
	// symmetricRows adds vᵀA to y and sets sums to A·x, for four rows of A and 4·n
	// columns; rowsTimes does only the latter, timesRows the former.
	symmetricRows func(a *float64, lda int, x, y, v, sums *float64, n int)
	rowsTimes     func(a *float64, lda int, x, sums *float64, n int)
	timesRows     func(a *float64, lda int, y, v *float64, n int)
	// secularTerms is SecularTerms for 4·n poles, of which each four are step numbers
	// after those before. It sets three sums.
	secularTerms func(poles, squares *float64, step, n int, x float64, sums *float64)
	// quotients is Quotients for 16 columns.
	quotients func(products, rows *float64, ld int, poles, others *float64, n int)
	// dot32 and dot64 return Σ x·y of 32·n.
	dot32 func(x, y *float32, n int) float64
	dot64 func(x, y *float64, n int) float64
	// below is Below for n rows, a multiple of 32.
	below func(x *float32, p, q *float64, classes, ld, n int, low, high, band float64, near *byte) float64
	// atLeast is AtLeast for n numbers, a multiple of 32.
	atLeast func(x *float32, floor float32, bits *byte, n int)
	// prefetch asks for cache lines; nil does nothing.
	prefetch func(row *float32, lines int)
	// bytes is the product of a coarse Bank; nil where float32 is as fast.
	bytes *byteKernels
}

const float64Vectors = 3

// tileOf computes C = alpha·Σ_p A[p]·B[p], with packed A [k, rows] and B [k, ·],
// k > 0. It adds that to what C [rows, ·] holds if add is not 0.
type tileOf[T Real] = func(a *float64, b *T, c *float64, k, ldc int, alpha float64, add int)

func tilesOf[T Real](by *tiles) *[float64Vectors + 1]tileOf[T] {
	if of, ok := any(&by.of64).(*[float64Vectors + 1]tileOf[T]); ok {
		return of
	}
	return any(&by.of32).(*[float64Vectors + 1]tileOf[T])
}

// tilesFor returns the tiles for a matrix of m rows.
func (w *float64Kernels) tilesFor(m int) *tiles {
	for i := range w.low {
		if by := &w.low[i]; m <= by.rows {
			return by
		}
	}
	return &w.tiles
}

// view is a matrix whose element i, p is data[i·row + p·col]. If then is not nil, it has
// the columns from cols on.
type view struct {
	data     []float64
	row, col int
	cols     int
	then     *view
}

func viewOf(t blas.Transpose, data []float64, stride int) view {
	if t == blas.NoTrans {
		return view{data: data, row: stride, col: 1}
	}
	return view{data: data, row: 1, col: stride}
}

func transposed(t blas.Transpose) blas.Transpose {
	if t == blas.NoTrans {
		return blas.Trans
	}
	return blas.NoTrans
}

// part says which elements of a product are wanted.
type part int

const (
	all part = iota
	upper
	lower
)

// holds reports whether all and whether any elements of a tile are wanted.
func (p part) holds(i, j, rows, cols int) (every, any bool) {
	switch p {
	case upper:
		return j >= i+rows-1, j+cols-1 >= i
	case lower:
		return j+cols-1 <= i, j <= i+rows-1
	}
	return true, true
}

// panels is a matrix [n, k] packed by depth columns and, within these, by
// panels of rows: panel after panel, each as [depth, rows], filled up with
// zeros.
type panels[T Real] struct {
	data   []T
	n, k   int
	rows   int // of a panel but the last
	padded int // n, filled up
	// ends says for each panel of a triangular matrix up to which column it has numbers
	// that are not 0; nil means k.
	ends []int
}

// depth is how much of the sums one pass adds: two panels of it stay in the
// first-level cache.
const depth = 192

// panel returns a panel of the depth columns from p on, and how many rows and
// rows with zeros it has.
func (x *panels[T]) panel(i, p int) (data []T, rows, padded int) {
	rows, padded = min(x.rows, x.n-i), min(x.rows, x.padded-i)
	return x.data[p*x.padded+i*min(depth, x.k-p):], rows, padded
}

// end is how many of the first k columns from p on have numbers that are not 0 in a panel.
func (x *panels[T]) end(i, p, k int) int {
	if x.ends == nil {
		return k
	}
	return min(k, x.ends[i/x.rows]-p)
}

// findEnds finds the ends of a triangular matrix, whose products then take about half of
// the time. Each column is part of some panel, so that a row with a number that is not
// finite has one in its product; in other matrices a column of zeros would hide it.
func (x *panels[T]) findEnds() {
	if x.n != x.k {
		return
	}
	for i := 0; i < x.n; i += x.rows {
		end := 0
		for p := 0; p < x.k; p += depth {
			panel, _, padded := x.panel(i, p)
			for q, v := range panel[:padded*min(depth, x.k-p)] {
				if v != 0 {
					end = max(end, p+q/padded+1)
				}
			}
		}
		if end != min(i+x.rows, x.n) {
			x.ends = nil
			return
		}
		x.ends = append(x.ends, end)
	}
}

// pack packs x, whose last panel has rows up to a multiple of unit.
func (w *float64Kernels) pack(to *panels[float64], x view, n, k, rows, unit, workers int) {
	padded := (n + unit - 1) / unit * unit
	if size := padded * k; cap(to.data) < size {
		to.data = make([]float64, size)
	}
	*to = panels[float64]{to.data[:padded*k], n, k, rows, padded, nil}
	const together = 8 // panels
	parallel.Each(workers, (n+together*rows-1)/(together*rows), func(at int) {
		i := at * together * rows
		for p := 0; p < k; p += depth {
			panel, _, _ := to.panel(i, p)
			w.packPanels(panel, x, i, min(i+together*rows, n), rows, unit, p, min(depth, k-p))
		}
	})
}

// packPanels packs k columns of x from p on, of the rows from … to, in panels of rows.
func (w *float64Kernels) packPanels(panels []float64, x view, from, to, rows, unit, p, k int) {
	step := k
	if x.row == 1 {
		step = 16 // of them, next panels find in the cache what this one leaves of their lines
	}
	for q := 0; q < k; q += step {
		for i := from; i < to; i += rows {
			count := min(rows, to-i)
			padded := (count + unit - 1) / unit * unit
			w.packPanel(panels[(i-from)*k+q*padded:], padded, x, i, count, p+q, min(step, k-q))
		}
	}
}

// packPanel packs k columns of x from p on, of some rows from i on.
func (w *float64Kernels) packPanel(panel []float64, padded int, x view, i, rows, p, k int) {
	if x.then != nil {
		if first := min(max(x.cols-p, 0), k); first < k {
			w.packPanel(panel[first*padded:], padded, *x.then, i, rows, p+first-x.cols, k-first)
			if k = first; k == 0 {
				return
			}
		}
	}
	data, done := x.data[i*x.row+p*x.col:], 0 // rows
	switch fours := k / 4; {
	case x.row == 1:
		if done = rows &^ 3; done > 0 && w.copyRows != nil {
			_, _ = panel[(k-1)*padded+done-1], data[(k-1)*x.col+done-1]
			w.copyRows(&panel[0], padded, &data[0], x.col, done/4, k)
			break
		}
		done = rows
		for p := range k {
			copy(panel[p*padded:p*padded+rows], data[p*x.col:])
		}
	case x.col == 1 && w.four != nil && fours > 0:
		for ; done+4 <= rows; done += 4 {
			_, _ = panel[(4*fours-1)*padded+done+3], data[(done+3)*x.row+4*fours-1]
			w.four(&panel[done], padded, &data[done*x.row], x.row, fours)
			for i := done; i < done+4; i++ {
				for p := 4 * fours; p < k; p++ {
					panel[p*padded+i] = data[i*x.row+p]
				}
			}
		}
	}
	for i := done; i < padded; i++ {
		for p := range k {
			panel[p*padded+i] = 0
			if i < rows {
				panel[p*padded+i] = data[i*x.row+p*x.col]
			}
		}
	}
}

// contractions and blocks hold room for a packed matrix and for a block of one.
var (
	contractions = sync.Pool{New: func() any { return new(panels[float64]) }}
	blocks       = sync.Pool{New: func() any { return new([]float64) }}
)

// A goroutine computes blockRows rows of C at a time: a block of A of that many rows and
// of the depth stays in the second-level cache. If there are fewer blocks than
// goroutines, it computes blockCols columns of these, or a few times that.
const (
	blockRows = 96
	blockCols = 192
)

// contract adds alpha·A·Bᵀ, A [m,k] and B [n,k], to the wanted part of C [m,n], or
// sets it.
func (w *float64Kernels) contract(m, n, k int, alpha float64, a, b view, add bool, c []float64, ldc int, wanted part, workers int) {
	right := contractions.Get().(*panels[float64])
	defer contractions.Put(right)
	w.packRight(right, b, n, k, workers)
	contractRight(w, &w.tiles, right, m, alpha, a, add, c, ldc, wanted, workers)
}

func (w *float64Kernels) packRight(to *panels[float64], b view, n, k, workers int) {
	w.pack(to, b, n, k, float64Vectors*w.width, w.width, workers)
}

// contractRight is contract for a packed B.
func contractRight[T Real](w *float64Kernels, by *tiles, b *panels[T], m int, alpha float64, a view, add bool, c []float64, ldc int, wanted part, workers int) {
	n := b.n
	_ = c[(m-1)*ldc+n-1]
	rows, cols := (m+blockRows-1)/blockRows, (n+blockCols-1)/blockCols
	parts := 1
	if workers > 1 {
		parts = min(cols, (4*workers+rows-1)/rows)
	}
	width := (cols + parts - 1) / parts * blockCols
	parallel.Each(workers, rows*parts, func(at int) {
		i, j := at/parts*blockRows, at%parts*width
		i1, j1 := min(i+blockRows, m), min(j+width, n)
		if _, any := wanted.holds(i, j, i1-i, j1-j); j < j1 && any {
			multiplyBlock(w, by, a, b, i, i1, j, j1, alpha, add, c, ldc, wanted)
		}
	})
}

func multiplyBlock[T Real](w *float64Kernels, by *tiles, left view, right *panels[T], i0, i1, j0, j1 int, alpha float64, add bool, c []float64, ldc int, wanted part) {
	var edge [16 * 32]float64
	tiles := tilesOf[T](by)
	room := blocks.Get().(*[]float64)
	defer blocks.Put(room)
	if size := (i1 - i0 + by.rows - 1) / by.rows * by.rows * min(depth, right.k); len(*room) < size {
		*room = make([]float64, size)
	}
	for p := 0; p < right.k; p += depth {
		k := min(depth, right.k-p)
		adding := 0
		if add || p > 0 {
			adding = 1
		}
		w.packPanels(*room, left, i0, i1, by.rows, by.rows, p, k)
		for j := j0; j < j1; j += right.rows {
			b, cols, padded := right.panel(j, p)
			tile := tiles[padded/w.width]
			end := right.end(j, p, k)
			if end <= 0 {
				continue // adding 0 changes nothing
			}
			for i := i0; i < i1; i += by.rows {
				a, rows := (*room)[(i-i0)*k:], min(by.rows, i1-i)
				every, any := wanted.holds(i, j, rows, cols)
				switch {
				case !any:
				case every && rows == by.rows && cols == padded:
					tile(&a[0], &b[0], &c[i*ldc+j], end, ldc, alpha, adding)
				default: // computed as a whole tile
					for r := range rows * adding {
						copy(edge[r*padded:], c[(i+r)*ldc+j:(i+r)*ldc+j+cols])
					}
					tile(&a[0], &b[0], &edge[0], end, padded, alpha, adding)
					for r := range rows {
						from, to := 0, cols
						switch wanted {
						case upper:
							from = max(i+r-j, 0)
						case lower:
							to = min(i+r-j+1, cols)
						}
						if from < to {
							copy(c[(i+r)*ldc+j+from:], edge[r*padded+from:r*padded+to])
						}
					}
				}
			}
		}
	}
}

// workersFor returns how many goroutines a product should use, by its number of
// multiplications.
func workersFor(multiplications int) int {
	return min(runtime.GOMAXPROCS(0), 1+multiplications>>21)
}

// float64Products contracts on the calling goroutine alone. Distances are computed
// in plain Go.
type float64Products struct {
	plainProducts[float64]
	*float64Kernels
}

func (p float64Products) product(m, n, k int, alpha float64, tA, tB blas.Transpose, x, y []float64, beta float64, c []float64) {
	if fits(m, n, k, beta, x, y, c) {
		ldx, ldy := k, n
		if tA != blas.NoTrans {
			ldx = m
		}
		if tB != blas.NoTrans {
			ldy = k
		}
		a, b := viewOf(tA, x, ldx), viewOf(transposed(tB), y, ldy)
		p.contract(m, n, k, alpha, a, b, scale(m, n, beta, c, n, all), c, n, all, 1)
	}
}

func (p float64Products) NN(m, n, k int, alpha float64, a, b []float64, beta float64, c []float64) {
	p.product(m, n, k, alpha, blas.NoTrans, blas.NoTrans, a, b, beta, c)
}

func (p float64Products) NT(m, n, k int, alpha float64, a, b []float64, beta float64, c []float64) {
	p.product(m, n, k, alpha, blas.NoTrans, blas.Trans, a, b, beta, c)
}

func (p float64Products) TN(m, n, k int, alpha float64, a, b []float64, beta float64, c []float64) {
	p.product(m, n, k, alpha, blas.Trans, blas.NoTrans, a, b, beta, c)
}

func (p float64Products) SquaredDistancesGradient(n, b, d int, c, x, rows, w, byC, byX, gC, gX []float64) {
	squaredDistancesGradient[float64](p, n, b, d, c, x, rows, w, byC, byX, gC, gX)
}

// Right is the right matrix of many products in float64, packed once. Any number of
// goroutines may use it.
type Right[T Real] struct {
	kernels float64Kernels
	packed  panels[T]
}

// NewRight packs B [k,n], k and n above 0. It stays in float32, because for a few
// rows most time is spent on reading it.
func NewRight(n, k int, b []float32) *Right[float32] {
	wide := make([]float64, n*k)
	for i, v := range b[:n*k] {
		wide[i] = float64(v)
	}
	r := newRight(n, k, view{data: wide, row: 1, col: n})
	narrow := make([]float32, len(r.packed.data))
	for i, v := range r.packed.data {
		narrow[i] = float32(v)
	}
	return &Right[float32]{r.kernels, panels[float32]{narrow, n, k, r.packed.rows, r.packed.padded, r.packed.ends}}
}

// NewRightTransposed packs Bᵀ for B [n,k], n and k above 0.
func NewRightTransposed(n, k int, b []float64) *Right[float64] {
	return newRight(n, k, view{data: b[:n*k], row: k, col: 1})
}

func newRight(n, k int, b view) *Right[float64] {
	r := &Right[float64]{kernels: chosen().f64}
	r.kernels.packRight(&r.packed, b, n, k, 1)
	r.packed.findEnds()
	return r
}

// NN computes C = A·B with A [m,k], C [m,n], bit-identical to [Products], on the
// calling goroutine unless there are few rows. A row's result does not depend on
// the others.
func (r *Right[T]) NN(m int, a, c []float64) {
	if m == 0 {
		return
	}
	n, k, workers := r.packed.n, r.packed.k, 1
	by := r.kernels.tilesFor(m)
	if m <= r.kernels.rows { // several cores read B faster than one
		workers = workersFor(r.kernels.rows * n * k)
	}
	contractRight(&r.kernels, by, &r.packed, m, 1, view{data: a[:m*k], row: k, col: 1}, false, c, n, all, workers)
}
