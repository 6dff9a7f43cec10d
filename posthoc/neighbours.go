package posthoc

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"runtime"
	"slices"

	"mlrbfn/internal/kernels"
	"mlrbfn/internal/products"
)

// search finds for each query the bank rows of the largest cosine, all of them
// exactly, in bounded memory.
//
// Products in float32 of a tile of queries with a block of the bank say which
// rows can be among the K largest: those whose product is no further below the
// K-th largest than rounding can put it. These alone are computed in float64.
// The bank is read once for as many queries as the memory holds.
//
// On the way it sums up relations of the queries to all of the bank.
type search struct {
	bank      *Data
	k         int   // 0 means that none is looked for
	memory    int64 // bytes for queries and blocks; 0 means 1 GiB
	relations []*relation

	// each is called, on several goroutines, for every query with the min(K, N)
	// largest values, the smallest of them first, the others in any order.
	each func(i int, best []float64)
}

const (
	tileRows  = 64      // queries of one product
	maxBlock  = 1 << 14 // bank rows of one product, at most
	gibibytes = 1 << 30
)

// plan says how many queries and how many bank rows are worked on at once. A
// quarter of the memory is for the bank rows, a quarter for the products of
// these with the tiles, the rest for the queries and what was found for them.
// How relations are summed up must not depend on the memory.
func (s search) plan(workers int) (queries, block int, err error) {
	memory := s.memory
	if memory == 0 {
		memory = gibibytes
	}
	d := int64(s.bank.D)
	rows := min(memory/4/(8*d+48), memory/4/int64(workers*tileRows*4), maxBlock, int64(s.bank.N))
	row := 4*d + 8*int64(min(s.k, s.bank.N)) + 32
	for _, r := range s.relations {
		row += 8 * int64(r.classes)
		rows = min(relationBlock, int64(s.bank.N))
	}
	n := memory / 2 / row
	if rows < 1 || n < 1 {
		return 0, 0, fmt.Errorf("%d bytes of memory do not hold a row of %d features with %d neighbours", memory, d, s.k)
	}
	return int(n), int(rows), nil
}

// run goes through a bank for n queries. Rows of zeros, which have no direction,
// are nobody's neighbours: for a query of zeros there are none, and in the bank
// they are left out, as are rows that are not finite; for such a query it is NaN.
func (s search) run(ctx context.Context, bank *Data, n int, b Batch) error {
	s.bank = bank
	if err := b.dim(n, s.bank.D); err != nil {
		return err
	}
	workers := runtime.GOMAXPROCS(0)
	queries, block, err := s.plan(workers)
	if err != nil {
		return err
	}
	d := s.bank.D
	for from := 0; from < n; from += queries {
		x := b.Features[from*d : min(from+queries, n)*d]
		for _, r := range s.relations {
			if err := r.ask(ctx, from, len(x)/d); err != nil {
				return err
			}
		}
		if err := s.some(ctx, x, block, workers, func(i int, best []float64) { s.each(from+i, best) }); err != nil {
			return err
		}
	}
	return nil
}

// some does run for queries x [n, D] that are held in memory at once.
func (s search) some(ctx context.Context, x []float32, block, workers int, each func(i int, best []float64)) error {
	d := s.bank.D
	n := len(x) / d
	k := min(s.k, s.bank.N)
	// Scaled by a power of 2, which is exact, to a length in [1/2, 1).
	scaled, length := make([]float32, len(x)), make([]float64, n)
	found := make([]heap, n)
	values := make([]float64, n*k)
	err := eachBlock(ctx, n, blockRows, func(i, to int) {
		for ; i < to; i++ {
			found[i] = values[i*k : i*k : (i+1)*k]
			row := x[i*d : (i+1)*d]
			l, exponent := math.Frexp(norm(row))
			if !finite(l) {
				if k > 0 {
					found[i] = append(found[i], math.NaN())
				}
				for _, r := range s.relations {
					r.scores[i] = math.NaN()
				}
				continue
			}
			length[i] = l
			factor := math.Ldexp(1, -exponent)
			for j, v := range row {
				scaled[i*d+j] = float32(float64(v) * factor)
			}
		}
	})
	if err != nil {
		return err
	}
	// Tiles borrow the products' room from each other.
	rooms := make(chan []float32, workers)
	for range workers {
		rooms <- make([]float32, min(tileRows, n)*block+mostSegment) // relations read beyond the products
	}
	var rows packed
	for from := 0; from < s.bank.N; from += block {
		if err := s.pack(ctx, &rows, from, min(from+block, s.bank.N)); err != nil {
			return err
		}
		for _, r := range s.relations {
			if err := r.prepare(ctx, &rows); err != nil {
				return err
			}
		}
		err := eachBlock(ctx, n, tileRows, func(i, to int) {
			room := <-rooms
			defer func() { rooms <- room }()
			m := len(rows.at)
			products.NT(to-i, m, d, scaled[i*d:to*d], rows.unit, room)
			for _, r := range s.relations {
				r.relate(&rows, room, scaled[i*d:to*d], length[i:to], i)
			}
			for at := i; at < to && k > 0; at++ {
				if length[at] > 0 {
					product := room[(at-i)*m : (at-i+1)*m]
					found[at] = rows.merge(found[at], product, scaled[at*d:(at+1)*d], length[at], k)
				}
			}
		})
		if err != nil {
			return err
		}
	}
	return eachBlock(ctx, n, tileRows, func(i, to int) {
		for _, r := range s.relations {
			if r.total != nil {
				r.addTotal(scaled[i*d:to*d], length[i:to], i)
			}
		}
		for ; i < to && k > 0; i++ {
			each(i, found[i])
		}
	})
}

// packed is a block of the bank's rows but those of zeros.
type packed struct {
	features []float32 // [·, D], all rows, as they are in the bank
	at       []int     // [m], where the rows are in features
	scale    []float64 // [m], 1/length
	unit     []float32 // [m, D], row/length
	slack    float64   // how far a product can be from its exact value, with a query of length 1
}

// pack puts the bank's rows from … to−1 into p, in the room that those before
// had.
func (s search) pack(ctx context.Context, p *packed, from, to int) error {
	d := s.bank.D
	p.features, p.at, p.scale = s.bank.Features(from, to), p.at[:0], p.scale[:0]
	length := make([]float64, to-from)
	err := eachBlock(ctx, to-from, blockRows, func(i, end int) {
		for ; i < end; i++ {
			length[i] = norm(p.features[i*d : (i+1)*d])
		}
	})
	if err != nil {
		return err
	}
	for i, l := range length {
		if l != 0 && finite(l) {
			p.at = append(p.at, i)
		}
	}
	for i, r := range s.relations {
		if err := r.read(ctx, from, to); err != nil {
			return err
		}
		if i == 0 && r.classes > mostSummed {
			p.order(r)
		}
	}
	for _, i := range p.at {
		p.scale = append(p.scale, 1/length[i])
	}
	p.unit = slices.Grow(p.unit[:0], len(p.at)*d)[:len(p.at)*d]
	// Rounding of both factors, of each of D products and of their sums, by 2⁻²⁴
	// of Σ|q_i b_i| ≤ ‖q‖‖b‖ at the most; doubled for higher orders.
	p.slack = 2 * float64(d+4) * 0x1p-24
	return eachBlock(ctx, len(p.at), blockRows, func(m, end int) {
		for ; m < end; m++ {
			for j, v := range p.row(m, d) {
				p.unit[m*d+j] = float32(float64(v) * p.scale[m])
			}
		}
	})
}

// row is a packed row as it is in the bank.
func (p *packed) row(m, d int) []float32 { return p.features[p.at[m]*d : (p.at[m]+1)*d] }

type candidate struct {
	product float32
	row     int32
}

// merge adds to the K largest values found for the query x, of a length up to 1,
// those of this block.
func (p *packed) merge(found heap, product []float32, x []float32, length float64, k int) heap {
	floor := float32(math.Inf(-1)) // a product below it is not among the K largest
	if len(found) == k {
		floor = float32(found[0]*length - p.slack)
	}
	candidates := make([]candidate, 0, 4*k+64)
	add := func(i int) {
		v := product[i]
		if !(v >= floor) {
			return
		}
		if len(candidates) == cap(candidates) {
			candidates, floor = p.cut(candidates, k, floor)
			if 2*len(candidates) > cap(candidates) { // too many within rounding of each other
				candidates = slices.Grow(candidates, cap(candidates))
			}
		}
		candidates = append(candidates, candidate{v, int32(i)})
	}
	const step = 256
	var large [step / 8]byte
	at := 0
	for ; at+step <= len(product); at += step {
		kernels.AtLeast(product[at:at+step], floor, large[:])
		for word := 0; word < len(large); word += 8 {
			for some := binary.LittleEndian.Uint64(large[word:]); some != 0; some &= some - 1 {
				add(at + 8*word + bits.TrailingZeros64(some))
			}
		}
	}
	for ; at < len(product); at++ {
		add(at)
	}
	candidates, _ = p.cut(candidates, k, floor)
	for _, c := range candidates {
		if len(found) < k || float64(c.product) >= found[0]*length-p.slack {
			found = found.add(p.value(x, length, int(c.row)), k)
		}
	}
	return found
}

// cut drops the candidates that cannot be among the K largest and returns the
// product below which none can. The slack on either side is twice what rounding
// needs, which leaves room for that of the floor itself.
func (p *packed) cut(candidates []candidate, k int, floor float32) ([]candidate, float32) {
	if len(candidates) < k {
		return candidates, floor
	}
	products := make([]float32, len(candidates))
	for i, c := range candidates {
		products[i] = c.product
	}
	floor = max(floor, float32(float64(kthLargest(products, k))-2*p.slack))
	return slices.DeleteFunc(candidates, func(c candidate) bool { return c.product < floor }), floor
}

// value is the cosine of the query and a row, in float64.
func (p *packed) value(x []float32, length float64, row int) float64 {
	return kernels.Dot(x, p.row(row, len(x))) / length * p.scale[row]
}

func finite(v float64) bool { return v-v == 0 }

// heap holds up to K values, the smallest first, each no larger than the two
// below it.
type heap []float64

// add keeps the k largest.
func (h heap) add(v float64, k int) heap {
	if len(h) < k {
		h = append(h, v)
		for i := len(h) - 1; i > 0 && h[(i-1)/2] > h[i]; i = (i - 1) / 2 {
			h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
		}
		return h
	}
	if !(v > h[0]) {
		return h
	}
	h[0] = v
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < k; child++ {
			if h[child] < h[least] {
				least = child
			}
		}
		if least == i {
			return h
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

// KNN is the distance to the K-th nearest training row: −‖f/‖f‖ − g/‖g‖‖²,
// squared. Reads features. It is exact; K above the number of rows means the
// furthest of them. Training rows of zeros are nobody's neighbours; features of
// zeros score −1, their squared distance from any row of length 1 (OpenOOD's is
// −3.4e38).
//
// Source: Sun et al., 2022 (OpenOOD: KNNPostprocessor).
type KNN struct {
	K      int
	Bank   *Data // its features alone are read
	Memory int64 `save:"-"` // bytes that scoring takes, whatever the bank's size; 0 means 1 GiB
}

// FitKNN returns KNN with all rows of the data as its bank; k of 0 means 50.
func FitKNN(data *Data, k int) (*KNN, error) {
	if err := data.need(true, false, false); err != nil {
		return nil, err
	}
	if k < 0 {
		return nil, fmt.Errorf("%d nearest neighbours: it cannot be negative", k)
	}
	if k == 0 {
		k = 50
	}
	return &KNN{K: k, Bank: data}, nil
}

// Score implements [Score].
func (s *KNN) Score(ctx context.Context, dst []float64, b Batch) error {
	return alone(ctx, s, dst, b)
}

// NNGuide is the energy, guided by the nearest neighbours: E(z) times the mean
// of the K largest E(z_i)·cos(f, f_i) over a bank of training rows, with
// E(z) = log Σ_c exp(z_c). Reads features and logits. Features of zeros have no
// neighbours and score 0 (OpenOOD: −Inf).
//
// Source: Park et al., 2023 (OpenOOD: NNGuidePostprocessor).
type NNGuide struct {
	K        int // more than the bank has means all
	Bank     *Data
	Energies []float64 // [N], of the bank
	Memory   int64     `save:"-"` // as of KNN
}

// FitNNGuide takes as the bank the given share of the training rows, at equal
// distances from each other, and no fewer than k. k of 0 means 100, a share of 0
// means 0.01. OpenOOD takes the first rows of a shuffled order.
func FitNNGuide(ctx context.Context, data *Data, k int, share float64) (*NNGuide, error) {
	if err := data.need(true, true, false); err != nil {
		return nil, err
	}
	if k == 0 {
		k = 100
	}
	if share == 0 {
		share = 0.01
	}
	if k < 0 || !(share > 0 && share <= 1) {
		return nil, fmt.Errorf("%d nearest neighbours in a share %g of the training rows: it lies in (0, 1]", k, share)
	}
	rows := max(share*float64(data.N), float64(k))
	s := &NNGuide{K: k, Bank: data.every(max(int(float64(data.N)/rows), 1))}
	err := s.Bank.blocks(ctx, func(from, to int) error {
		for z := range slices.Chunk(s.Bank.Logits(from, to), data.Classes) {
			s.Energies = append(s.Energies, energy(z, 1))
		}
		return nil
	})
	return s, err
}

// Score implements [Score].
func (s *NNGuide) Score(ctx context.Context, dst []float64, b Batch) error {
	return alone(ctx, s, dst, b)
}

// guidance is NNGuides with the same bank.
type guidance struct {
	guides []guide
	memory int64
}

// guide is one with the queries' logits [n, classes].
type guide struct {
	*NNGuide
	dst     []float64
	logits  []float64
	classes int
}

// run scores n queries. All cosines are computed in float64: of a small bank most
// would be in the end.
func (g guidance) run(ctx context.Context, bank *Data, n int, b Batch) error {
	d := bank.D
	if err := b.dim(n, d); err != nil {
		return err
	}
	values := int64(cmp.Or(g.memory, gibibytes)) / 8
	row := 0 // of a query: what is found for it
	for _, s := range g.guides {
		row += min(s.K, bank.N)
	}
	rows, queries := min(values/4/int64(2*d+tileRows), 1<<10), min(values/2/int64(row+1), 1<<14)
	if rows < 1 || queries < 1 {
		return fmt.Errorf("%d bytes of memory do not hold a row of %d features with %d neighbours", 8*values, d, row)
	}
	for from := 0; from < n; from += int(queries) {
		if err := g.some(ctx, bank, int(rows), b.Features, from, min(from+int(queries), n)); err != nil {
			return err
		}
	}
	return nil
}

// some scores the queries from … to−1.
func (g guidance) some(ctx context.Context, bank *Data, rows int, x []float32, from, to int) error {
	d := bank.D
	best := make([][][]float64, len(g.guides)) // of each query up to K
	for i := range best {
		best[i] = make([][]float64, to-from)
	}
	for first := 0; first < bank.N; first += rows {
		unit := make([]float64, (min(first+rows, bank.N)-first)*d)
		widen(unit, bank.Features(first, first+len(unit)/d))
		normaliseRows(unit, d)
		neighbour := make([]bool, len(unit)/d) // not rows of zeros, or that are not finite
		for i := range neighbour {
			length := norm(unit[i*d : (i+1)*d])
			neighbour[i] = length != 0 && finite(length)
		}
		var packed right
		err := eachBlock(ctx, to-from, tileRows, func(i, end int) {
			n, m := end-i, len(neighbour)
			wide, done := scratch(n*d + n*m + m)
			defer done()
			queries, cosines, values := wide[:n*d], wide[n*d:n*(d+m)], wide[n*(d+m):]
			widen(queries, x[(from+i)*d:(from+end)*d])
			normaliseRows(queries, d)
			packed.times(m, d, queries, unit, cosines)
			for q := i; q < end; q++ {
				cosines := cosines[(q-i)*m : (q-i+1)*m]
				for s, guide := range g.guides {
					values := values[:0]
					for j, energy := range guide.Energies[first : first+m] {
						if neighbour[j] && finite(energy) {
							values = append(values, cosines[j]*energy)
						}
					}
					best[s][q] = largest(append(values, best[s][q]...), guide.K)
				}
			}
		})
		if err != nil {
			return err
		}
	}
	return eachBlock(ctx, to-from, tileRows, func(i, end int) {
		for ; i < end; i++ {
			for s, guide := range g.guides {
				at, best := from+i, best[s][i]
				slices.Sort(best) // for the same sum whatever the memory
				guide.dst[at] = over(sum(best), float64(len(best))) * energy(guide.logits[at*guide.classes:(at+1)*guide.classes], 1)
			}
		}
	})
}

// largest returns the k largest of some values, in any order, or all where there
// are fewer, or NaN alone where one is. It changes their order.
func largest(values []float64, k int) []float64 {
	if slices.ContainsFunc(values, math.IsNaN) {
		return []float64{math.NaN()}
	}
	if len(values) > k {
		kthLargest(values, k)
		values = values[:k]
	}
	return slices.Clone(values)
}
