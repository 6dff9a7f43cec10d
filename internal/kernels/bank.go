package kernels

import (
	"math"
	"slices"
	"sync"
)

// Bank is a matrix B [n,k] in float32, packed once for products A·Bᵀ with many matrices.
// Any number of goroutines may use it, and set different panels of it. No row of A or B
// may be longer than 1.
type Bank struct {
	n, k   int
	panel  int // rows that are packed together
	chosen func() Products[float32]
	data   []float32

	pairs pairsOf // nil for products in float32
	short []int16 // [panels, ⌈k/2⌉, panel, 2]
}

// pairsOf is the product of pairRows rows of numbers of 16 bits, of which k pairs are
// read, with a panel of pairColumns rows: C = scale·A·Bᵀ.
type pairsOf func(a *int16, lda int, b *int16, c *float32, ldc, k int, scale float32)

const (
	pairRows, pairColumns = 4, 24
	// largestShort is what the number 1 becomes. The sum of products of two rows whose
	// lengths are at most that is less than 2³¹.
	largestShort = 1<<15 - 1
)

// panelProducts pack the rows of a bank.
type panelProducts interface {
	panel() int // rows
	packPanel(to, rows []float32, n, k int)
	timesPanel(m, n, k int, a, panel, c []float32, ldc int)
}

// Reset makes room for n rows of k numbers and reuses that of before. If coarse, the
// products may be computed with numbers of 16 bits where that is faster.
func (b *Bank) Reset(n, k int, coarse bool) {
	b.n, b.k, b.panel, b.chosen, b.pairs = n, k, 64, chosen().products, nil
	if coarse {
		b.pairs = chosen().f64.pairs
	}
	if b.pairs != nil {
		b.panel = pairColumns
		count, _ := b.Panels()
		size := count * pairColumns * 2 * b.halves()
		b.short = slices.Grow(b.short[:0], size)[:size]
		return
	}
	if p, ok := b.chosen().(panelProducts); ok {
		b.panel = p.panel()
	}
	count, _ := b.Panels()
	b.data = slices.Grow(b.data[:0], count*b.panel*k)[:count*b.panel*k]
}

func (b *Bank) halves() int { return (b.k + 1) / 2 }

// Panels returns how many panels there are, and how many rows a panel but the last has.
func (b *Bank) Panels() (count, rows int) { return (b.n + b.panel - 1) / b.panel, b.panel }

// Slack returns how far a product can be from that of the rows before they were rounded
// to float32.
func (b *Bank) Slack() float64 {
	// Rounding of both factors, of each of k products and of their sums, by 2⁻²⁴
	// of Σ|a_i b_i| ≤ ‖a‖‖b‖ at the most; doubled for higher orders.
	slack := 2 * float64(b.k+4) * 0x1p-24
	if b.pairs != nil { // the length of what rounding changes of either row
		slack = 2.1*shortRounding*math.Sqrt(float64(b.k))/largestShort + 0x1p-20
	}
	return slack
}

// Set sets the rows of a panel.
func (b *Bank) Set(panel int, rows []float32) {
	if b.pairs != nil {
		to := b.short[panel*pairColumns*2*b.halves():][:pairColumns*2*b.halves()]
		clear(to)
		for i := range len(rows) / b.k {
			for j, v := range rows[i*b.k : (i+1)*b.k] {
				to[(j/2*pairColumns+i)*2+j%2] = shorten(v)
			}
		}
		return
	}
	to := b.data[panel*b.panel*b.k:][:b.panel*b.k]
	if p, ok := b.chosen().(panelProducts); ok {
		p.packPanel(to, rows, len(rows)/b.k, b.k)
		return
	}
	copy(to, rows)
}

// shortRounding bounds what shorten changes: half a unit, and the rounding of float32
// at 2¹⁶.
const shortRounding = 0.51

func shorten(v float32) int16 {
	const positive = 1 << 16
	return int16(int32(v*largestShort+(positive+0.5)) - positive)
}

// Times computes C = A·Bᵀ, A [m,k], C [m,n], on the calling goroutine. An element does
// not depend on the other rows.
func (b *Bank) Times(m int, a, c []float32) {
	if len(a) < m*b.k || len(c) < m*b.n {
		panic("kernels: a matrix is too short for its sizes")
	}
	if b.pairs != nil {
		b.timesPairs(m, a, c)
		return
	}
	p := b.chosen()
	by, ok := p.(panelProducts)
	if !ok {
		p.NT(m, b.n, b.k, 1, a, b.data, 0, c)
		return
	}
	for j := 0; j < b.n && m > 0; j += b.panel {
		by.timesPanel(m, min(b.panel, b.n-j), b.k, a, b.data[j*b.k:][:b.panel*b.k], c[j:], b.n)
	}
}

// shorts are buffers to reuse.
var shorts = sync.Pool{New: func() any { return new([]int16) }}

func (b *Bank) timesPairs(m int, a, c []float32) {
	room := shorts.Get().(*[]int16)
	defer shorts.Put(room)
	k := 2 * b.halves()
	size := (m + pairRows - 1) / pairRows * pairRows * k
	*room = slices.Grow((*room)[:0], size)[:size]
	clear((*room)[m/pairRows*pairRows*k:])
	for i := range m {
		row := (*room)[i*k : (i+1)*k]
		row[k-1] = 0
		for j, v := range a[i*b.k : (i+1)*b.k] {
			row[j] = shorten(v)
		}
	}
	const scale = 1. / (largestShort * largestShort)
	var edge [pairRows * pairColumns]float32
	for j := 0; j < b.n; j += pairColumns {
		panel := b.short[j*k:]
		for i := 0; i < m; i += pairRows {
			if i+pairRows <= m && j+pairColumns <= b.n {
				b.pairs(&(*room)[i*k], k, &panel[0], &c[i*b.n+j], b.n, k/2, scale)
				continue
			}
			b.pairs(&(*room)[i*k], k, &panel[0], &edge[0], pairColumns, k/2, scale)
			for r := i; r < min(i+pairRows, m); r++ {
				copy(c[r*b.n+j:r*b.n+min(b.n, j+pairColumns)], edge[(r-i)*pairColumns:])
			}
		}
	}
}
