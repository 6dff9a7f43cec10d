package posthoc

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"

	"mlrbfn/internal/kernels"
	"mlrbfn/internal/products"
)

// search finds for each query the bank rows of the largest weight·cosine, all
// of them exactly, in bounded memory.
//
// Products in float32 of a tile of queries with a block of the bank say which
// rows can be among the K largest: those whose product is no further below the
// K-th largest than rounding can put it. These alone are computed in float64.
// The bank is read once for as many queries as the memory holds.
type search struct {
	bank    *Data
	weights []float64 // [N]; nil means 1
	k       int
	memory  int64 // bytes for queries and blocks; 0 means 1 GiB
}

const (
	tileRows  = 64      // queries of one product
	maxBlock  = 1 << 14 // bank rows of one product, at most
	gibibytes = 1 << 30
)

// plan says how many queries and how many bank rows are worked on at once. A
// quarter of the memory is for the bank rows, a quarter for the products of
// these with the tiles, the rest for the queries and what was found for them.
func (s search) plan(workers int) (queries, block int, err error) {
	memory := s.memory
	if memory == 0 {
		memory = gibibytes
	}
	d := int64(s.bank.D)
	rows := min(memory/4/(8*d+48), memory/4/int64(workers*tileRows*4), maxBlock, int64(s.bank.N))
	n := memory / 2 / (4*d + 8*int64(min(s.k, s.bank.N)) + 32)
	if rows < 1 || n < 1 {
		return 0, 0, fmt.Errorf("%d bytes of memory do not hold a row of %d features with %d neighbours", memory, d, s.k)
	}
	return int(n), int(rows), nil
}

// run calls each, on several goroutines, for every query with the min(K, N)
// largest values in descending order. Rows of zeros, which have no direction,
// are nobody's neighbours: for a query of zeros there are none, and in the bank
// they are left out, as are rows that are not finite; for such a query it is NaN.
func (s search) run(ctx context.Context, dst []float64, b Batch, each func(i int, best []float64)) error {
	if err := b.dim(len(dst), s.bank.D); err != nil {
		return err
	}
	workers := runtime.GOMAXPROCS(0)
	queries, block, err := s.plan(workers)
	if err != nil {
		return err
	}
	d := s.bank.D
	for from := 0; from < len(dst); from += queries {
		x := b.Features[from*d : min(from+queries, len(dst))*d]
		if err := s.some(ctx, x, block, workers, func(i int, best []float64) { each(from+i, best) }); err != nil {
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
	unit, length := make([]float32, len(x)), make([]float64, n)
	for i := range n {
		length[i] = norm(x[i*d : (i+1)*d])
		for j, v := range x[i*d : (i+1)*d] {
			unit[i*d+j] = float32(over(float64(v), length[i]))
		}
	}
	found := make([]heap, n)
	values := make([]float64, n*k)
	for i := range found {
		found[i] = values[i*k : i*k : (i+1)*k]
		if !finite(length[i]) {
			found[i], length[i] = found[i][:1], 0
			found[i][0] = math.NaN()
		}
	}
	// Tiles borrow the products' room from each other.
	rooms := make(chan []float32, workers)
	for range workers {
		rooms <- make([]float32, min(tileRows, n)*block)
	}
	var rows packed
	for from := 0; from < s.bank.N; from += block {
		if err := s.pack(ctx, &rows, from, min(from+block, s.bank.N)); err != nil {
			return err
		}
		err := eachBlock(ctx, n, tileRows, func(i, to int) {
			room := <-rooms
			defer func() { rooms <- room }()
			m := len(rows.at)
			products.NT(to-i, m, d, unit[i*d:to*d], rows.unit, room)
			for at := i; at < to; at++ {
				if length[at] > 0 {
					product := room[(at-i)*m : (at-i+1)*m]
					found[at] = rows.merge(found[at], product, x[at*d:(at+1)*d], length[at], k)
				}
			}
		})
		if err != nil {
			return err
		}
	}
	return eachBlock(ctx, n, tileRows, func(i, to int) {
		for ; i < to; i++ {
			slices.SortFunc(found[i], func(a, b float64) int { return cmp.Compare(b, a) })
			each(i, found[i])
		}
	})
}

// packed is a block of the bank's rows but those of zeros.
type packed struct {
	features []float32 // [·, D], all rows, as they are in the bank
	at       []int     // [m], where the rows are in features
	scale    []float64 // [m], weight/length
	unit     []float32 // [m, D], weight·row/length
	slack    float64   // how far a product can be from its exact value
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
	heaviest := 0.
	for i, l := range length {
		weight := 1.
		if s.weights != nil {
			weight = s.weights[from+i]
		}
		if l == 0 || !finite(l) || !finite(weight) {
			continue
		}
		p.at, p.scale = append(p.at, i), append(p.scale, weight/l)
		heaviest = max(heaviest, math.Abs(weight))
	}
	p.unit = slices.Grow(p.unit[:0], len(p.at)*d)[:len(p.at)*d]
	// Rounding of both factors, of each of D products and of their sums, by 2⁻²⁴
	// of Σ|q_i b_i| ≤ ‖q‖‖b‖ at the most; doubled for higher orders.
	p.slack = 2 * float64(d+4) * 0x1p-24 * heaviest
	return eachBlock(ctx, len(p.at), blockRows, func(m, end int) {
		for ; m < end; m++ {
			for j, v := range p.features[p.at[m]*d : (p.at[m]+1)*d] {
				p.unit[m*d+j] = float32(float64(v) * p.scale[m])
			}
		}
	})
}

type candidate struct {
	product float32
	row     int32
}

// merge adds to the K largest values found for the query x those of this block.
func (p *packed) merge(found heap, product []float32, x []float32, length float64, k int) heap {
	floor := float32(math.Inf(-1)) // a product below it is not among the K largest
	if len(found) == k {
		floor = float32(found[0] - p.slack)
	}
	candidates := make([]candidate, 0, 4*k+64)
	for i, v := range product {
		if v < floor {
			continue
		}
		if len(candidates) == cap(candidates) {
			candidates, floor = p.cut(candidates, k, floor)
			if 2*len(candidates) > cap(candidates) { // too many within rounding of each other
				candidates = slices.Grow(candidates, cap(candidates))
			}
		}
		candidates = append(candidates, candidate{v, int32(i)})
	}
	candidates, _ = p.cut(candidates, k, floor)
	for _, c := range candidates {
		if len(found) < k || float64(c.product) >= found[0]-p.slack {
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

// value is weight·cosine of the query and a row, in float64.
func (p *packed) value(x []float32, length float64, row int) float64 {
	d := len(x)
	return kernels.Dot(x, p.features[p.at[row]*d:(p.at[row]+1)*d]) / length * p.scale[row]
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
	return search{bank: s.Bank, k: s.K, memory: s.Memory}.run(ctx, dst, b, func(i int, best []float64) {
		dst[i] = -1
		if len(best) > 0 {
			dst[i] = min(2*best[len(best)-1]-2, 0)
		}
	})
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
	classes, err := b.classes(len(dst), 0)
	if err != nil {
		return err
	}
	return search{bank: s.Bank, weights: s.Energies, k: s.K, memory: s.Memory}.run(ctx, dst, b, func(i int, best []float64) {
		dst[i] = over(sum(best), float64(len(best))) * energy(b.Logits[i*classes:(i+1)*classes], 1)
	})
}

// Relation is the strength of the relations to the training rows: Σ_j k_j over
// those k_j = max(cos(f, f_j), 0)·⟨p, p_j⟩ that exceed 0.03, with p = softmax(z).
// Reads features and logits. Features of zeros score 0.
//
// Source: Kim et al., 2023 (OpenOOD: RelationPostprocessor).
type Relation struct {
	Bank *Data `save:"logits"`
}

// FitRelation returns Relation with all rows of the data as its bank.
func FitRelation(data *Data) (*Relation, error) {
	if err := data.need(true, true, false); err != nil {
		return nil, err
	}
	return &Relation{data}, nil
}

// relationThreshold is what a relation must exceed to count.
const relationThreshold = 0.03

// Score implements [Score]. A relation is no stronger than ⟨p, p_j⟩, so that of
// each block training rows that are predicted alike are compared with those
// queries alone that may be of their classes.
func (s *Relation) Score(ctx context.Context, dst []float64, b Batch) error {
	classes, err := b.classes(len(dst), s.Bank.Classes)
	if err != nil {
		return err
	}
	d := s.Bank.D
	if err := b.dim(len(dst), d); err != nil {
		return err
	}
	queries := newRelatives(b.Features, len(dst), d, classes)
	err = eachBlock(ctx, len(dst), blockRows, func(from, to int) {
		queries.fill(from, b.Logits[from*classes:to*classes])
	})
	if err != nil {
		return err
	}
	clear(dst)
	const block = 16 * blockRows
	for from := 0; from < s.Bank.N; from += block {
		to := min(from+block, s.Bank.N)
		bank := newRelatives(s.Bank.Features(from, to), to-from, d, classes)
		err := eachBlock(ctx, to-from, blockRows, func(at, end int) {
			bank.fill(at, s.Bank.Logits(from+at, from+end))
		})
		if err != nil {
			return err
		}
		alike := bank.alike()
		groups := make([]relatives64, len(alike))
		err = eachBlock(ctx, len(alike), 1, func(at, _ int) { groups[at] = bank.among(alike[at]) })
		if err != nil {
			return err
		}
		err = eachBlock(ctx, len(dst), 4*blockRows, func(at, end int) {
			for _, group := range groups {
				relate(dst, at, end, queries, group)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// relatives are rows with what [Relation] compares.
type relatives struct {
	d, classes int
	features   []float32 // [n, D]
	length     []float64 // [n]
	p          []float64 // [n, C], softmax of the logits
}

func newRelatives(features []float32, n, d, classes int) relatives {
	return relatives{d, classes, features, make([]float64, n), make([]float64, n*classes)}
}

// fill computes lengths and probabilities of the rows from at on.
func (r relatives) fill(at int, logits []float64) {
	copy(r.p[at*r.classes:], softmaxRows(logits, r.classes))
	for i := at; i < at+len(logits)/r.classes; i++ {
		r.length[i] = norm(r.features[i*r.d : (i+1)*r.d])
	}
}

func (r relatives) probabilities(i int) []float64 { return r.p[i*r.classes : (i+1)*r.classes] }

// alike groups the rows but those of zeros by the class that they are predicted
// as, or a few classes where these have few rows.
func (r relatives) alike() (groups [][]int) {
	const least, most = 64, 512
	var rows []int
	top := make([]int, len(r.length))
	for i, length := range r.length {
		if top[i] = argmax(r.probabilities(i)); length > 0 {
			rows = append(rows, i)
		}
	}
	slices.SortStableFunc(rows, func(a, b int) int { return cmp.Compare(top[a], top[b]) })
	from := 0
	for at := 1; at <= len(rows); at++ {
		if n := at - from; at == len(rows) || n == most || n >= least && top[rows[at]] != top[rows[at-1]] {
			groups, from = append(groups, rows[from:at]), at
		}
	}
	return groups
}

// relatives64 are some of the rows, ready to be compared.
type relatives64 struct{ x, length, p []float64 }

// among returns the rows that are named.
func (r relatives) among(rows []int) relatives64 {
	some := relatives64{x: make([]float64, len(rows)*r.d)}
	for i, row := range rows {
		widen(some.x[i*r.d:], r.features[row*r.d:(row+1)*r.d])
		some.length = append(some.length, r.length[row])
		some.p = append(some.p, r.probabilities(row)...)
	}
	return some
}

// relate adds to the scores of the queries from … to−1 their relations to a
// group of the bank's rows.
func relate(scores []float64, from, to int, queries relatives, group relatives64) {
	most := make([]float64, queries.classes)
	for p := range slices.Chunk(group.p, queries.classes) {
		for c, v := range p {
			most[c] = max(most[c], v)
		}
	}
	var rows []int // queries that can be related to any of them
	for i := from; i < to; i++ {
		if queries.length[i] > 0 && (1+1e-9)*dot(most, queries.probabilities(i)) > relationThreshold {
			rows = append(rows, i)
		}
	}
	some := queries.among(rows)
	n, m := len(rows), len(group.length)
	inner, likeness := make([]float64, n*m), make([]float64, n*m)
	products.NT(n, m, queries.d, some.x, group.x, inner)
	products.NT(n, m, queries.classes, some.p, group.p, likeness)
	for i, row := range rows {
		for j, v := range inner[i*m : (i+1)*m] {
			if v = v / (some.length[i] * group.length[j]) * likeness[i*m+j]; v > relationThreshold {
				scores[row] += v
			}
		}
	}
}

// softmaxRows returns the softmax of rows of logits.
func softmaxRows(logits []float64, classes int) []float64 {
	p := make([]float64, 0, len(logits))
	for z := range slices.Chunk(logits, classes) {
		z = possible(z)
		sum, _ := logSumExp(z, 1)
		for _, v := range z {
			p = append(p, math.Exp(v-sum))
		}
	}
	return p
}
