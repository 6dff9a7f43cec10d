package kernels

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Bank is a matrix B [n,k] in float32, packed once for products A·Bᵀ with the rows of a
// [Left]. Any number of goroutines may use it, and set different panels of it. All rows
// of A and B are finite and no longer than 1.
type Bank struct {
	n, k   int
	panel  int // rows that are packed together
	chosen func() Products[float32]
	data   []float32 // unless coarse

	coarse
	short []int16       // [panels, ⌈k/2⌉, panel, 2]
	small []int8        // [panels, 2, steps, 16, 16, 4]: a tile has four numbers of each of 16 rows
	scale []float32     // [panels, 2, panel]: what 1 in small stands for, and the error of a row
	worst atomic.Uint64 // the largest such error, as math.Float64bits has it
}

// coarse is how coarse products are computed; the zero value is float32.
type coarse struct {
	pairs pairsOf
	bytes *byteKernels
}

func coarseOf(wanted bool, k int) (c coarse) {
	if f := &chosen().f64; wanted {
		c = coarse{f.pairs, f.bytes}
	}
	if k > mostBytes {
		c.bytes = nil
	}
	return c
}

// pairsOf is the product of pairRows rows of numbers of 16 bits, of which k pairs are
// read, with a panel of pairColumns rows: C = scale·A·Bᵀ.
type pairsOf func(a *int16, lda int, b *int16, c *float32, ldc, k int, scale float32)

const (
	pairRows, pairColumns = 4, 24
	// largestShort is what the number 1 becomes. The sum of products of two rows whose
	// lengths are at most that is less than 2³¹.
	largestShort = 1<<15 - 1
	shortScale   = 1. / (largestShort * largestShort)
)

// byteKernels are products of bytes, and what makes bytes of rows.
type byteKernels struct {
	times func(*bytesTask)
	// largest is the largest magnitude of n numbers.
	largest func(row *float32, n int) float32
	// shrink rounds n numbers times by to bytes, with zeros up to a multiple of 16, and
	// returns Σ (x − scale·byte)².
	shrink func(to *int8, row *float32, n int, by, scale float32) float32
}

// bytesTask is the product of byteRows rows with some panels of as many rows, all of
// bytes: C = s·t·Σ a·b + r·e, with s and r of the row, t and e of the column.
type bytesTask struct {
	a, b    *int8 // panels: two times 16 rows, each in steps of 64 columns
	c       *float32
	ldc     int // bytes
	steps   int
	panels  int // of B; 0 afterwards
	rows    *float32
	columns *float32
	sums    *int32 // room for 4 [16, 16]
}

const (
	byteRows    = 32
	byteStep    = 64 // columns
	largestByte = 1<<7 - 1
	// mostBytes is how many products of two bytes have a sum below 2³¹.
	mostBytes = (1<<31 - 1) / (largestByte * largestByte)
	// byteRounding is more than what rounding to float32 changes: the sum, its products
	// with both scales, that of length and error, and their sum, of a magnitude up to 2;
	// the stored error, and the bank's row itself. That is at most some 25·2⁻²⁴.
	byteRounding = 0x1p-19
)

// panelProducts pack the rows of a bank.
type panelProducts interface {
	panel() int // rows
	packPanel(to, rows []float32, n, k int)
	timesPanel(m, n, k int, a, panel, c []float32, ldc int)
}

// Reset makes room for n rows of k numbers and reuses that of before. If coarse, the
// products may be computed with numbers of 16 or 8 bits where that is faster.
func (b *Bank) Reset(n, k int, coarse bool) {
	b.n, b.k, b.panel, b.chosen, b.coarse = n, k, 64, chosen().products, coarseOf(coarse, k)
	switch {
	case b.bytes != nil:
		b.panel = byteRows
		count, _ := b.Panels()
		b.small, b.scale = grown(b.small, count*byteRows*padded(k)), grown(b.scale, count*2*byteRows)
		b.worst.Store(0)
	case b.pairs != nil:
		b.panel = pairColumns
		count, _ := b.Panels()
		b.short = grown(b.short, count*pairColumns*2*halves(k))
	default:
		if p, ok := b.chosen().(panelProducts); ok {
			b.panel = p.panel()
		}
		count, _ := b.Panels()
		b.data = grown(b.data, count*b.panel*k)
	}
}

func grown[E any](x []E, n int) []E { return slices.Grow(x[:0], n)[:n] }

func halves(k int) int { return (k + 1) / 2 }

// padded is how many bytes a row of k has.
func padded(k int) int { return (k + byteStep - 1) / byteStep * byteStep }

// Panels returns how many panels there are, and how many rows a panel but the last has.
func (b *Bank) Panels() (count, rows int) { return (b.n + b.panel - 1) / b.panel, b.panel }

// OfBytes reports whether products are of 8 bits, which take a small part of the time of others.
func (b *Bank) OfBytes() bool { return b.bytes != nil }

// RowBytes is how many bytes of the bank a product reads for each row.
func (b *Bank) RowBytes() int {
	switch {
	case b.bytes != nil:
		return padded(b.k)
	case b.pairs != nil:
		return 4 * halves(b.k)
	}
	return 4 * b.k
}

// Slack returns two bounds: the exact product of row i of a with any row is at most above
// more, and at most below less, than the computed one.
func (b *Bank) Slack(a *Left, i int) (above, below float64) {
	switch {
	case b.bytes != nil:
		// The product is the largest that is possible apart from the error of a.
		own := a.error[i] + byteRounding
		return own, own + 2*float64(a.scale[2*i+1])*math.Float64frombits(b.worst.Load())
	case b.pairs != nil: // the length of what rounding changes of either row
		slack := 2.1*shortRounding*math.Sqrt(float64(b.k))/largestShort + 0x1p-20
		return slack, slack
	}
	// Rounding of both factors, of each of k products and of their sums, by 2⁻²⁴
	// of Σ|a_i b_i| ≤ ‖a‖‖b‖ at the most; doubled for higher orders.
	slack := 2 * float64(b.k+4) * 0x1p-24
	return slack, slack
}

// Set sets the rows of a panel.
func (b *Bank) Set(panel int, rows []float32) {
	n := len(rows) / b.k
	switch {
	case b.bytes != nil:
		size := byteRows * padded(b.k)
		to := b.small[panel*size:][:size]
		clear(to)
		scale := b.scale[panel*2*byteRows:][:2*byteRows]
		clear(scale)
		var worst float64
		row := make([]int8, padded(b.k))
		for i := range n {
			s, e := b.bytes.shrinkRow(row, rows[i*b.k:(i+1)*b.k])
			scale[i], scale[byteRows+i] = s, float32(e)
			worst = max(worst, e)
			half := to[i/16*size/2+i%16*4:]
			for at := 0; at < len(row); at += 4 {
				*(*[4]int8)(half[at*16:]) = [4]int8(row[at:])
			}
		}
		for before := b.worst.Load(); math.Float64frombits(before) < worst; before = b.worst.Load() {
			b.worst.CompareAndSwap(before, math.Float64bits(worst))
		}
	case b.pairs != nil:
		to := b.short[panel*pairColumns*2*halves(b.k):][:pairColumns*2*halves(b.k)]
		clear(to)
		for i := range n {
			for j, v := range rows[i*b.k : (i+1)*b.k] {
				to[(j/2*pairColumns+i)*2+j%2] = shorten(v)
			}
		}
	default:
		to := b.data[panel*b.panel*b.k:][:b.panel*b.k]
		if p, ok := b.chosen().(panelProducts); ok {
			p.packPanel(to, rows, n, b.k)
			return
		}
		copy(to, rows)
	}
}

// shortRounding bounds what shorten changes: half a unit, and the rounding of float32
// at 2¹⁶.
const shortRounding = 0.51

func shorten(v float32) int16 {
	const positive = 1 << 16
	return int16(int32(v*largestShort+(positive+0.5)) - positive)
}

// shrinkRow rounds a row to bytes, of which the largest becomes largestByte. It returns
// what 1 stands for, and at most how long the difference is.
func (k *byteKernels) shrinkRow(to []int8, row []float32) (scale float32, changed float64) {
	n := len(row)
	_ = to[padded(n)-1]
	if scale = k.largest(&row[0], n) / largestByte; scale < 0x1p-100 { // also of a row of zeros
		clear(to)
		return 0, norm(row)
	}
	sum := k.shrink(&to[0], &row[0], n, 1/scale, scale)
	return scale, math.Sqrt(float64(sum)) * (1 + float64(n+8)*0x1p-24)
}

func norm(row []float32) float64 { return math.Sqrt(Dot(row, row)) }

// Left is the rows A [m,k] of products with Banks, converted once.
type Left struct {
	m, k int
	rows []float32

	coarse
	short []int16   // [m, 2·⌈k/2⌉], filled up with rows of zeros
	small []int8    // [m/byteRows, 2, steps, 16, 64], too
	scale []float32 // [m, 2]: what 1 in small stands for, and the length
	error []float64 // [m]
}

// NewLeft returns rows of k numbers, for products with banks that may be coarse as is
// said here. Set must be called for all rows.
func NewLeft(rows []float32, k int, coarse bool) *Left {
	a := &Left{m: len(rows) / k, k: k, rows: rows, coarse: coarseOf(coarse, k)}
	switch m := (a.m + byteRows - 1) / byteRows * byteRows; {
	case a.bytes != nil:
		a.small, a.scale, a.error = make([]int8, m*padded(k)), make([]float32, 2*m), make([]float64, m)
	case a.pairs != nil:
		a.short = make([]int16, m*2*halves(k))
	}
	return a
}

// Set converts the rows from … to−1. Different rows may be set at the same time.
func (a *Left) Set(from, to int) {
	var bytes []int8
	for i := from; i < to; i++ {
		row := a.rows[i*a.k : (i+1)*a.k]
		switch {
		case a.bytes != nil:
			bytes = grown(bytes, padded(a.k))
			s, e := a.bytes.shrinkRow(bytes, row)
			a.scale[2*i], a.error[i] = s, e
			a.scale[2*i+1] = float32((norm(row) + e) * (1 + 0x1p-20))
			panel := a.small[i/16*16*padded(a.k)+i%16*byteStep:]
			for at := 0; at < len(bytes); at += byteStep {
				copy(panel[16*at:], bytes[at:at+byteStep])
			}
		case a.pairs != nil:
			short := a.short[i*2*halves(a.k):]
			for j, v := range row {
				short[j] = shorten(v)
			}
		}
	}
}

// Times computes C = A·Bᵀ of the rows i0 … i1−1 of A with j0 … j1−1 of B, on the calling
// goroutine. i0 and j0 are multiples of Rows and of a panel. An element does not depend
// on the other rows.
func (b *Bank) Times(a *Left, i0, i1, j0, j1 int, c []float32) {
	m, n := i1-i0, j1-j0
	if i0 < 0 || j0 < 0 || i1 > a.m || j1 > b.n || a.k != b.k || i0%Rows != 0 || j0%b.panel != 0 || len(c) < m*n {
		panic("kernels: a matrix is too short for its sizes")
	}
	if m <= 0 || n <= 0 {
		return
	}
	switch {
	case b.bytes != nil:
		b.timesBytes(a, i0, i1, j0, j1, c)
	case b.pairs != nil:
		b.timesPairs(a, i0, i1, j0, j1, c)
	default:
		p := b.chosen()
		rows := a.rows[i0*a.k:]
		by, ok := p.(panelProducts)
		if !ok {
			p.NT(m, n, b.k, 1, rows, b.data[j0*b.k:], 0, c)
			return
		}
		for j := j0; j < j1; j += b.panel {
			by.timesPanel(m, min(b.panel, j1-j), b.k, rows, b.data[j*b.k:][:b.panel*b.k], c[j-j0:], n)
		}
	}
}

func (b *Bank) timesPairs(a *Left, i0, i1, j0, j1 int, c []float32) {
	n, k := j1-j0, 2*halves(b.k)
	var edge [pairRows * pairColumns]float32
	for j := j0; j < j1; j += pairColumns {
		panel := b.short[j*k:]
		for i := i0; i < i1; i += pairRows {
			if i+pairRows <= i1 && j+pairColumns <= j1 {
				b.pairs(&a.short[i*k], k, &panel[0], &c[(i-i0)*n+j-j0], n, k/2, shortScale)
				continue
			}
			b.pairs(&a.short[i*k], k, &panel[0], &edge[0], pairColumns, k/2, shortScale)
			for r := i; r < min(i+pairRows, i1); r++ {
				copy(c[(r-i0)*n+j-j0:(r-i0)*n+min(j1, j+pairColumns)-j0], edge[(r-i)*pairColumns:])
			}
		}
	}
}

// bytesRoom is what a product of bytes works in.
type bytesRoom struct {
	task bytesTask
	sums [4*16*16 + 16]int32
	edge [byteRows * byteRows]float32
}

var bytesRooms = sync.Pool{New: func() any { return new(bytesRoom) }}

func (b *Bank) timesBytes(a *Left, i0, i1, j0, j1 int, c []float32) {
	n, k := j1-j0, padded(b.k)
	room := bytesRooms.Get().(*bytesRoom)
	defer func() {
		room.task = bytesTask{} // which holds on to A and B
		bytesRooms.Put(room)
	}()
	t, edge := &room.task, &room.edge
	t.steps, t.sums = k/byteStep, &room.sums[-uintptr(unsafe.Pointer(&room.sums))/4%16] // from a cache line on
	for i := i0; i < i1; i += byteRows {
		t.a, t.rows = &a.small[i*k], &a.scale[2*i]
		whole := 0
		if i+byteRows <= i1 {
			whole = n / byteRows
		}
		if whole > 0 {
			t.b, t.columns, t.c, t.ldc, t.panels = &b.small[j0*k], &b.scale[2*j0], &c[(i-i0)*n], 4*n, whole
			b.bytes.times(t)
		}
		for j := j0 + whole*byteRows; j < j1; j += byteRows {
			t.b, t.columns, t.c, t.ldc, t.panels = &b.small[j*k], &b.scale[2*j], &edge[0], 4*byteRows, 1
			b.bytes.times(t)
			for r := i; r < min(i+byteRows, i1); r++ {
				copy(c[(r-i0)*n+j-j0:(r-i0)*n+min(j1, j+byteRows)-j0], edge[(r-i)*byteRows:])
			}
		}
	}
}
