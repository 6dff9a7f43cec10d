package posthoc

import (
	"cmp"
	"context"
	"encoding/binary"
	"math"
	"math/bits"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// search finds for each query the bank rows of the largest cosine, all of them
// exactly, in bounded memory.
//
// Products of a tile of queries with a block of the bank, in float32 or coarser, select
// the rows that can be among the K largest: those whose product is less far below
// the K-th largest than rounding reaches. Only these are computed in float64. The
// bank is read once for as many queries as the memory holds. Where coarse products
// leave too many rows, products in float32 search the rest of the bank.
//
// The products serve the relations of the queries to the bank too. A search
// computes all KNNs and Relations with the same bank.
type search struct {
	bank       *Data
	memory     int64 // bytes for queries and blocks
	neighbours []neighbour
	relations  []*relation

	k int // the largest of the neighbours; 0 means that none is looked for

	coarse bool         // the products
	exact  atomic.Int64 // how many cosines were computed in float64 in vain, perhaps
}

// neighbour is a KNN.
type neighbour struct {
	k   int
	dst []float64
}

const groupSearch = "search of a bank"

const (
	tileRows = 64      // queries of one product
	maxBlock = 1 << 14 // bank rows that are packed at a time, at most

	searchStep = 256 // products that are compared at a time

	// Coarse products of so many queries with the same bank rows, of so many bytes, read
	// these rows from the second-level cache. A panel and a segment of relations divides
	// their number.
	wideRows   = 8 * tileRows
	cacheBytes = 3 << 18
	cacheRows  = 192

	// worthOfExact is how many products in float32 take the time of a cosine in float64.
	worthOfExact = 32
)

// leastCoarse is how many queries, and how many rows for each neighbour, pay for coarse
// products. It is a variable for tests.
var leastCoarse = 256

// searchOf returns the search of a bank, for a score that may take so much memory.
func searchOf(t *together, bank *Data, memory int64) *search {
	bank = bank.source()
	w := workOn[search](t, bank)
	w.bank, w.memory = bank, leastMemory(w.memory, memory)
	return w
}

// leastMemory returns the smaller one of the memory found so far, 0 if there is
// none yet, and an option.
func leastMemory(sofar, option int64) int64 {
	if option = cmp.Or(option, DefaultMemory); sofar == 0 {
		return option
	}
	return min(sofar, option)
}

// wholeTiles rounds a number of queries, so that tiles are the same whatever the
// memory.
func wholeTiles(queries int64) int64 {
	if queries < tileRows {
		return queries
	}
	return queries - queries%tileRows
}

// plan returns how many queries and how many bank rows are worked on at once. A
// quarter of the memory is for the bank rows, a quarter for their products with
// the tiles, and the rest for the queries and their neighbours. With relations the
// number of rows is fixed: with few classes the order of their sums, and so how these are
// rounded, must not depend on the memory.
func (s *search) plan(workers int) (queries, block int, err error) {
	memory, d := s.memory, int64(s.bank.D)
	rows := min(memory/4/(8*d+48), memory/4/int64(workers*tileRows*4), maxBlock, int64(s.bank.N))
	row := 6*d + 8*int64(min(s.k, s.bank.N)) + 32
	for _, r := range s.relations {
		row += 14*int64(r.classes) + 24
		rows = min(relationBlock, int64(s.bank.N))
	}
	var list int64 // of candidates
	if k := min(s.k, s.bank.N); k > 0 {
		list = 8 * int64(mostCandidates(k, int(rows)))
	}
	n := wholeTiles(memory / 2 / (row + list/4))
	if n < int64(4*workers*tileRows) { // with fewer queries more than a quarter of them have one
		n = wholeTiles(memory / 2 / (row + list))
	}
	if rows < 1 || n < 1 {
		return 0, 0, options.Errorf("Memory", "%d bytes do not hold a row of %d features with %d neighbours", memory, d, s.k)
	}
	return int(n), int(rows), nil
}

// run reads the bank for n queries. Rows of zeros have no direction and no
// neighbours: in the bank they are skipped, as are rows that are not finite. A query
// that is not finite scores NaN.
func (s *search) run(ctx context.Context, n int, b Batch) error {
	// Relations of few classes and of many need the bank in different orders.
	if many := slices.IndexFunc(s.relations, func(r *relation) bool { return r.classes > mostSummed }); many >= 0 {
		other := search{bank: s.bank, memory: s.memory}
		s.relations = slices.DeleteFunc(s.relations, func(r *relation) bool {
			if r.classes <= mostSummed {
				other.relations = append(other.relations, r)
			}
			return r.classes <= mostSummed
		})
		if len(other.relations) > 0 {
			if err := other.run(ctx, n, b); err != nil {
				return err
			}
		}
	}
	for _, knn := range s.neighbours {
		s.k = max(s.k, knn.k)
	}
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
		if err := s.some(ctx, x, from, block, workers); err != nil {
			return err
		}
	}
	return nil
}

// scale puts queries [from, to) of x, scaled by a power of 2, which is exact, to a length in
// [1/2, 1), into scaled, and their lengths into length. What is not finite has the score NaN.
func (s *search) scale(x, scaled []float32, length []float64, found []heap, from, to int) {
	d := s.bank.D
	for i := from; i < to; i++ {
		row := x[i*d : (i+1)*d]
		l, exponent := math.Frexp(norm(row))
		if !finite(l) {
			if cap(found[i]) > 0 {
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
}

// searchPass compares queries with the rows of a block of the bank.
type searchPass struct {
	s       *search
	rows    *packed
	left    *kernels.Left
	scaled  []float32
	length  []float64
	found   []heap
	k, most int // neighbours of a query, and its candidates in the block
	some    int // rows of the block at a time
	wide    int // queries at a time
	rooms   chan *searchRoom
}

// look compares queries [i, to).
func (p *searchPass) look(i, to int) {
	m := len(p.rows.at)
	room := <-p.rooms
	defer func() { p.rooms <- room }()
	room.look(p.s.relations, i, to)
	all := tile{p.rows, p.left, p.scaled, p.length, i, to, 0, m, room}
	var lists []shortlist
	if p.k > 0 {
		lists = room.shortlists(to-i, p.most)
	}
	for at := range lists {
		lists[at].floor = all.floor(p.found[i+at], i+at, p.k)
	}
	for first := 0; first < m; first += p.some {
		last := min(first+p.some, m)
		for from := i; from < to; from += tileRows {
			t := tile{p.rows, p.left, p.scaled, p.length, from, min(from+tileRows, to), first, last, room}
			t.multiply()
			for at, r := range p.s.relations {
				p.s.exact.Add(r.relate(&t, room.some[at][from%p.wide*len(r.lengths):]))
			}
			for at := from; at < t.to && p.k > 0; at++ {
				if p.length[at] > 0 {
					p.found[at] = t.collect(&lists[at-i], p.found[at], at, p.k)
				}
			}
		}
	}
	for at := range lists {
		l := &lists[at]
		p.found[i+at] = all.settle(l, p.found[i+at], i+at, p.k, all.cut(l, i+at, p.k))
		p.found[i+at] = all.compute(l.candidates, p.found[i+at], i+at, p.k)
	}
	p.s.exact.Add(room.exact)
	room.exact = 0
}

// some does run for queries x [n, D], from the first on, that are held in memory at
// once.
func (s *search) some(ctx context.Context, x []float32, first, block, workers int) error {
	d := s.bank.D
	n := len(x) / d
	k := min(s.k, s.bank.N)
	s.coarse = n >= leastCoarse && s.bank.N/max(k, 1) >= leastCoarse && !slices.ContainsFunc(s.relations, func(r *relation) bool { return r.total != nil })
	s.exact.Store(0)
	scaled, length := make([]float32, len(x)), make([]float64, n)
	left := kernels.NewLeft(scaled, d, s.coarse)
	found := make([]heap, n)
	values := make([]float64, n*k)
	for i := range found {
		found[i] = values[i*k : i*k : (i+1)*k]
	}
	err := parallel.Blocks(ctx, n, blockRows, func(from, to int) {
		s.scale(x, scaled, length, found, from, to)
		left.Set(from, to)
	})
	if err != nil {
		return err
	}
	// Tiles share the buffers of the products.
	rooms := make(chan *searchRoom, workers)
	for range workers {
		rooms <- &searchRoom{some: make([][]bool, len(s.relations))}
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
		wide, some := tileRows, max(len(rows.at), 1)
		if s.coarse {
			wide = min(max(n/(4*workers*tileRows), 1)*tileRows, wideRows)
			some = max(cacheBytes/rows.unit.RowBytes()/cacheRows, 1) * cacheRows
		}
		pass := searchPass{s, &rows, left, scaled, length, found, k, mostCandidates(k, block), some, wide, rooms}
		err := parallel.Blocks(ctx, n, wide, pass.look)
		if err != nil {
			return err
		}
		// The first rows always leave some.
		seen := int64(from + len(rows.at))
		if s.exact.Load() > int64(n)*(seen/worthOfExact+int64(leastCoarse/8*k)) {
			s.coarse = false
		}
	}
	return parallel.Blocks(ctx, n, tileRows, func(i, to int) {
		for _, r := range s.relations {
			if r.total != nil {
				r.addTotal(scaled[i*d:to*d], length[i:to], i)
				continue
			}
			for j := i; j < to; j++ {
				r.scores[j] += r.sums[j].value() // to 0 or NaN
			}
		}
		for ; i < to; i++ {
			for _, knn := range s.neighbours {
				score := -1. // of a query without neighbours
				if best := found[i]; len(best) > 0 {
					score = min(2*linalg.KthLargest(best, min(knn.k, len(best)))-2, 0)
				}
				knn.dst[first+i] = score
			}
		}
	})
}

// packed is a block of the bank's rows without those of zeros.
type packed struct {
	features []float32    // [·, D], all rows, as they are in the bank
	at       []int        // [m], where the rows are in features
	scale    []float64    // [m], 1/length
	unit     kernels.Bank // [m, D], row/length
}

// pack puts the bank's rows from … to−1 into p and reuses its buffers.
func (s *search) pack(ctx context.Context, p *packed, from, to int) error {
	d := s.bank.D
	p.features, p.at, p.scale = s.bank.Features(from, to), p.at[:0], p.scale[:0]
	length := make([]float64, to-from)
	err := parallel.Blocks(ctx, to-from, blockRows, func(i, end int) {
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
			r.sort(p)
		}
	}
	for _, i := range p.at {
		p.scale = append(p.scale, 1/length[i])
	}
	p.unit.Reset(len(p.at), d, s.coarse)
	panels, high := p.unit.Panels()
	return parallel.Blocks(ctx, panels, max(1, blockRows/high), func(panel, end int) {
		unit := make([]float32, high*d)
		for ; panel < end; panel++ {
			first, last := panel*high, min((panel+1)*high, len(p.at))
			for m := first; m < last; m++ {
				row := unit[(m-first)*d:][:d]
				for j, v := range p.row(m, d) {
					row[j] = float32(float64(v) * p.scale[m])
				}
			}
			p.unit.Set(panel, unit[:(last-first)*d])
		}
	})
}

// row is a packed row as it is in the bank.
func (p *packed) row(m, d int) []float32 { return p.features[p.at[m]*d : (p.at[m]+1)*d] }

// searchRoom is what one goroutine works in.
type searchRoom struct {
	products []float32
	likeness []float32 // of a relation
	shares   []float64 // of a relation
	lists    []shortlist
	sorted   []float32 // products of candidates
	large    [searchStep / 8]byte
	some     [][]bool // [relations], as look sets it
	exact    int64    // see search
}

// look looks for segments that can have relations that count to queries from … to−1.
func (room *searchRoom) look(relations []*relation, from, to int) {
	for at, r := range relations {
		if r.total != nil {
			continue
		}
		segments := len(r.lengths)
		room.some[at] = slices.Grow(room.some[at][:0], (to-from)*segments)[:(to-from)*segments]
		for i := from; i < to; i += tileRows {
			r.look(room.some[at][(i-from)*segments:], i, min(i+tileRows, to))
		}
	}
}

// tile is some queries and some packed rows, and the products of them.
type tile struct {
	*packed
	left        *kernels.Left
	scaled      []float32 // of all queries
	length      []float64
	from, to    int // queries
	first, last int // rows
	room        *searchRoom
}

func (t *tile) multiply() {
	// Relations read beyond the products.
	if size := (t.to-t.from)*(t.last-t.first) + mostSegment; len(t.room.products) < size {
		t.room.products = make([]float32, size)
	}
	t.unit.Times(t.left, t.from, t.to, t.first, t.last, t.room.products)
}

// products returns those of a query with all rows, with some numbers behind them.
func (t *tile) products(query int) []float32 {
	return t.room.products[(query-t.from)*(t.last-t.first):]
}

// query returns what is compared with the rows, of a length up to 1.
func (t *tile) query(i int) []float32 {
	d := len(t.scaled) / len(t.length)
	return t.scaled[i*d : (i+1)*d]
}

// shortlist is the rows of a block that can be among the K nearest ones of a query.
type shortlist struct {
	candidates []candidate
	floor      float32 // a product below it is not among the K largest
}

type candidate struct {
	product float32
	row     int32
}

// mostCandidates is how many candidates for K neighbours in a block are kept at a time.
func mostCandidates(k, block int) int { return min(8*k+128, block) }

// shortlists returns some for n queries, without candidates.
func (room *searchRoom) shortlists(n, most int) []shortlist {
	for len(room.lists) < n {
		room.lists = append(room.lists, shortlist{candidates: make([]candidate, 0, most)})
	}
	for i := range room.lists[:n] {
		room.lists[i].candidates = room.lists[i].candidates[:0]
	}
	return room.lists[:n]
}

// floor returns the product below which none is among the K largest if these were found.
func (t *tile) floor(found heap, query, k int) float32 {
	if len(found) < k {
		return float32(math.Inf(-1))
	}
	above, _ := t.unit.Slack(t.left, query)
	return float32(found[0]*t.length[query] - above)
}

// collect adds the tile's rows to the candidates of a query. If these become too many
// it settles them.
func (t *tile) collect(l *shortlist, found heap, query, k int) heap {
	product := t.products(query)[:t.last-t.first]
	add := func(i int) {
		v := product[i]
		if !(v >= l.floor) {
			return
		}
		if full := cap(l.candidates); len(l.candidates) == full {
			if kth := t.cut(l, query, k); 2*len(l.candidates) >= full {
				found = t.settle(l, found, query, k, kth)
			}
			if 2*len(l.candidates) >= full { // still too many within rounding of each other
				found = t.compute(l.candidates, found, query, k)
				l.candidates = l.candidates[:0]
				l.raise(t.floor(found, query, k))
			}
		}
		l.candidates = append(l.candidates, candidate{v, int32(t.first + i)})
	}
	large, at := t.room.large[:], 0
	for ; at+searchStep <= len(product); at += searchStep {
		kernels.AtLeast(product[at:at+searchStep], l.floor, large)
		for word := 0; word < len(large); word += 8 {
			for some := binary.LittleEndian.Uint64(large[word:]); some != 0; some &= some - 1 {
				add(at + 8*word + bits.TrailingZeros64(some))
			}
		}
	}
	for ; at < len(product); at++ {
		add(at)
	}
	return found
}

// cut drops the candidates that cannot be among the K largest, whose smallest product it
// returns.
func (t *tile) cut(l *shortlist, query, k int) (kth float32) {
	if len(l.candidates) < k {
		return float32(math.Inf(-1))
	}
	products := t.room.sorted[:0]
	for _, c := range l.candidates {
		products = append(products, c.product)
	}
	t.room.sorted = products
	kth = linalg.KthLargest(products, k)
	// The slack on both sides is more than what rounding needs, that of the floor included.
	above, below := t.unit.Slack(t.left, query)
	l.raise(float32(float64(kth) - above - below))
	return kth
}

// settle adds to the K largest values found for a query those of its candidates whose
// products are the largest, kth or more. What they leave of the others stays.
func (t *tile) settle(l *shortlist, found heap, query, k int, kth float32) heap {
	first := 0
	for i, c := range l.candidates {
		if c.product >= kth {
			l.candidates[first], l.candidates[i] = c, l.candidates[first]
			first++
		}
	}
	found = t.compute(l.candidates[:first], found, query, k)
	l.candidates = append(l.candidates[:0], l.candidates[first:]...)
	l.raise(t.floor(found, query, k))
	return found
}

// compute adds to the K largest values found for a query those of candidates.
func (t *tile) compute(some []candidate, found heap, query, k int) heap {
	x, length := t.query(query), t.length[query]
	above, _ := t.unit.Slack(t.left, query)
	for i, c := range some {
		if i+1 < len(some) {
			kernels.Prefetch(t.row(int(some[i+1].row), len(x)))
		}
		if len(found) < k || float64(c.product) >= found[0]*length-above {
			found = found.add(t.value(x, length, int(c.row)), k)
			t.room.exact++
		}
	}
	return found
}

// raise drops the candidates below a floor.
func (l *shortlist) raise(floor float32) {
	l.floor = max(l.floor, floor)
	l.candidates = slices.DeleteFunc(l.candidates, func(c candidate) bool { return c.product < l.floor })
}

// value is the cosine of the query and a row, in float64.
func (p *packed) value(x []float32, length float64, row int) float64 {
	return kernels.Dot(x, p.row(row, len(x))) / length * p.scale[row]
}

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
