package evaluation

import (
	"cmp"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/internal/spill"
)

// Rows of several axes are compared with rows in the nearest cells alone, as all
// pairs of a million rows would take hours.
const (
	axes       = 64   // principal axes on which rows are compared
	cellRows   = 4096 // about how many rows share a cell
	probes     = 4    // cells in which a row's neighbours are sought
	neighbours = 10   // neighbours of a row that are looked at
)

var groupRows = 1 << 16 // whose neighbours are sought together; tests lower it

// pair is two rows, a < b, with the cosine of their features about the mean.
type pair struct {
	a, b   int
	cosine float64
}

// pairs calls do with the pairs of rows whose cosine is at least floor, among each row's
// nearest neighbours, and with how many rows were compared so far. A few pairs come
// twice. Without several thousand rows all pairs are compared; beyond, those in cells
// that are near each other. What is held in memory besides space is about 30 bytes a row.
func pairs(ctx context.Context, rows features.Rows, floor float64, space *spill.Space, memory int64, seed uint64, do func(some []pair, done int) error) (err error) {
	n := len(rows.Index)
	if n < 2 {
		return nil
	}
	c, err := divide(ctx, rows, space, memory, seed)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.unit.Close()) }()
	least := make([]float32, n) // of the cosines of a row's neighbours, if there are as many as may be
	near := make([]found, 0, min(n, groupRows)*neighbours)
	for from := 0; from < n; from += groupRows {
		to := min(from+groupRows, n)
		best := make([][]found, to-from)
		for i := range best {
			best[i] = near[i*neighbours : i*neighbours : (i+1)*neighbours]
		}
		for place := range c.places {
			if err := c.seek(ctx, from, to, place, floor, best); err != nil {
				return err
			}
		}
		var some []pair
		for at, nearest := range best {
			i := int(c.order[from+at])
			if least[from+at] = float32(math.Inf(-1)); len(nearest) == neighbours {
				least[from+at] = nearest[neighbours-1].cosine
			}
			for _, f := range nearest {
				j := int(c.order[f.at])
				if int(f.at) < from && c.has(int(f.at), i, f.cosine, floor, least) {
					continue // it came with the other row
				}
				if int(f.at) >= from && int(f.at) < to && j < i && slices.ContainsFunc(best[int(f.at)-from], func(g found) bool { return int(g.at) == from+at }) {
					continue // it comes with the other row
				}
				some = append(some, pair{rows.Index[min(i, j)], rows.Index[max(i, j)], float64(f.cosine)})
			}
		}
		if err := do(some, to); err != nil {
			return err
		}
	}
	return nil
}

// found is a neighbour: its place in the order of cells.
type found struct {
	at     int32
	cosine float32
}

// cells are rows in the order of their cells.
type cells struct {
	d      int
	unit   *spill.Matrix // [n, d], in the order of the cells
	order  []int32       // [n], the rows
	start  []int         // [cells + 1], where each cell begins
	nearer []int32       // [n, places], for each row the cells in which neighbours are sought, its own first
	places int
}

// has reports whether a row that was compared before surely has another one, i, among
// its neighbours. Rounding may differ between the two.
func (c *cells) has(at, i int, cosine float32, floor float64, least []float32) bool {
	const rounding = 1e-6
	row := int(c.order[at])
	return slices.Contains(c.nearer[row*c.places:(row+1)*c.places], c.nearer[i*c.places]) &&
		cosine > least[at]+rounding && float64(cosine) > floor+rounding
}

// seek looks for neighbours of some rows, each in one of its cells.
func (c *cells) seek(ctx context.Context, from, to, place int, floor float64, best [][]found) error {
	const tile = 64
	type task struct {
		cell int32
		rows []int32 // that seek there, by their places in the order
	}
	cellOf := func(at int32) int32 { return c.nearer[int(c.order[at])*c.places+place] }
	asking := make([]int32, 0, to-from)
	for at := from; at < to; at++ {
		asking = append(asking, int32(at))
	}
	slices.SortStableFunc(asking, func(a, b int32) int { return cmp.Compare(cellOf(a), cellOf(b)) })
	var tasks []task
	for i, at := range asking {
		if last := len(tasks) - 1; last < 0 || tasks[last].cell != cellOf(at) || len(tasks[last].rows) == tile {
			tasks = append(tasks, task{cellOf(at), asking[i:i]})
		}
		last := &tasks[len(tasks)-1]
		last.rows = last.rows[:len(last.rows)+1]
	}
	d, x := c.d, c.unit.X
	return parallel.Ranges(ctx, len(tasks), 1, func() func(int, int) error {
		queries, products := make([]float32, tile*d), make([]float32, tile*cellRows)
		return func(first, end int) error {
			for _, t := range tasks[first:end] {
				for q, at := range t.rows {
					copy(queries[q*d:], x[int(at)*d:(int(at)+1)*d])
				}
				for bank := c.start[t.cell]; bank < c.start[t.cell+1]; bank += cellRows {
					m := min(cellRows, c.start[t.cell+1]-bank)
					linalg.NT(len(t.rows), m, d, queries[:len(t.rows)*d], x[bank*d:(bank+m)*d], products[:len(t.rows)*m])
					for q, at := range t.rows {
						for j, cosine := range products[q*m : (q+1)*m] {
							if float64(cosine) >= floor && int(at) != bank+j {
								best[int(at)-from] = c.keep(best[int(at)-from], found{int32(bank + j), cosine})
							}
						}
					}
				}
			}
			return nil
		}
	})
}

// keep adds a neighbour to the nearest ones, the nearest first; equal ones by rows.
func (c *cells) keep(best []found, f found) []found {
	after := func(g found) bool {
		return g.cosine < f.cosine || g.cosine == f.cosine && c.order[g.at] > c.order[f.at]
	}
	if len(best) == neighbours {
		if !after(best[neighbours-1]) {
			return best
		}
		best = best[:neighbours-1]
	}
	at := len(best)
	for best = append(best, f); at > 0 && after(best[at-1]); at-- {
		best[at], best[at-1] = best[at-1], f
	}
	return best
}

// divide projects rows to their principal axes, divides each by its length, and makes
// cells by spherical k-means on a sample of them.
func divide(ctx context.Context, rows features.Rows, space *spill.Space, memory int64, seed uint64) (c *cells, err error) {
	n := len(rows.Index)
	axes, err := head.FitConditioning(ctx, rows, features.Rows{}, 1, head.ConditioningOptions{
		Kind: head.PCA, L2: true, Dims: min(axes, rows.D), Memory: memory,
	})
	if err != nil {
		return nil, err
	}
	d := axes.Out()
	unit := func(index []int, write func(at int, rows []float32) error) error {
		return axes.Each(ctx, rows.With(index), func(at int, block []float32) error {
			for i := 0; i < len(block); i += d {
				normalise(block[i : i+d])
			}
			return write(at, block)
		})
	}
	k := (n + cellRows - 1) / cellRows
	c = &cells{d: d, order: make([]int32, n), start: make([]int, k+1), places: min(probes, k)}
	c.start[k] = n
	var centres []float32
	if k > 1 {
		random := rand.New(rand.NewPCG(seed, 0x1f83d9ab))
		sample := random.Perm(n)[:min(n, 64*k)]
		slices.Sort(sample)
		points, index := make([]float32, len(sample)*d), make([]int, len(sample))
		for i, at := range sample {
			index[i] = rows.Index[at]
		}
		if err := unit(index, func(at int, block []float32) error { copy(points[at*d:], block); return nil }); err != nil {
			return nil, err
		}
		if centres, err = means(ctx, points, d, random.Perm(len(sample))[:k]); err != nil {
			return nil, err
		}
	}
	all, err := space.Matrix(n, d)
	if err != nil {
		return nil, err
	}
	if err = unit(rows.Index, all.Write); err == nil {
		err = all.Done()
	}
	if err != nil {
		return nil, errors.Join(err, all.Close())
	}
	if k == 1 {
		for i := range c.order {
			c.order[i] = int32(i)
		}
		c.unit, c.nearer = all, make([]int32, n)
		return c, nil
	}
	defer func() { err = errors.Join(err, all.Close()) }()
	if c.nearer, err = assign(ctx, all.X, n, d, centres, c.places); err != nil {
		return nil, err
	}
	return c, c.sort(ctx, all.X, space)
}

// sort puts rows x [n, D] that lie in one cell beside each other.
func (c *cells) sort(ctx context.Context, x []float32, space *spill.Space) (err error) {
	n, k, d := len(c.order), len(c.start)-1, c.d
	clear(c.start)
	for i := range n {
		c.start[c.nearer[i*c.places]+1]++
	}
	for cell := range k {
		c.start[cell+1] += c.start[cell]
	}
	next := slices.Clone(c.start)
	for i := range n {
		own := c.nearer[i*c.places]
		c.order[next[own]] = int32(i)
		next[own]++
	}
	if c.unit, err = space.Matrix(n, d); err != nil {
		return err
	}
	err = parallel.Ranges(ctx, n, 256, func() func(int, int) error {
		block := make([]float32, 0, 256*d)
		return func(from, to int) error {
			block = block[:0]
			for _, i := range c.order[from:to] {
				block = append(block, x[int(i)*d:(int(i)+1)*d]...)
			}
			return c.unit.Write(from, block)
		}
	})
	if err == nil {
		err = c.unit.Done()
	}
	if err != nil {
		err = errors.Join(err, c.unit.Close())
	}
	return err
}

// normalise divides a row by its length.
func normalise(row []float32) {
	var square float64
	for _, v := range row {
		square += float64(v) * float64(v)
	}
	if !(square > 0) {
		clear(row)
		return
	}
	scale := float32(1 / math.Sqrt(square))
	for j := range row {
		row[j] *= scale
	}
}

// means returns the centres of spherical k-means, which begins with some of the points.
func means(ctx context.Context, points []float32, d int, begin []int) ([]float32, error) {
	centres := make([]float32, 0, len(begin)*d)
	for _, i := range begin {
		centres = append(centres, points[i*d:(i+1)*d]...)
	}
	for range 8 {
		nearest, err := assign(ctx, points, len(points)/d, d, centres, 1)
		if err != nil {
			return nil, err
		}
		sums := make([]float64, len(centres))
		for i, c := range nearest {
			for j, v := range points[i*d : (i+1)*d] {
				sums[int(c)*d+j] += float64(v)
			}
		}
		for c := range begin {
			sum := sums[c*d : (c+1)*d]
			var square float64
			for _, v := range sum {
				square += v * v
			}
			for j, v := range sum {
				if square > 0 { // an empty cell stays where it was
					centres[c*d+j] = float32(v / math.Sqrt(square))
				}
			}
		}
	}
	return centres, nil
}

// assign returns the p centres nearest to each row, [n, p], the nearest first.
func assign(ctx context.Context, x []float32, n, d int, centres []float32, p int) ([]int32, error) {
	k := len(centres) / d
	nearest := make([]int32, n*p)
	const tile = 64
	return nearest, parallel.Ranges(ctx, n, tile, func() func(int, int) error {
		products := make([]float32, tile*k)
		return func(from, to int) error {
			linalg.NT(to-from, k, d, x[from*d:to*d], centres, products[:(to-from)*k])
			for i := from; i < to; i++ {
				row := products[(i-from)*k : (i-from+1)*k]
				best := nearest[i*p : i*p : (i+1)*p]
				for c, v := range row {
					if len(best) == p {
						if v <= row[best[p-1]] {
							continue
						}
						best = best[:p-1]
					}
					at := len(best)
					for best = append(best, int32(c)); at > 0 && v > row[best[at-1]]; at-- {
						best[at], best[at-1] = best[at-1], int32(c)
					}
				}
			}
			return nil
		}
	})
}
