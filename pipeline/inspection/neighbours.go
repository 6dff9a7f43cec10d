package inspection

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/mlrbfn/mlrbfn/conditioning"
	"github.com/mlrbfn/mlrbfn/dataset"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// Rows of several axes are compared with rows in the nearest cells alone, as all
// pairs of a million rows would take hours.
const (
	axes       = 64   // principal axes on which rows are compared
	cellRows   = 4096 // about how many rows share a cell
	probes     = 4    // cells in which a row's neighbours are sought
	neighbours = 10   // neighbours of a row that are looked at
)

// pair is two rows, a < b, with the cosine of their features about the mean.
type pair struct {
	a, b   int
	cosine float64
}

// pairs returns the pairs of rows whose cosine is at least floor, among each row's
// nearest neighbours, sorted by rows. Without several thousand rows all pairs are
// compared; beyond, those in cells that are near each other.
func pairs(ctx context.Context, rows dataset.Rows, floor float64, memory int64, seed uint64, done func(int)) ([]pair, error) {
	n := len(rows.Index)
	if n < 2 {
		return nil, nil
	}
	unit, d, err := principal(ctx, rows, memory)
	if err != nil {
		return nil, err
	}
	member, err := divide(ctx, unit, n, d, seed)
	if err != nil {
		return nil, err
	}
	best := make([][]found, n)
	finished := 0
	for c, rowsOf := range member.own {
		bank := make([]float32, 0, len(rowsOf)*d)
		for _, i := range rowsOf {
			bank = append(bank, unit[int(i)*d:(int(i)+1)*d]...)
		}
		asking := member.asking[c]
		const tile = 64
		err := parallel.Ranges(ctx, len(asking), tile, func() func(int, int) error {
			queries, products := make([]float32, tile*d), make([]float32, tile*len(rowsOf))
			return func(from, to int) error {
				for q := from; q < to; q++ {
					copy(queries[(q-from)*d:], unit[int(asking[q])*d:(int(asking[q])+1)*d])
				}
				m := len(rowsOf)
				linalg.NT(to-from, m, d, queries[:(to-from)*d], bank, products[:(to-from)*m])
				for q := from; q < to; q++ {
					i := asking[q]
					for j, cosine := range products[(q-from)*m : (q-from+1)*m] {
						if float64(cosine) >= floor && rowsOf[j] != i {
							best[i] = keep(best[i], found{rowsOf[j], cosine})
						}
					}
				}
				return nil
			}
		})
		if err != nil {
			return nil, err
		}
		finished += len(rowsOf)
		done(finished)
	}
	var all []pair
	for i, nearest := range best {
		for _, f := range nearest {
			j := int(f.row)
			if j < i && slices.ContainsFunc(best[j], func(g found) bool { return int(g.row) == i }) {
				continue // the other row has it
			}
			all = append(all, pair{rows.Index[min(i, j)], rows.Index[max(i, j)], float64(f.cosine)})
		}
	}
	slices.SortFunc(all, func(p, q pair) int { return cmp.Or(cmp.Compare(p.a, q.a), cmp.Compare(p.b, q.b)) })
	return all, nil
}

type found struct {
	row    int32
	cosine float32
}

// keep adds a neighbour to the nearest ones, the nearest first; equal ones by rows.
func keep(best []found, f found) []found {
	after := func(g found) bool {
		return g.cosine < f.cosine || g.cosine == f.cosine && g.row > f.row
	}
	if len(best) == neighbours && !after(best[neighbours-1]) {
		return best
	}
	at := len(best)
	for at > 0 && after(best[at-1]) {
		at--
	}
	best = slices.Insert(best, at, f)
	return best[:min(len(best), neighbours)]
}

// principal returns the rows on their principal axes, each divided by its length:
// [n, d].
func principal(ctx context.Context, rows dataset.Rows, memory int64) (unit []float32, d int, err error) {
	c, err := conditioning.Fit(ctx, rows, dataset.Rows{}, 1, conditioning.Options{
		Kind: conditioning.PCA, L2: true, Dims: min(axes, rows.D), Memory: memory,
	})
	if err != nil {
		return nil, 0, err
	}
	d = c.Out()
	unit = make([]float32, len(rows.Index)*d)
	err = c.Each(ctx, rows, func(at int, block []float32) error {
		for i := 0; i < len(block); i += d {
			row := block[i : i+d]
			var square float64
			for _, v := range row {
				square += float64(v) * float64(v)
			}
			if square > 0 {
				scale := float32(1 / math.Sqrt(square))
				for j, v := range row {
					unit[at*d+i+j] = v * scale
				}
			}
		}
		return nil
	})
	return unit, d, err
}

// membership says which rows lie in a cell, and which seek neighbours there.
type membership struct{ own, asking [][]int32 }

// divide makes cells by spherical k-means on a sample of the rows.
func divide(ctx context.Context, unit []float32, n, d int, seed uint64) (m membership, err error) {
	k := (n + cellRows - 1) / cellRows
	if k == 1 {
		all := make([]int32, n)
		for i := range all {
			all[i] = int32(i)
		}
		return membership{[][]int32{all}, [][]int32{all}}, nil
	}
	random := rand.New(rand.NewPCG(seed, 0x1f83d9ab))
	sample := random.Perm(n)[:min(n, 64*k)]
	slices.Sort(sample)
	centres := make([]float32, 0, k*d)
	for _, i := range random.Perm(len(sample))[:k] {
		centres = append(centres, unit[sample[i]*d:(sample[i]+1)*d]...)
	}
	points := make([]float32, 0, len(sample)*d)
	for _, i := range sample {
		points = append(points, unit[i*d:(i+1)*d]...)
	}
	for range 8 {
		nearest, err := assign(ctx, points, len(sample), d, centres, 1)
		if err != nil {
			return m, err
		}
		sums := make([]float64, k*d)
		for i, c := range nearest {
			for j, v := range points[i*d : (i+1)*d] {
				sums[int(c)*d+j] += float64(v)
			}
		}
		for c := range k {
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
	places := min(probes, k)
	nearest, err := assign(ctx, unit, n, d, centres, places)
	if err != nil {
		return m, err
	}
	m = membership{make([][]int32, k), make([][]int32, k)}
	for i := range n {
		for p, c := range nearest[i*places : (i+1)*places] {
			if p == 0 {
				m.own[c] = append(m.own[c], int32(i))
			}
			m.asking[c] = append(m.asking[c], int32(i))
		}
	}
	return m, nil
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
				for q := range p {
					best := 0
					for c, v := range row {
						if v > row[best] {
							best = c
						}
					}
					nearest[i*p+q] = int32(best)
					row[best] = float32(math.Inf(-1))
				}
			}
			return nil
		}
	})
}
