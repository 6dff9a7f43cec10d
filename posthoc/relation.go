package posthoc

import (
	"cmp"
	"context"
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

var _ = declare[Relation]("Relation", method{
	name:  "relation",
	words: Words{"unlike the training images of its class", "like the training images of its class", "less like the training images of its class"},
	reads: featureRows | logitRows, needs: featureRows | logitRows, group: groupSearch,
	fit: func(_ context.Context, in Input) (Scorer, error) { return FitRelation(in.Train) },
})

func (s *Relation) fields(f *fields) { f.bank("bank", &s.Bank, true) }

// RoundsInBlocks says that scores of many rows may differ in the last bits from those of each
// row alone: products are subtracted in float32.
func (s *Relation) RoundsInBlocks() {}

func (s *Relation) detach() { s.Bank = s.Bank.inMemory(true) }

func (s *Relation) limit(memory int64) { s.Memory = memory }

// Relation is the strength of the relations to the training rows: the sum of all
// k_j = max(cos(f, f_j), 0)·⟨p, p_j⟩ that exceed 0.03, with p = softmax(z). Reads
// features and logits. Features of zeros score 0. With up to 64 classes, relations
// below 0.03 are computed in float32 and subtracted from the sum of all; with N
// training rows the error of the score is about 10⁻⁸·√N. With more classes each
// relation is computed in float64; their sum is exact, and is then rounded by less than one
// unit in the last place.
//
// Source: Kim et al., 2023 (OpenOOD: RelationPostprocessor).
type Relation struct {
	Bank   *Data // its features and logits are read
	Memory int64 // see KNN; blocks of the bank have 4,096 rows whatever it is
}

// FitRelation returns Relation with all rows of the data as its bank.
func FitRelation(data *Data) (*Relation, error) {
	if err := data.need(featureRows | logitRows); err != nil {
		return nil, err
	}
	return &Relation{Bank: data}, nil
}

// Score implements [Scorer].
func (s *Relation) Score(ctx context.Context, dst []float64, b Batch) error {
	return alone(ctx, s, dst, b)
}

func (s *Relation) join(t *together, dst []float64, b Batch) error {
	classes, err := b.classes(len(dst), s.Bank.Classes)
	if err != nil {
		return err
	}
	clear(dst)
	w := searchOf(t, s.Bank, s.Memory)
	w.relations = append(w.relations, &relation{bank: s.Bank, classes: classes, all: dst, logits: b.Logits})
	return nil
}

// relationThreshold is the value above which a relation counts.
const relationThreshold = 0.03

const (
	unsure        = 1e-10   // float64 rounding never moves a relation this far
	relationBlock = 1 << 12 // bank rows of one product
	mostSegment   = 256     // rows whose probabilities stay in the cache together
	// With more classes, most queries have relations that count to the rows of a
	// few classes only, and computing the sum of all relations does not pay.
	mostSummed = 64
)

// relation computes one [Relation], of some queries to a block of the bank.
//
// The cosines come in float32. Relations too near the threshold for that are
// computed again in float64. With few classes, the sum of all cosines·⟨p, p_j⟩,
// ⟨f/‖f‖, Σ_j ⟨p, p_j⟩·f_j/‖f_j‖⟩, is computed in float64 by a few products for the
// whole bank, and the small relations, which do not count, are subtracted: their
// rounding matters little. With many classes, each relation that counts is computed
// in float64. Rows are then sorted by the class that they are predicted as, so that
// for most queries whole segments can be skipped.
type relation struct {
	bank    *Data
	classes int
	all     []float64 // the scores of all queries
	logits  []float64 // of these

	scores []float64 // [n], of those in work
	p      []float64 // [n, C], their softmax
	block  []float64 // [·, C], softmax of the block's rows, as they are in the bank

	segment int       // rows at once
	rows    []float64 // [segments, C, segment], those of the packed rows, filled up with zeros
	total   []float64 // [C, D], Σ_j p_j·f_j/‖f_j‖ so far; nil where there are many classes

	// With many classes: the queries' softmax and its lengths, and the largest probabilities
	// of each segment, divided by their length.
	asked   *kernels.Left
	qLength []float64    // [n]
	high    kernels.Bank // [segments, C]
	lengths []float64    // [segments]

	sums []relationSum // with many classes, of the queries

	// With many classes, where the cosines are products of bytes: the rows' softmax
	// divided by their lengths.
	likely  kernels.Bank // [m, C]
	pLength []float64    // [m]
}

// relationSum is a sum of relations that count, in units of 2⁻⁵⁸. As each is a whole
// number of these, the sum does not depend on their order.
type relationSum struct{ high, low uint64 }

func (s *relationSum) add(relation float64) {
	low, carry := bits.Add64(s.low, uint64(int64(relation*0x1p58)), 0)
	s.low, s.high = low, s.high+carry
}

func (s relationSum) value() float64 { return float64(s.high)*0x1p6 + float64(s.low)*0x1p-58 }

// ask begins the work on n queries.
func (r *relation) ask(ctx context.Context, from, n int) (err error) {
	r.scores, r.total = r.all[from:from+n], nil
	if r.p, err = softmaxAll(ctx, r.logits[from*r.classes:(from+n)*r.classes], r.classes); err != nil {
		return err
	}
	for i, v := range r.p {
		if math.IsNaN(v) {
			r.scores[i/r.classes] = v
		}
	}
	if r.classes <= mostSummed {
		r.total = make([]float64, r.classes*r.bank.D)
		return nil
	}
	r.sums = make([]relationSum, n)
	narrow := make([]float32, len(r.p))
	r.asked, r.qLength = kernels.NewLeft(narrow, r.classes, true), make([]float64, n)
	return parallel.Blocks(ctx, n, blockRows, func(from, to int) {
		for i := from * r.classes; i < to*r.classes; i++ {
			if v := r.p[i]; v == v { // NaN scores NaN anyway
				narrow[i] = float32(v)
			}
		}
		r.asked.Set(from, to)
		for i := from; i < to; i++ {
			p := r.p[i*r.classes : (i+1)*r.classes]
			r.qLength[i] = math.Sqrt(dot(p, p))
		}
	})
}

// read reads the bank's rows from … to−1.
func (r *relation) read(ctx context.Context, from, to int) (err error) {
	r.block, err = softmaxAll(ctx, r.bank.Logits(from, to), r.classes)
	for i, v := range r.block {
		if math.IsNaN(v) { // NaN equals nothing
			r.block[i] = 0
		}
	}
	return err
}

// sort puts packed rows in the order of the class that they are predicted as.
func (r *relation) sort(p *packed) {
	var top []int
	for row := range slices.Chunk(r.block, r.classes) {
		top = append(top, linalg.ArgMax(row))
	}
	slices.SortStableFunc(p.at, func(a, b int) int { return cmp.Compare(top[a], top[b]) })
}

// prepare computes what all queries need of the packed rows.
func (r *relation) prepare(ctx context.Context, p *packed) error {
	c, m, d := r.classes, len(p.at), r.bank.D
	r.segment = mostSegment
	if r.total == nil {
		r.segment = 64
	}
	segments := (m + r.segment - 1) / r.segment
	r.rows = make([]float64, segments*c*r.segment)
	high := make([]float32, segments*c)
	var sums []float64 // [segments, C, D]
	if r.total != nil {
		sums = make([]float64, segments*c*d)
	}
	err := parallel.Blocks(ctx, m, r.segment, func(from, to int) {
		g, n := from/r.segment, to-from
		for k := range c {
			row := r.rows[from*c+k*r.segment:][:n]
			for i := range row {
				row[i] = r.block[p.at[from+i]*c+k]
			}
			high[g*c+k] = float32(slices.Max(row))
		}
		if sums == nil {
			return
		}
		wide, done := scratch(r.segment * d)
		defer done()
		clear(wide[n*d:])
		for i := range n {
			for j, v := range p.row(from+i, d) {
				wide[i*d+j] = float64(v) * p.scale[from+i]
			}
		}
		linalg.NN(c, d, r.segment, r.rows[from*c:(from+r.segment)*c], wide, sums[g*c*d:(g+1)*c*d])
	})
	if err != nil {
		return err
	}
	for i, v := range sums {
		r.total[i%len(r.total)] += v
	}
	if r.total != nil {
		return nil
	}
	r.setHigh(segments, high)
	if !p.unit.OfBytes() {
		return nil
	}
	r.likely.Reset(m, c, true)
	r.pLength = slices.Grow(r.pLength[:0], m)[:m]
	panels, panel := r.likely.Panels()
	return parallel.Blocks(ctx, panels, 1, func(at, _ int) {
		unit := make([]float32, 0, panel*c)
		for j := at * panel; j < min((at+1)*panel, m); j++ {
			row := r.softmaxOf(p, j)
			r.pLength[j] = math.Sqrt(dot(row, row)) * (1 + 1e-6)
			for _, v := range row {
				unit = append(unit, float32(over(v, r.pLength[j])))
			}
		}
		r.likely.Set(at, unit)
	})
}

// softmaxOf returns the probabilities of a packed row.
func (r *relation) softmaxOf(p *packed, row int) []float64 {
	return r.block[p.at[row]*r.classes:][:r.classes]
}

// setHigh keeps the largest probabilities of segments.
func (r *relation) setHigh(segments int, high []float32) {
	r.high.Reset(segments, r.classes, true)
	r.lengths = r.lengths[:0]
	for segment := range slices.Chunk(high, r.classes) {
		length := norm(segment)
		r.lengths = append(r.lengths, length*(1+1e-6))
		for k, v := range segment {
			segment[k] = float32(over(float64(v), length*(1+1e-6)))
		}
	}
	panels, rows := r.high.Panels()
	for panel := range panels {
		r.high.Set(panel, high[panel*rows*r.classes:min((panel+1)*rows, segments)*r.classes])
	}
}

// look sets some [queries, segments] to whether a segment can have relations that count
// to queries from … to−1.
func (r *relation) look(some []bool, from, to int) {
	segments := len(r.lengths)
	product := make([]float32, (to-from)*segments)
	r.high.Times(r.asked, from, to, 0, segments, product)
	for i := from; i < to; i++ {
		above, _ := r.high.Slack(r.asked, i)
		for g, length := range r.lengths {
			at := (i-from)*segments + g
			some[at] = (float64(product[at])+above)*length > relationThreshold-unsure
		}
	}
}

// relate adds to the scores of a tile's queries their relations to its rows. some is what
// look has set. It returns how many relations it computed that do not count.
func (r *relation) relate(t *tile, some []bool) (inVain int64) {
	if r.total == nil && t.unit.OfBytes() && r.most(t, some) {
		return r.relateMost(t)
	}
	c := r.classes
	low, high := relationThreshold-unsure, relationThreshold+unsure
	if r.total == nil {
		high = math.Inf(1)
	}
	// p/‖f‖ of the queries that need it
	shares := slices.Grow(t.room.shares[:0], (t.to-t.from)*c)[:(t.to-t.from)*c]
	t.room.shares = shares
	var shared [tileRows]bool
	near := make([]byte, r.segment/8)
	for from := t.first; from < t.last; from += r.segment {
		rows := r.rows[from*c : (from+r.segment)*c]
		for i := t.from; i < t.to; i++ {
			l, q := t.length[i], r.p[i*c:(i+1)*c]
			if !(l > 0) || r.total == nil && !some[(i-t.from)*len(r.lengths)+from/r.segment] {
				continue
			}
			share := shares[(i-t.from)*c:][:c]
			if !shared[i-t.from] {
				for k, v := range q {
					share[k] = over(v, l)
				}
				shared[i-t.from] = true
			}
			above, _ := t.unit.Slack(t.left, i)
			if r.total != nil { // the products are in float32, and their slack is relative
				above *= l
			}
			sum := kernels.Below(t.products(i)[from-t.first:][:r.segment], rows, r.segment, share, low, high, above, near)
			if r.total != nil {
				r.scores[i] -= sum
			}
			for word := 0; word < len(near); word += 8 {
				for set := binary.LittleEndian.Uint64(near[word:]); set != 0; set &= set - 1 {
					j := 8*word + bits.TrailingZeros64(set)
					// Without the conversion arm64 would round the product only where it
					// is not added at once.
					v := float64(t.value(t.query(i), l, from+j) * dot(q, r.softmaxOf(t.packed, from+j)))
					switch counts := v > relationThreshold; {
					case counts && r.total == nil:
						r.sums[i].add(v)
					case !counts && r.total != nil:
						r.scores[i] -= v
					case !counts:
						inVain++
					}
				}
			}
		}
	}
	return inVain
}

// most reports whether so many of a tile's queries can have relations that count to its
// segments that products of bytes with all rows take less time.
func (r *relation) most(t *tile, some []bool) bool {
	const worth = 32 // times what a product of bytes takes
	needed, segments := 0, len(r.lengths)
	first, last := t.first/r.segment, (t.last+r.segment-1)/r.segment
	for i := range t.to - t.from {
		for _, needs := range some[i*segments+first : i*segments+last] {
			if needs {
				needed++
			}
		}
	}
	return worth*needed >= (t.to-t.from)*(last-first)
}

// relateMost is relate by products of bytes for the probabilities, too. Where they and the
// cosines leave open whether a relation counts, it is computed in float64.
func (r *relation) relateMost(t *tile) (inVain int64) {
	const low, step = relationThreshold - unsure, mostSegment
	m := t.last - t.first
	if size := (t.to-t.from)*m + step; len(t.room.likeness) < size {
		t.room.likeness = make([]float32, size)
	}
	r.likely.Times(r.asked, t.from, t.to, t.first, t.last, t.room.likeness)
	pLength := r.pLength[t.first:t.last]
	longest := slices.Max(pLength)
	var near, alike [step / 8]byte
	for i := t.from; i < t.to; i++ {
		l, q := t.length[i], r.p[i*r.classes:(i+1)*r.classes]
		if !(l > 0) {
			continue
		}
		above, _ := t.unit.Slack(t.left, i)
		pAbove, _ := r.likely.Slack(r.asked, i)
		pAbove += 1e-6 // of float32
		products, likeness := t.products(i), t.room.likeness[(i-t.from)*m:]
		least, pLeast := low*l/r.qLength[i]-above, low/longest-pAbove
		for at := 0; at < m; at += step {
			kernels.AtLeast(products[at:at+step], float32(least), near[:])
			kernels.AtLeast(likeness[at:at+step], float32(pLeast), alike[:])
			for word := 0; word < step/8; word += 8 {
				set := binary.LittleEndian.Uint64(near[word:]) & binary.LittleEndian.Uint64(alike[word:])
				for ; set != 0; set &= set - 1 {
					j := at + 8*word + bits.TrailingZeros64(set)
					if j >= m {
						break // what is behind the products
					}
					cosine := (float64(products[j]) + above) / l
					if !(cosine*(float64(likeness[j])+pAbove)*pLength[j] > low) {
						continue
					}
					likeness := dot(q, r.softmaxOf(t.packed, t.first+j))
					if !(cosine*likeness > low) {
						inVain++
						continue
					}
					if v := float64(t.value(t.query(i), l, t.first+j) * likeness); v > relationThreshold {
						r.sums[i].add(v)
					} else {
						inVain++
					}
				}
			}
		}
	}
	return inVain
}

// addTotal adds the sum of all relations to the scores of queries x [n, D], from
// at on.
func (r *relation) addTotal(x []float32, length []float64, at int) {
	c, n := r.classes, len(length)
	whole := make([]float64, n*c)
	wide, done := scratch(len(x))
	defer done()
	kernels.Convert(wide, x)
	linalg.NT(n, c, r.bank.D, wide, r.total, whole)
	for i, l := range length {
		r.scores[at+i] += over(dot(whole[i*c:(i+1)*c], r.p[(at+i)*c:(at+i+1)*c]), l)
		if r.scores[at+i] < relationThreshold/2 { // one that counts is more: it is rounding
			r.scores[at+i] = 0
		}
	}
}

func (s *Relation) graph(g *graph) onnx.Value {
	cosines, at := g.cosines(s.Bank, func(int) bool { return true })
	var p []float64 // [m, C], of the bank
	for _, row := range at {
		for _, v := range softmaxRows(s.Bank.Logits(row, row+1), s.Bank.Classes) {
			if math.IsNaN(v) {
				v = 0
			}
			p = append(p, v)
		}
	}
	likeness := g.Times(g.softmax(g.Logits), p, s.Bank.Classes)
	relations := g.Op("Mul", g.Op("Max", cosines, g.Number(0)), likeness)
	counts := g.Positive(g.Op("Sub", relations, g.Number(relationThreshold)))
	return g.Dot(relations, counts)
}
