package kernels

import (
	"runtime"
	"sync"
	"sync/atomic"

	"gonum.org/v1/gonum/blas"
)

// wideKernels contract packed matrices of float64 in tiles of rows by up to
// wideVectors vectors of width columns.
type wideKernels struct {
	rows, width int
	tiles       [wideVectors + 1]tile64 // by the vectors of B
	// four transposes four rows of 4·n columns.
	four func(dst *float64, ldd int, src *float64, lds, n int)
	// sweep is the step of Sweep for so many columns.
	sweep  func(z *float64, ldz int, c, s *float64, n int)
	stripe int
	// symmetricRow adds v·a to y and returns Σ a·x, of 4·n elements; dot returns
	// Σ x·y of 8·n.
	symmetricRow func(a, x, y *float64, v float64, n int) float64
	dot          func(x, y *float32, n int) float64
}

const wideVectors = 3

// tile64 computes C = alpha·Σ_p A[p]·B[p], with packed A [k, rows] and B [k, ·],
// k > 0. It adds that to what C [rows, ·] holds if add is not 0.
type tile64 = func(a, b, c *float64, k, ldc int, alpha float64, add int)

var chosenWide = wideOf(chosen.name)

// view is a matrix whose element i, p is data[i·row + p·col].
type view struct {
	data     []float64
	row, col int
}

func (v view) turned() view { return view{v.data, v.col, v.row} }

func viewOf(t blas.Transpose, data []float64, stride int) view {
	if t == blas.NoTrans {
		return view{data, stride, 1}
	}
	return view{data, 1, stride}
}

// part says which elements of a product are wanted.
type part int

const (
	all part = iota
	upper
	lower
)

// holds says whether all and whether any elements of a tile are wanted.
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
type panels struct {
	data   []float64
	n, k   int
	rows   int // of a panel but the last
	padded int // n, filled up
}

// depth is how much of the sums one pass adds: two panels of it stay in the
// first-level cache.
const depth = 192

// panel returns a panel of the depth columns from p on, and how many rows and
// rows with zeros it has.
func (x *panels) panel(i, p int) (data []float64, rows, padded int) {
	rows, padded = min(x.rows, x.n-i), min(x.rows, x.padded-i)
	return x.data[p*x.padded+i*min(depth, x.k-p):], rows, padded
}

// pack packs x, whose last panel has rows up to a multiple of unit.
func (w *wideKernels) pack(to *panels, x view, n, k, rows, unit, workers int) {
	padded := (n + unit - 1) / unit * unit
	if size := padded * k; cap(to.data) < size {
		to.data = make([]float64, size)
	}
	*to = panels{to.data[:padded*k], n, k, rows, padded}
	count := (n + rows - 1) / rows
	inParallel(workers, count, func(at int) {
		i := at * rows
		for p := 0; p < k; p += depth {
			panel, rows, padded := to.panel(i, p)
			w.packPanel(panel, padded, view{x.data[i*x.row+p*x.col:], x.row, x.col}, rows, min(depth, k-p))
		}
	})
}

func (w *wideKernels) packPanel(panel []float64, padded int, x view, rows, k int) {
	done := 0 // rows
	switch {
	case x.row == 1:
		for p := range k {
			copy(panel[p*padded:p*padded+rows], x.data[p*x.col:])
		}
		done = rows
	case x.col == 1 && w.four != nil:
		for fours := k / 4; fours > 0 && done+4 <= rows; done += 4 {
			w.four(&panel[done], padded, &x.data[done*x.row], x.row, fours)
			for i := done; i < done+4; i++ {
				for p := 4 * fours; p < k; p++ {
					panel[p*padded+i] = x.data[i*x.row+p]
				}
			}
		}
	}
	for i := done; i < padded; i++ {
		for p := range k {
			panel[p*padded+i] = 0
			if i < rows {
				panel[p*padded+i] = x.data[i*x.row+p*x.col]
			}
		}
	}
}

// contraction is room for packed matrices.
type contraction struct{ a, b panels }

var contractions = sync.Pool{New: func() any { return new(contraction) }}

// blockRows and blockCols are what one goroutine computes at once: with the
// depth, a block of A stays in the second-level cache.
const (
	blockRows = 96
	blockCols = 192
)

// contract adds alpha·A·B, A [m,k] and B [k,n], to C [m,n], or sets it, where
// the part of it is wanted.
func (w *wideKernels) contract(m, n, k int, alpha float64, a, b view, add bool, c []float64, ldc int, wanted part, workers int) {
	_ = c[(m-1)*ldc+n-1]
	room := contractions.Get().(*contraction)
	defer contractions.Put(room)
	w.pack(&room.a, a, m, k, w.rows, w.rows, workers)
	w.pack(&room.b, b.turned(), n, k, wideVectors*w.width, w.width, workers)
	rows, cols := (m+blockRows-1)/blockRows, (n+blockCols-1)/blockCols
	inParallel(workers, rows*cols, func(at int) {
		i, j := at/cols*blockRows, at%cols*blockCols
		i1, j1 := min(i+blockRows, m), min(j+blockCols, n)
		if _, any := wanted.holds(i, j, i1-i, j1-j); any {
			w.block(room, i, i1, j, j1, alpha, add, c, ldc, wanted)
		}
	})
}

func (w *wideKernels) block(room *contraction, i0, i1, j0, j1 int, alpha float64, add bool, c []float64, ldc int, wanted part) {
	var edge [16 * 32]float64
	for p := 0; p < room.a.k; p += depth {
		k := min(depth, room.a.k-p)
		adding := 0
		if add || p > 0 {
			adding = 1
		}
		for j := j0; j < j1; j += room.b.rows {
			b, cols, padded := room.b.panel(j, p)
			tile := w.tiles[padded/w.width]
			for i := i0; i < i1; i += w.rows {
				a, rows, _ := room.a.panel(i, p)
				every, any := wanted.holds(i, j, rows, cols)
				switch {
				case !any:
				case every && rows == w.rows && cols == padded:
					tile(&a[0], &b[0], &c[i*ldc+j], k, ldc, alpha, adding)
				default: // by way of a whole tile
					for r := range rows * adding {
						copy(edge[r*padded:], c[(i+r)*ldc+j:(i+r)*ldc+j+cols])
					}
					tile(&a[0], &b[0], &edge[0], k, padded, alpha, adding)
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

// inParallel calls do for 0 … n−1 on as many goroutines as workers.
func inParallel(workers, n int, do func(int)) {
	if workers = min(workers, n); workers <= 1 {
		for i := range n {
			do(i)
		}
		return
	}
	var next atomic.Int64
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	group.Wait()
}

// workersFor is how many goroutines a product of so many multiplications is
// worth.
func workersFor(multiplications int) int {
	return min(runtime.GOMAXPROCS(0), 1+multiplications>>21)
}

// wideProducts contracts on the calling goroutine alone. Distances are plain.
type wideProducts struct {
	plainProducts[float64]
	*wideKernels
}

func (p wideProducts) product(m, n, k int, alpha float64, a, b view, beta float64, c []float64, x, y []float64) {
	if fits(m, n, k, beta, x, y, c) {
		p.contract(m, n, k, alpha, a, b, scale(m, n, beta, c, n, all), c, n, all, 1)
	}
}

func (p wideProducts) NN(m, n, k int, alpha float64, a, b []float64, beta float64, c []float64) {
	p.product(m, n, k, alpha, view{a, k, 1}, view{b, n, 1}, beta, c, a, b)
}

func (p wideProducts) NT(m, n, k int, alpha float64, a, b []float64, beta float64, c []float64) {
	p.product(m, n, k, alpha, view{a, k, 1}, view{b, 1, k}, beta, c, a, b)
}

func (p wideProducts) TN(m, n, k int, alpha float64, a, b []float64, beta float64, c []float64) {
	p.product(m, n, k, alpha, view{a, 1, m}, view{b, n, 1}, beta, c, a, b)
}

func (p wideProducts) SquaredDistancesGradient(n, b, d int, c, x, rows, w, byC, byX, gC, gX []float64) {
	squaredDistancesGradient[float64](p, n, b, d, c, x, rows, w, byC, byX, gC, gX)
}
