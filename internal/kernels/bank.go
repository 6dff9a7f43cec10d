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

	bytes *byteKernels  // of coarse products
	small []int8        // [panels, 2, steps, 16, 16, 4]: a tile has four numbers of each of 16 rows
	scale []float32     // [panels, 2, panel]: what 1 in small stands for, and the error of a row
	start []int32       // [panels, panel]: where sums begin
	worst atomic.Uint64 // the largest such error, as math.Float64bits has it
}

// coarseOf returns how coarse products are computed; nil is float32.
func coarseOf(wanted bool, k int) *byteKernels {
	if !wanted || k > mostBytes {
		return nil
	}
	return chosen().f64.bytes
}

// byteKernels are products of bytes, and what makes bytes of rows.
type byteKernels struct {
	times func(*bytesTask)
	// most is what the largest magnitude of a row becomes, and offset what is added to the
	// bytes of A, which then have no sign. Sums start where they have to end without it.
	most   float32
	offset int8
	// largest is the largest magnitude of n numbers, a multiple of 16.
	largest func(row *float32, n int) float32
	// shrink rounds n numbers times by to bytes, a multiple of 16, and returns
	// Σ (x − scale·byte)².
	shrink func(to *int8, row *float32, n int, by, scale float32) float32
}

// bytesTask is the product of byteRows rows with some panels of as many rows, all of
// bytes: C = s·t·(start + Σ a·b) + r·e, with s and r of the row, and start, t and e of the
// column.
type bytesTask struct {
	a, b    *int8 // panels: two times 16 rows, each in steps of 64 columns
	c       *float32
	ldc     int // bytes
	steps   int
	panels  int // of B; 0 afterwards
	rows    *float32
	columns *float32
	sums    *int32 // room for 4 [16, 16]
	start   *int32
}

const (
	byteRows    = 32
	byteStep    = 64 // columns
	largestByte = 1<<7 - 1
	// AVX2 multiplies bytes without a sign by those with one, and adds two products in 16
	// bits: 2·(90 + 90)·90 are less than 2¹⁵.
	mostOfAVX2 = 90
	// mostBytes is how many products of two bytes have a sum below 2³¹. With an offset sums
	// may leave that range on the way, as they come back.
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
// products may be computed with bytes where that is faster.
func (b *Bank) Reset(n, k int, coarse bool) {
	b.n, b.k, b.panel, b.chosen, b.bytes = n, k, 64, chosen().products, coarseOf(coarse, k)
	switch {
	case b.bytes != nil:
		b.panel = byteRows
		count, _ := b.Panels()
		b.small, b.scale, b.start = grown(b.small, count*byteRows*padded(k)), grown(b.scale, count*2*byteRows), grown(b.start, count*byteRows)
		b.worst.Store(0)
	default:
		if p, ok := b.chosen().(panelProducts); ok {
			b.panel = p.panel()
		}
		count, _ := b.Panels()
		b.data = grown(b.data, count*b.panel*k)
	}
}

func grown[E any](x []E, n int) []E { return slices.Grow(x[:0], n)[:n] }

// padded is how many bytes a row of k has.
func padded(k int) int { return (k + byteStep - 1) / byteStep * byteStep }

// Panels returns how many panels there are, and how many rows a panel but the last has.
func (b *Bank) Panels() (count, rows int) { return (b.n + b.panel - 1) / b.panel, b.panel }

// OfBytes reports whether products are of 8 bits, which take a small part of the time of others.
func (b *Bank) OfBytes() bool { return b.bytes != nil }

// RowBytes is how many bytes of the bank a product reads for each row.
func (b *Bank) RowBytes() int {
	if b.bytes != nil {
		return padded(b.k)
	}
	return 4 * b.k
}

// Slack returns two bounds: the exact product of row i of a with any row is at most above
// more, and at most below less, than the computed one.
func (b *Bank) Slack(a *Left, i int) (above, below float64) {
	if b.bytes != nil {
		// The product is the largest that is possible apart from the error of a.
		own := a.error[i] + byteRounding
		return own, own + 2*float64(a.scale[2*i+1])*math.Float64frombits(b.worst.Load())
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
		scale, start := b.scale[panel*2*byteRows:][:2*byteRows], b.start[panel*byteRows:][:byteRows]
		clear(scale)
		clear(start)
		var worst float64
		row := make([]int8, padded(b.k))
		for i := range n {
			s, e := b.bytes.shrinkRow(row, rows[i*b.k:(i+1)*b.k])
			scale[i], scale[byteRows+i] = s, float32(e)
			if b.bytes.offset != 0 {
				var sum int32
				for _, v := range row {
					sum += int32(v)
				}
				start[i] = -int32(b.bytes.offset) * sum
			}
			worst = max(worst, e)
			half := to[i/16*size/2+i%16*4:]
			for at := 0; at < len(row); at += 4 {
				*(*[4]int8)(half[at*16:]) = [4]int8(row[at:])
			}
		}
		for before := b.worst.Load(); math.Float64frombits(before) < worst; before = b.worst.Load() {
			b.worst.CompareAndSwap(before, math.Float64bits(worst))
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

// shrinkRow rounds a row to bytes. It returns what 1 stands for, and at most how long the
// difference is.
func (k *byteKernels) shrinkRow(to []int8, row []float32) (scale float32, changed float64) {
	n := len(row)
	_ = to[padded(n)-1]
	whole, largest := n&^15, float32(0)
	if whole > 0 {
		largest = k.largest(&row[0], whole)
	}
	for _, v := range row[whole:] {
		largest = max(largest, v, -v)
	}
	if scale = largest / k.most; scale < 0x1p-100 { // also of a row of zeros
		clear(to)
		return 0, norm(row)
	}
	var sum float32
	if whole > 0 {
		sum = k.shrink(&to[0], &row[0], whole, 1/scale, scale)
	}
	if whole < n {
		rest := make([]float32, 16) // of an odd width
		copy(rest, row[whole:])
		sum += k.shrink(&to[whole], &rest[0], 16, 1/scale, scale)
	}
	return scale, math.Sqrt(float64(sum)) * (1 + float64(n+8)*0x1p-24)
}

func norm(row []float32) float64 { return math.Sqrt(Dot(row, row)) }

// Left is the rows A [m,k] of products with Banks, converted once.
type Left struct {
	m, k int
	rows []float32

	bytes *byteKernels // of coarse products
	small []int8       // [m/byteRows, 2, steps, 16, 64], filled up with rows of zeros
	scale []float32    // [m, 2]: what 1 in small stands for, and the length
	error []float64    // [m]
}

// NewLeft returns rows of k numbers, for products with banks that may be coarse as is
// said here. Set must be called for all rows.
func NewLeft(rows []float32, k int, coarse bool) *Left {
	a := &Left{m: len(rows) / k, k: k, rows: rows, bytes: coarseOf(coarse, k)}
	if a.bytes != nil {
		m := (a.m + byteRows - 1) / byteRows * byteRows
		a.small, a.scale, a.error = make([]int8, m*padded(k)), make([]float32, 2*m), make([]float64, m)
	}
	return a
}

// Set converts the rows from … to−1. Different rows may be set at the same time.
func (a *Left) Set(from, to int) {
	if a.bytes == nil {
		return
	}
	bytes := make([]int8, padded(a.k))
	for i := from; i < to; i++ {
		row := a.rows[i*a.k : (i+1)*a.k]
		s, e := a.bytes.shrinkRow(bytes, row)
		a.scale[2*i], a.error[i] = s, e
		a.scale[2*i+1] = float32((norm(row) + e) * (1 + 0x1p-20))
		if a.bytes.offset != 0 {
			for p := range bytes {
				bytes[p] += a.bytes.offset // as bits; the zeros behind a row of B leave out what is here
			}
		}
		panel := a.small[i/16*16*padded(a.k)+i%16*byteStep:]
		for at := 0; at < len(bytes); at += byteStep {
			copy(panel[16*at:], bytes[at:at+byteStep])
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
			t.b, t.columns, t.start, t.c, t.ldc, t.panels = &b.small[j0*k], &b.scale[2*j0], &b.start[j0], &c[(i-i0)*n], 4*n, whole
			b.bytes.times(t)
		}
		for j := j0 + whole*byteRows; j < j1; j += byteRows {
			t.b, t.columns, t.start, t.c, t.ldc, t.panels = &b.small[j*k], &b.scale[2*j], &b.start[j], &edge[0], 4*byteRows, 1
			b.bytes.times(t)
			for r := i; r < min(i+byteRows, i1); r++ {
				copy(c[(r-i0)*n+j-j0:(r-i0)*n+min(j1, j+byteRows)-j0], edge[(r-i)*byteRows:])
			}
		}
	}
}
