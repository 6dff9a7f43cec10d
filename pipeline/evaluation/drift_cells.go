package evaluation

import (
	"math"
	"slices"
)

const (
	perWidth   = 128  // cells per unit of asinh
	halfCells  = 4096 // cells on each side of the middle
	blockCells = 64
	blocks     = 2 * halfCells / blockCells
)

// cells counts scores by the cell that they fall into.
type driftCells struct {
	middle, width float64
	n             uint64
	sums          [blocks]uint64              // of the blocks
	counts        [blocks]*[blockCells]uint64 // nil where all are 0
}

// settle derives the cells from scores. Where these do not differ, any width is as
// good.
func (c *driftCells) settle(scores []float64) {
	scores = slices.DeleteFunc(slices.Clone(scores), func(s float64) bool { return math.IsNaN(s) || math.IsInf(s, 0) })
	slices.Sort(scores)
	c.middle, c.width = 0, 1
	if n := len(scores); n > 0 {
		at := func(share float64) float64 { // linear between neighbours
			x := share * float64(n-1)
			i := min(int(x), max(n-2, 0))
			if n == 1 {
				return scores[0]
			}
			return scores[i] + (x-float64(i))*(scores[i+1]-scores[i])
		}
		c.middle = at(0.5)
		for _, width := range []float64{at(0.75) - at(0.25), scores[n-1] - scores[0], math.Abs(c.middle) / 1024} {
			if width > 0 && !math.IsInf(width, 0) {
				c.width = width
				break
			}
		}
	}
}

// of returns the cell of a score.
func (c *driftCells) of(score float64) int {
	x := perWidth * math.Asinh((score-c.middle)/c.width)
	if !(x >= -halfCells) { // also NaN
		return 0
	}
	return int(math.Floor(min(x, halfCells-1))) + halfCells
}

func (c *driftCells) add(cell int) { c.put(cell, 1) }

func (c *driftCells) put(cell int, n uint64) {
	block := c.counts[cell/blockCells]
	if block == nil {
		block = new([blockCells]uint64)
		c.counts[cell/blockCells] = block
	}
	block[cell%blockCells] += n
	c.sums[cell/blockCells] += n
	c.n += n
}

// rank returns how many scores fell into lower cells and how many into this one.
func (c *driftCells) rank(cell int) (below, equal uint64) {
	for _, sum := range c.sums[:cell/blockCells] {
		below += sum
	}
	if block := c.counts[cell/blockCells]; block != nil {
		for _, n := range block[:cell%blockCells] {
			below += n
		}
		equal = block[cell%blockCells]
	}
	return below, equal
}
