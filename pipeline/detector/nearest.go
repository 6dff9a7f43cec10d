package detector

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// This file finds the training rows nearest to others, exactly and in bounded
// memory.
//
// The distance is the Euclidean one between the values that the head's layers read,
// z = (x/‖x‖ − μ)W, or x itself without a conditioning. Of the residual head these
// are the first of the conditioned features, those that tell the classes apart: in
// them the nearest images are of the same class more often than in all of them.
// Of the training rows only two numbers are held: ‖z‖² and 1/‖x‖. With a query q and w = Wq,
//
//	‖z − q‖² = ‖z‖² − 2·(x·w/‖x‖ − μ·w) + ‖q‖²
//
// so that the products with many queries at once read the features as they are on
// the disk, page by page. They are in float32 and only select the rows that can be
// among the nearest, given how far they can be rounded. The distances of these are
// computed in float64.

// bank is the training rows.
type bank struct {
	data   *TrainingData
	n, d   int
	space  *head.Conditioning // nil for none
	wide   []float64          // its matrix [D, E] in float64; nil without one
	square []float64          // ‖z‖² of each row; +Inf for one that is no neighbour
	scale  []float64          // 1/‖x‖ of each row if the conditioning divides by it, else 1
	reach  float64            // the largest scale·‖x‖
	large  bool               // the sets are larger than the memory: pages that were read are let go of
}

const (
	scanRows  = 256     // rows of one product
	scanBytes = 1 << 26 // that are read before pages are released
	most      = 1024    // queries of one scan
)

// spaceOf returns the map to what the head's layers read; nil is the features
// themselves.
func spaceOf(h *head.Head) *head.Conditioning {
	d, c := h.Dim(), h.Conditioning
	e := h.Network.Dim()
	if n, ok := h.Network.(*head.ResidualNetwork); ok {
		e = n.Layers[0].In
	}
	switch {
	case c == nil && e == d:
		return nil
	case c == nil:
		c = &head.Conditioning{Mean: make([]float32, d), Scale: slices.Repeat([]float32{1}, d)}
	}
	all := c.Out()
	if e == all {
		return c
	}
	first := &head.Conditioning{ConditioningOptions: c.ConditioningOptions, Mean: c.Mean, Matrix: make([]float32, 0, d*e)}
	for j := range d {
		row := make([]float32, e)
		if c.Scale == nil {
			copy(row, c.Matrix[j*all:])
		} else if j < e {
			row[j] = c.Scale[j]
		}
		first.Matrix = append(first.Matrix, row...)
	}
	return first
}

// newBank reads the sets once.
func newBank(ctx context.Context, data *TrainingData, condition *head.Conditioning, memory int64) (*bank, error) {
	b := &bank{data: data, space: condition, n: len(data.Labels), d: data.Sets[0].D}
	b.large = 4*int64(b.n)*int64(b.d) > memory
	if condition != nil && condition.Matrix != nil {
		b.wide = kernels.Converted[float64](condition.Matrix)
	}
	b.square, b.scale = make([]float64, b.n), make([]float64, b.n)
	e := b.out()
	err := b.scan(ctx, func() func(row int, labels []int64, x []float32) error {
		z := make([]float64, scanRows*e)
		return func(row int, labels []int64, x []float32) error {
			for i := range labels {
				b.scale[row+i] = 1
				if condition != nil && condition.L2 {
					if l := length(x[i*b.d:(i+1)*b.d], nil); l > 0 {
						b.scale[row+i] = 1 / l
					}
				}
			}
			b.condition(z, x)
			for i, y := range labels {
				b.square[row+i] = math.Inf(1)
				if y >= 0 {
					b.square[row+i] = squareOf(z[i*e : (i+1)*e])
				}
			}
			return nil
		}
	})
	if err != nil {
		return nil, err
	}
	b.reach = 1
	if condition == nil || !condition.L2 {
		for _, set := range data.Sets {
			for i := range set.N {
				b.reach = max(b.reach, length(set.Row(i), nil))
			}
		}
	}
	return b, nil
}

// out is E, the length of a conditioned row.
func (b *bank) out() int {
	if b.space == nil {
		return b.d
	}
	return b.space.Out()
}

// condition fills z [n, E] with the conditioned rows x [n, D].
func (b *bank) condition(z []float64, x []float32) {
	if b.space == nil {
		kernels.Convert(z, x)
		return
	}
	b.space.Apply(z[:len(x)/b.d*b.out()], kernels.Converted[float64](x))
}

// scan calls what worker returns, once for each core, with blocks of up to scanRows
// rows: the first one's number, labels and features.
func (b *bank) scan(ctx context.Context, worker func() func(row int, labels []int64, x []float32) error) error {
	chunk := max(scanBytes/(4*b.d)/scanRows, 1) * scanRows
	first := 0
	for _, set := range b.data.Sets {
		for from := 0; from < set.N; from += chunk {
			to := min(from+chunk, set.N)
			if b.large {
				set.Pages().Need(to*b.d, min(to+chunk, set.N)*b.d)
			}
			err := parallel.Ranges(ctx, to-from, scanRows, func() func(int, int) error {
				do := worker()
				return func(i, end int) error {
					i, end = i+from, end+from
					return do(first+i, b.data.Labels[first+i:first+end], set.Block(i, end))
				}
			})
			if err != nil {
				return err
			}
			if b.large {
				set.Pages().Release()
			}
		}
		first += set.N
	}
	return nil
}

// found is a training row and its distance.
type found struct {
	row      int
	distance float64
}

// nearest returns the k training rows nearest to each of the rows x [n, D], the
// nearest first; equally near ones in the order of the rows.
func (b *bank) nearest(ctx context.Context, x []float32, k int) ([][]found, error) {
	var all [][]found
	for block := range slices.Chunk(x, most*b.d) {
		some, err := b.some(ctx, block, k)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// query is a row whose neighbours are sought.
type query struct {
	z     []float64 // conditioned
	add   float64   // ‖q‖² + 2·μ·w
	slack float64   // how far a squared distance can be rounded
}

func (b *bank) some(ctx context.Context, x []float32, k int) ([][]found, error) {
	n, d, e := len(x)/b.d, b.d, b.out()
	z := make([]float64, n*e)
	b.condition(z, x)
	wide := b.back(z) // w of each query
	w, queries := kernels.Converted[float32](wide), make([]query, n)
	for i := range queries {
		q := query{z: z[i*e : (i+1)*e]}
		q.add = squareOf(q.z)
		if b.space != nil {
			for j, mu := range b.space.Mean {
				q.add += 2 * float64(mu) * wide[i*d+j]
			}
		}
		// Rounding of w, of D products and of their sums, by 2⁻²⁴ of Σ|x_j w_j| ≤
		// ‖x‖‖w‖ at the most, twice, as the product counts twice; doubled for higher
		// orders and what float64 rounds.
		q.slack = 4*float64(d+4)*0x1p-24*b.reach*length(w[i*d:(i+1)*d], nil) + 1e-9*q.add
		queries[i] = q
	}
	var workers [][]hits
	begin := make(chan struct{}, 1) // guards workers
	begin <- struct{}{}
	err := b.scan(ctx, func() func(int, []int64, []float32) error {
		own, products := make([]hits, n), make([]float32, n*scanRows)
		<-begin
		workers = append(workers, own)
		begin <- struct{}{}
		return func(row int, labels []int64, x []float32) error {
			m := len(labels)
			linalg.NT(n, m, d, w, x, products[:n*m])
			for i := range own {
				for j, p := range products[i*m : (i+1)*m] {
					own[i].offer(found{row + j, b.square[row+j] - 2*float64(p)*b.scale[row+j] + queries[i].add}, k, 2*queries[i].slack)
				}
			}
			return nil
		}
	})
	if err != nil {
		return nil, err
	}
	all := make([][]found, n)
	err = parallel.Ranges(ctx, n, 1, func() func(int, int) error {
		return func(i, _ int) error {
			var h hits
			for _, own := range workers {
				for _, f := range own[i].all {
					h.offer(f, k, 2*queries[i].slack)
				}
			}
			h.cut(k, 2*queries[i].slack)
			all[i] = b.exact(h.all, queries[i].z, k)
			return nil
		}
	})
	if b.large {
		for _, set := range b.data.Sets {
			set.Pages().Release()
		}
	}
	return all, err
}

// back returns Wq [n, D] for conditioned rows q [n, E].
func (b *bank) back(q []float64) []float64 {
	d, e := b.d, b.out()
	w := make([]float64, len(q)/e*d)
	switch {
	case b.space == nil:
		copy(w, q)
	case b.wide == nil:
		for i, v := range q {
			w[i] = v * float64(b.space.Scale[i%d])
		}
	default:
		linalg.NT(len(q)/e, d, e, q, b.wide, w)
	}
	return w
}

// exact returns the k nearest of the rows, by their distances in float64.
func (b *bank) exact(rows []found, z []float64, k int) []found {
	e := len(z)
	of := make([]float64, e)
	for i, f := range rows {
		b.condition(of, b.data.Row(f.row))
		var sum float64
		for j, v := range of {
			sum += (v - z[j]) * (v - z[j])
		}
		rows[i].distance = math.Sqrt(sum)
	}
	slices.SortFunc(rows, func(f, g found) int {
		return cmp.Or(cmp.Compare(f.distance, g.distance), cmp.Compare(f.row, g.row))
	})
	return rows[:min(k, len(rows))]
}

// hits are the rows that can be among the k nearest, by rounded squared distances.
type hits struct {
	least []float64 // the k smallest of these, ascending
	all   []found
}

// mostHits bounds the rows that are looked at again for a query. More are within
// rounding of each other only if they are copies.
const mostHits = 4096

func (h *hits) offer(f found, k int, slack float64) {
	full := len(h.least) == k
	if !(f.distance <= math.MaxFloat64) || full && f.distance > h.least[k-1]+slack {
		return
	}
	if at, _ := slices.BinarySearch(h.least, f.distance); at < k {
		h.least = slices.Insert(h.least, at, f.distance)[:min(len(h.least)+1, k)]
	}
	h.all = append(h.all, f)
	if len(h.all) >= 2*mostHits || len(h.all) == 64+4*k {
		h.cut(k, slack)
	}
}

// cut drops what cannot be among the k nearest.
func (h *hits) cut(k int, slack float64) {
	if len(h.least) == k {
		limit := h.least[k-1] + slack
		h.all = slices.DeleteFunc(h.all, func(f found) bool { return f.distance > limit })
	}
	if len(h.all) > mostHits {
		slices.SortFunc(h.all, func(f, g found) int {
			return cmp.Or(cmp.Compare(f.distance, g.distance), cmp.Compare(f.row, g.row))
		})
		h.all = h.all[:mostHits]
	}
}

func squareOf(x []float64) float64 {
	var sum float64
	for _, v := range x {
		sum += v * v
	}
	return sum
}
