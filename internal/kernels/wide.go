package kernels

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
	"gonum.org/v1/gonum/blas/gonum"
)

// BLAS is gonum's, with the matrix products of float64 computed by the chosen
// kernels and, where they are large, on all cores. What an element of a result
// is does not depend on how many there are, nor on the other elements.
// Importing this package makes it the one that gonum's factorisations use.
type BLAS struct {
	gonum.Implementation
}

func init() { blas64.Use(BLAS{}) }

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

// scale multiplies the wanted part of C by beta and reports whether anything is
// left to add to.
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
	chosenWide.contract(m, n, k, alpha, viewOf(tA, x, ldx), viewOf(tB, y, ldy), add, c, ldc, all, workersFor(m*n*k))
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
	chosenWide.contract(n, n, k, alpha, a, a.turned(), add, c, ldc, partOf(ul), workersFor(n*n*k/2))
}

// Dsyr2k computes a triangle of C = alpha·op(A)·op(B)ᵀ + alpha·op(B)·op(A)ᵀ +
// beta·C.
func (b BLAS) Dsyr2k(ul blas.Uplo, t blas.Transpose, n, k int, alpha float64, x []float64, ldx int, y []float64, ldy int, beta float64, c []float64, ldc int) {
	if n*n*k < 1<<12 || alpha == 0 {
		b.Implementation.Dsyr2k(ul, t, n, k, alpha, x, ldx, y, ldy, beta, c, ldc)
		return
	}
	p, q := viewOf(t, x, ldx), viewOf(t, y, ldy)
	add := scale(n, n, beta, c, ldc, partOf(ul))
	workers := workersFor(n * n * k)
	chosenWide.contract(n, n, k, alpha, p, q.turned(), add, c, ldc, partOf(ul), workers)
	chosenWide.contract(n, n, k, alpha, q, p.turned(), true, c, ldc, partOf(ul), workers)
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
	// The parts of A on the diagonal, and that between them.
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
		inParallel(workersFor(8*m*m*n), (n+columns-1)/columns, func(at int) {
			j := at * columns
			b.Implementation.Dtrsm(s, ul, tA, d, m, min(columns, n-j), alpha, a, lda, x[j:], ldx)
		})
		return
	}
	inParallel(workersFor(8*m*n*n), (m+columns-1)/columns, func(at int) {
		i := at * columns
		b.Implementation.Dtrsm(s, ul, tA, d, min(columns, m-i), n, alpha, a, lda, x[i*ldx:], ldx)
	})
}

// Dsymv computes y = alpha·A·x + beta·y for a symmetric A of which a triangle
// is given. It reads that once.
func (b BLAS) Dsymv(ul blas.Uplo, n int, alpha float64, a []float64, lda int, x []float64, incX int, beta float64, y []float64, incY int) {
	if n < 32 || incX < 1 || incY < 1 {
		b.Implementation.Dsymv(ul, n, alpha, a, lda, x, incX, beta, y, incY)
		return
	}
	room := make([]float64, 2*n)
	from, sum := room[:n], room[n:]
	for i := range from {
		from[i] = x[i*incX]
	}
	for i, v := range from {
		j, row := i+1, a[i*lda+i+1:i*lda+n]
		if ul == blas.Lower {
			j, row = 0, a[i*lda:i*lda+i]
		}
		own := a[i*lda+i] * v
		if fours := len(row) / 4; fours > 0 {
			own += chosenWide.symmetricRow(&row[0], &from[j], &sum[j], v, fours)
		}
		for p := len(row) &^ 3; p < len(row); p++ {
			own += row[p] * from[j+p]
			sum[j+p] += row[p] * v
		}
		sum[i] += own
	}
	for i, v := range sum {
		if v *= alpha; beta != 0 {
			v += beta * y[i*incY]
		}
		y[i*incY] = v
	}
}

// Dot returns Σ x·y in float64, where no product of two float32s is rounded.
func Dot(x, y []float32) (sum float64) {
	y = y[:len(x)]
	if eights := len(x) / 8; eights > 0 {
		sum = chosenWide.dot(&x[0], &y[0], eights)
	}
	for i := len(x) &^ 7; i < len(x); i++ {
		sum += float64(x[i]) * float64(y[i])
	}
	return sum
}

// A Sweep is a sequence of rotations of neighbouring rows, from the last of
// those that it names to the first: row i+1 becomes s_i·z_i + c_i·z_{i+1}, and
// row i c_i·z_i − s_i·z_{i+1}.
type Sweep struct {
	First int       // the row that the last rotation ends at
	C, S  []float64 // [n]; rotation i is that of the rows First+i and First+i+1
}

// Stripes are a matrix [n, cols], stripe after stripe of columns, each as [n,
// Width].
type Stripes struct {
	N, Cols, Width int
	Data           []float64
}

// NewStripes returns zeros.
func NewStripes(n, cols int) *Stripes {
	w := chosenWide.stripe
	return &Stripes{n, cols, w, make([]float64, (cols+w-1)/w*w*n)}
}

// At returns the address of an element.
func (z *Stripes) At(i, j int) *float64 {
	return &z.Data[j/z.Width*z.Width*z.N+i*z.Width+j%z.Width]
}

// Rotate applies the sweeps one after the other, on all cores.
func (z *Stripes) Rotate(sweeps []Sweep) {
	size := z.N * z.Width
	inParallel(runtime.GOMAXPROCS(0), len(z.Data)/size, func(at int) {
		stripe := z.Data[at*size : (at+1)*size]
		for _, s := range sweeps {
			if n := len(s.C); n > 0 {
				chosenWide.sweep(&stripe[(s.First+n)*z.Width], z.Width, &s.C[n-1], &s.S[n-1], n)
			}
		}
	})
}

// wideProducts contracts on the calling goroutine alone.
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

// plainWide is what every machine has.
var plainWide = wideKernels{
	rows: plainRows, width: plainWidth,
	tiles: [wideVectors + 1]tile64{1: plainTile(1), 2: plainTile(2), 3: plainTile(3)},
	sweep: plainSweep, stripe: plainStripe,
	symmetricRow: plainSymmetricRow, dot: plainDot,
}

func plainSweep(zAt *float64, ldz int, c, s *float64, n int) {
	z := unsafe.Slice((*float64)(unsafe.Add(unsafe.Pointer(zAt), -8*n*ldz)), n*ldz+plainStripe)
	cosines := unsafe.Slice((*float64)(unsafe.Add(unsafe.Pointer(c), -8*(n-1))), n)
	sines := unsafe.Slice((*float64)(unsafe.Add(unsafe.Pointer(s), -8*(n-1))), n)
	for i := n; i > 0; i-- {
		c, s := cosines[i-1], sines[i-1]
		above, below := z[(i-1)*ldz:(i-1)*ldz+plainStripe], z[i*ldz:i*ldz+plainStripe]
		for j, v := range above {
			w := below[j]
			below[j], above[j] = s*v+c*w, c*v-s*w
		}
	}
}

func plainSymmetricRow(aAt, xAt, yAt *float64, v float64, n int) (sum float64) {
	a, x, y := unsafe.Slice(aAt, 4*n), unsafe.Slice(xAt, 4*n), unsafe.Slice(yAt, 4*n)
	for i, w := range a {
		sum += w * x[i]
		y[i] += w * v
	}
	return sum
}

func plainDot(xAt, yAt *float32, n int) float64 {
	x, y := unsafe.Slice(xAt, 8*n), unsafe.Slice(yAt, 8*n)
	var sums [4]float64 // several sums, for speed
	for len(x) >= 4 && len(y) >= 4 {
		sums[0] += float64(x[0]) * float64(y[0])
		sums[1] += float64(x[1]) * float64(y[1])
		sums[2] += float64(x[2]) * float64(y[2])
		sums[3] += float64(x[3]) * float64(y[3])
		x, y = x[4:], y[4:]
	}
	return sums[0] + sums[1] + sums[2] + sums[3]
}

// As many sums as a processor has registers for.
const (
	plainRows   = 2
	plainWidth  = 4
	plainStripe = 8
)

func plainTile(vectors int) tile64 {
	return func(aAt, bAt, cAt *float64, k, ldc int, alpha float64, add int) {
		cols := vectors * plainWidth
		c := unsafe.Slice(cAt, ldc+cols)
		for j := 0; j < cols; j += plainWidth {
			a, b := unsafe.Slice(aAt, k*plainRows), unsafe.Slice(bAt, k*cols)[j:]
			var s, t [plainWidth]float64
			for len(a) > plainRows {
				x, y := a[0], a[1]
				s[0] += x * b[0]
				s[1] += x * b[1]
				s[2] += x * b[2]
				s[3] += x * b[3]
				t[0] += y * b[0]
				t[1] += y * b[1]
				t[2] += y * b[2]
				t[3] += y * b[3]
				a, b = a[plainRows:], b[cols:]
			}
			for i := range plainWidth { // the last, after which there is no B
				s[i] = alpha * (s[i] + a[0]*b[i])
				t[i] = alpha * (t[i] + a[1]*b[i])
				if add != 0 {
					s[i] += c[j+i]
					t[i] += c[ldc+j+i]
				}
			}
			copy(c[j:], s[:])
			copy(c[ldc+j:], t[:])
		}
	}
}
