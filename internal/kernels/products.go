//go:build (amd64 || arm64) && !noasm

package kernels

import (
	"slices"
	"unsafe"
)

// tile is the argument of a micro-kernel; asm/matrix.go repeats the offsets.
// Strides are in bytes.
type tile struct {
	k        int
	a        unsafe.Pointer // A[i,p] at a + i·ras + p·cas
	ras, cas int
	b        unsafe.Pointer // rows of B
	ldb      int
	c        unsafe.Pointer
	ldc      int
	alpha    float32
	mask     [8]uint32      // AVX-512: a bit per lane of the last vector; AVX2: a word per lane
	d        unsafe.Pointer // like c
	ldd      int
	s        unsafe.Pointer // S[i,j] at s + i·rss + j·css
	rss, css int            // one of them is 0
	times    int            // tiles one below the other
}

// kernels are micro-kernels by vectors and rows of a tile. The masked ones may be
// the same functions.
type microKernels struct {
	whole, masked [][]func(*tile)
	adds          bool // they add S∘D, so that sums can be taken in parts
}

// machine is how one instruction set contracts matrices.
type machine struct {
	width                    int // floats of a vector
	product, distance, signs microKernels
	fours                    microKernels // products of up to four columns; only AVX-512 has them
}

// products contracts in tiles whose sums stay in registers. It reads A as single
// values at any stride, and B and C as vectors along their rows, so that only NT
// has to transpose anything. It is fastest if the part of B that one tile reads
// stays in the second-level cache.
type products struct {
	machine
	tile
	packed, transposed []float32
	edge               []float32 // of contractEdge
	beta               [1]float32
	twice              []float32
}

// matrix is a part of a row-major matrix: its first element, and the steps
// between rows and columns.
type matrix struct {
	data     []float32
	row, col int
}

func dense(data []float32, cols int) matrix { return matrix{data, cols, 1} }

func (m matrix) transposed() matrix { return matrix{m.data, m.col, m.row} }

// from is the address of an element, or nil in an empty matrix.
func (m matrix) from(row, col int) unsafe.Pointer {
	if m.data == nil {
		return nil
	}
	return unsafe.Pointer(&m.data[row*m.row+col*m.col])
}

// right returns the columns from j on.
func (m matrix) right(j int) matrix {
	if m.data != nil {
		m.data = m.data[j*m.col:]
	}
	return m
}

// addend is S∘D, which is added to a product: S has a factor for each row, or
// for each column, or a single one.
type addend struct{ s, d matrix }

// scaled returns beta·c.
func (p *products) scaled(beta float32, c matrix) addend {
	if beta == 0 {
		return addend{}
	}
	p.beta[0] = beta
	return addend{s: matrix{data: p.beta[:]}, d: c}
}

// contract computes C = alpha·Σ_p A[i,p]∘B[p,j] + S∘D by the given kernels. If D is
// nil, they do not read it; the kernels of signs do not use S.
func (p *products) contract(by microKernels, m, n, k int, alpha float32, a, b matrix, plus addend, c matrix) {
	if over := n % p.width; over > 0 && by.masked == nil {
		n -= over
		p.contractEdge(by, m, over, k, alpha, a, b.right(n), addend{plus.s.right(n), plus.d.right(n)}, c.right(n))
	}
	s, d := plus.s, plus.d
	p.k, p.alpha = k, alpha
	p.ras, p.cas, p.ldb, p.ldc, p.ldd, p.rss, p.css = 4*a.row, 4*a.col, 4*b.row, 4*c.row, 4*d.row, 4*s.row, 4*s.col
	most := len(by.whole) - 1
	for j := 0; j < n; {
		vectors := (n - j + p.width - 1) / p.width
		tiles := (vectors + most - 1) / most
		vectors = (vectors + tiles - 1) / tiles // of even widths
		kernels := by.whole[vectors]
		if cut := vectors*p.width - (n - j); cut > 0 {
			kernels = by.masked[vectors]
			p.setMask(p.width - cut)
		} else {
			p.setMask(p.width)
		}
		p.b = b.from(0, j)
		tiles = (m + len(kernels) - 2) / (len(kernels) - 1)
		rows, higher := m/tiles, m%tiles // of equal heights, some with one row more
		below := higher * (rows + 1)
		if higher > 0 {
			p.run(kernels[rows+1], higher, a.from(0, 0), c.from(0, j), s.from(0, j), d.from(0, j))
		}
		p.run(kernels[rows], tiles-higher, a.from(below, 0), c.from(below, j), s.from(below, j), d.from(below, j))
		j += vectors * p.width
	}
	p.a, p.b, p.c, p.s, p.d = nil, nil, nil, nil, nil
}

// contractEdge is contract for less than a vector of columns, without a mask. It
// computes with copies that have a whole vector; the other columns are ignored.
func (p *products) contractEdge(by microKernels, m, n, k int, alpha float32, a, b matrix, plus addend, c matrix) {
	need := (k + 2*m + 1) * p.width
	p.edge = slices.Grow(p.edge[:0], need)[:need]
	room := p.edge
	widened := func(from matrix, rows int) matrix {
		to := dense(room[:rows*p.width], p.width)
		room = room[rows*p.width:]
		for i := range rows {
			copy(to.data[i*to.row:][:n], from.data[i*from.row:])
		}
		return to
	}
	b = widened(b, k)
	if plus.d.data != nil {
		plus.d = widened(plus.d, m)
	}
	if plus.s.col != 0 {
		plus.s = matrix{widened(plus.s, 1).data, 0, 1}
	}
	sums := dense(room[:m*p.width], p.width)
	p.contract(by, m, p.width, k, alpha, a, b, plus, sums)
	for i := range m {
		copy(c.data[i*c.row:][:n], sums.data[i*sums.row:])
	}
}

// run computes as many tiles, one below the other, as times says.
func (p *products) run(kernel func(*tile), times int, a, c, s, d unsafe.Pointer) {
	p.times, p.a, p.c, p.s, p.d = times, a, c, s, d
	kernel(&p.tile)
}

// setMask makes the mask of the first lanes of a vector.
func (p *products) setMask(lanes int) {
	if p.width == 16 {
		p.mask[0] = 1<<lanes - 1
		return
	}
	for i := range p.mask {
		p.mask[i] = 0
		if i < lanes {
			p.mask[i] = ^uint32(0)
		}
	}
}

func (p *products) NN(m, n, k int, alpha float32, a, b []float32, beta float32, c []float32) {
	if !fits(m, n, k, beta, a, b, c) {
		return
	}
	p.contract(p.product, m, n, k, alpha, dense(a, k), dense(b, n), p.scaled(beta, dense(c, n)), dense(c, n))
}

func (p *products) TN(m, n, k int, alpha float32, a, b []float32, beta float32, c []float32) {
	if !fits(m, n, k, beta, a, b, c) {
		return
	}
	p.contract(p.product, m, n, k, alpha, dense(a, m).transposed(), dense(b, n), p.scaled(beta, dense(c, n)), dense(c, n))
}

func (p *products) NT(m, n, k int, alpha float32, a, b []float32, beta float32, c []float32) {
	if !fits(m, n, k, beta, a, b, c) {
		return
	}
	p.contractRows(p.product, m, n, k, alpha, a, b, p.scaled(beta, dense(c, n)), c)
}

func (p *products) SquaredDistancesGradient(n, b, d int, c, x, rows, w, byC, byX, gC, gX []float32) {
	input := x
	if input == nil {
		input = rows
	}
	if !fits(n, b, d, 0, c, input, w) {
		return
	}
	twice := func(by []float32) []float32 {
		p.twice = p.twice[:0]
		for _, v := range by {
			p.twice = append(p.twice, 2*v)
		}
		return p.twice
	}
	plus := addend{s: matrix{twice(byC[:n]), 1, 0}, d: dense(c, d)}
	if rows != nil {
		p.contract(p.product, n, d, b, -2, dense(w, b), dense(rows[:b*d], d), plus, dense(gC[:n*d], d))
	} else {
		p.contractRows(p.product, n, d, b, -2, w, x, plus, gC[:n*d])
	}
	if gX != nil {
		plus := addend{s: matrix{twice(byX[:b]), 0, 1}, d: dense(x[:d*b], b)}
		p.contract(p.product, d, b, n, -2, dense(c, d).transposed(), dense(w, b), plus, dense(gX[:d*b], b))
	}
}

func (p *products) Distances(m, n, k int, x, c, dist []float32) {
	if !fits(m, n, k, 0, x, c, dist) {
		return
	}
	p.contractRows(p.distance, m, n, k, 1, x, c, addend{}, dist)
}

var one = [1]float32{1}

// contractRows contracts rows of A [m,k] with rows of B [n,k], one of which it has
// to transpose. If it transposes B, vectors lie along n. If it transposes A, they
// lie along the batch and are full even for the n of a head, 50 or 10, but then the
// result must be transposed back.
func (p *products) contractRows(by microKernels, m, n, k int, alpha float32, a, b []float32, plus addend, c []float32) {
	const turning = 8 // multiplications take as long as transposing an element
	full := func(n int) int { return (n + p.width - 1) / p.width * p.width }
	lanes, few := full(n), 0
	if rest := n % p.width; by.adds && p.fours.whole != nil && k%4 == 0 && 0 < rest && rest <= 4 {
		lanes, few = n-rest+4, rest
	}
	if m*lanes*k+turning*n*k <= n*full(m)*k+turning*(m*k+2*m*n) {
		c, from := dense(c, n), n-few
		if few > 0 {
			// The last few columns would leave most of a vector empty.
			p.packed = slices.Grow(p.packed[:0], 4*k)[:4*k]
			for j := range few {
				row := b[(from+j)*k:][:k]
				for q := 0; q < k; q += 4 {
					*(*[4]float32)(p.packed[4*(q+j):]) = [4]float32(row[q:])
				}
			}
			p.contract(p.fours, m, few, k/4, alpha, matrix{a, k, 4}, matrix{p.packed, 16, 1}, addend{plus.s.right(from), plus.d.right(from)}, c.right(from))
		}
		// A panel is so small that it stays in the first-level cache together
		// with the part of B that it is the transpose of. Its width is one or two of
		// the widest tiles.
		wide, depth := 48, k
		if by.adds {
			parts := (k + 127) / 128
			depth = full((k + parts - 1) / parts)
		}
		for j := 0; j < from; j += wide {
			cols := min(wide, from-j)
			ld := full(cols) // so that every row of it begins a cache line
			p.packed = slices.Grow(p.packed[:0], depth*ld)[:depth*ld]
			plus := addend{plus.s.right(j), plus.d.right(j)}
			for q := 0; q < k; q += depth {
				deep := min(depth, k-q)
				transpose(p.packed, ld, b[j*k+q:], k, cols, deep)
				p.contract(by, m, cols, deep, alpha, matrix{a[q:], k, 1}, dense(p.packed, ld), plus, c.right(j))
				plus = addend{matrix{data: one[:]}, c.right(j)}
			}
		}
		return
	}
	const slab = 128 // rows of B at once
	cols := min(n, slab)
	p.packed = slices.Grow(p.packed[:0], k*m)[:k*m]
	p.transposed = slices.Grow(p.transposed[:0], cols*m)[:cols*m]
	transpose(p.packed, m, a, k, m, k)
	for j := 0; j < n; j += slab {
		cols := min(slab, n-j)
		plus := addend{plus.s.right(j).transposed(), plus.d.right(j)}
		if plus.d.data != nil {
			transpose(p.transposed, m, plus.d.data, plus.d.row, m, cols)
			plus.d = dense(p.transposed, m)
		}
		p.contract(by, cols, m, k, alpha, dense(b[j*k:], k), dense(p.packed, m), plus, dense(p.transposed, m))
		transpose(c[j:], n, p.transposed, m, cols, m)
	}
}

// panelFloats is how many numbers of a panel are contracted at a time: they stay in the
// first-level cache.
const panelFloats = 6 << 10

func (p *products) panel() int { return min(len(p.product.whole)-1, 3) * p.width }

// panelDepth is how many columns of a panel are packed as [columns, rows].
func (p *products) panelDepth() int { return panelFloats / p.panel() }

func (p *products) packPanel(to, rows []float32, n, k int) {
	wide, depth := p.panel(), p.panelDepth()
	for q := 0; q < k; q += depth {
		transpose(to[q*wide:], wide, rows[q:], k, n, min(depth, k-q))
	}
}

func (p *products) timesPanel(m, n, k int, a, panel, c []float32, ldc int) {
	wide, depth := p.panel(), p.panelDepth()
	plus := addend{}
	for q := 0; q < k; q += depth {
		p.contract(p.product, m, n, min(depth, k-q), 1, matrix{a[q:], k, 1}, dense(panel[q*wide:], wide), plus, dense(c, ldc))
		plus = addend{matrix{data: one[:]}, dense(c, ldc)}
	}
}

func (p *products) DistancesGradient(m, n, k int, x, c, g, gX, gC []float32) {
	if !fits(m, n, k, 0, x, c, g) {
		return
	}
	// gX = −Σ_c g·sign(c−x) and gC = −Σ_x g·sign(x−c).
	rows, cols := dense(x, k), dense(c, k)
	p.contract(p.signs, m, k, n, -1, dense(g, n), cols, addend{d: rows}, dense(gX[:m*k], k))
	if gC != nil {
		p.contract(p.signs, n, k, m, -1, dense(g, n).transposed(), rows, addend{d: cols}, dense(gC[:n*k], k))
	}
}
