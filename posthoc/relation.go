package posthoc

import (
	"cmp"
	"context"
	"math"
	"math/bits"
	"slices"

	"mlrbfn/internal/kernels"
	"mlrbfn/internal/products"
)

// Relation is the strength of the relations to the training rows: Σ_j k_j over
// those k_j = max(cos(f, f_j), 0)·⟨p, p_j⟩ that exceed 0.03, with p = softmax(z).
// Reads features and logits. Features of zeros score 0.
//
// Source: Kim et al., 2023 (OpenOOD: RelationPostprocessor).
type Relation struct {
	Bank   *Data `save:"logits"`
	Memory int64 `save:"-"` // as of KNN, but for blocks of the bank, of 4,096 rows
}

// FitRelation returns Relation with all rows of the data as its bank.
func FitRelation(data *Data) (*Relation, error) {
	if err := data.need(true, true, false); err != nil {
		return nil, err
	}
	return &Relation{Bank: data}, nil
}

// Score implements [Score].
func (s *Relation) Score(ctx context.Context, dst []float64, b Batch) error {
	return ScoreAll(ctx, [][]float64{dst}, []Score{s}, []Batch{b})
}

// ScoreAll puts into each dst [n] what the score gives its batch, all of which
// have the same features. Of KNN and Relation, those that were fitted on the
// same training rows compare the features with these only once; how a Relation
// is rounded depends on the first of them.
func ScoreAll(ctx context.Context, dst [][]float64, scores []Score, batches []Batch) error {
	joint := map[*Data]*search{}
	each := map[*Data]func(i int, best []float64){}
	var banks []*Data // in order
	bank := func(data *Data, memory int64) *search {
		data = data.source()
		if joint[data] == nil {
			joint[data], each[data] = &search{bank: data, memory: memory}, nil
			banks = append(banks, data)
		}
		return joint[data]
	}
	for i, s := range scores {
		dst, b := dst[i], batches[i]
		switch s := s.(type) {
		case *KNN:
			search := bank(s.Bank, s.Memory)
			if each[search.bank] != nil { // one K at a time
				if err := s.Score(ctx, dst, b); err != nil {
					return err
				}
				continue
			}
			search.k = s.K
			each[search.bank] = func(i int, best []float64) {
				dst[i] = -1
				if len(best) > 0 {
					dst[i] = min(2*best[0]-2, 0)
				}
			}
		case *Relation:
			classes, err := b.classes(len(dst), s.Bank.Classes)
			if err != nil {
				return err
			}
			clear(dst)
			search := bank(s.Bank, s.Memory)
			search.relations = append(search.relations, &relation{bank: s.Bank, classes: classes, all: dst, logits: b.Logits})
		default:
			if err := s.Score(ctx, dst, b); err != nil {
				return err
			}
		}
	}
	for _, data := range banks {
		if err := joint[data].run(ctx, dst[0], batches[0], each[data]); err != nil {
			return err
		}
	}
	return nil
}

// relationThreshold is what a relation must exceed to count.
const relationThreshold = 0.03

const (
	unsure        = 1e-10   // how far from that rounding in float64 never matters
	relationBlock = 1 << 12 // bank rows of one product
	groupLeast    = 64      // rows of a group, but where there are fewer
	groupMost     = 512
	// With more classes the sum of all relations to a group takes longer than
	// the relations do.
	mostSummed = groupMost / 8
)

// relation is a [Relation] that is being computed, of some queries to a block
// of the bank.
//
// The cosines are known but for rounding in float32. Groups of rows that are
// predicted alike tell for most queries that all relations to a group count, or
// none. The sum of all is ⟨f/‖f‖, Σ_j ⟨p, p_j⟩·f_j/‖f_j‖⟩, a few products for the
// whole group. Of others the fewer are computed one by one, those that count or
// those to leave out of the sum.
type relation struct {
	bank    *Data
	classes int
	all     []float64 // the scores of all queries
	logits  []float64 // of these

	scores []float64 // [n], of those in work
	p      []float64 // [n, C], their softmax
	block  []float64 // [·, C], softmax of the block's rows, as they are in the bank

	rows      []float64 // [m, C], those of the packed rows
	low, high []float64 // [groups, C], the smallest and the largest of a group's
	sums      []float64 // [groups, C, D], Σ_j p_j·f_j/‖f_j‖; nil where there are many classes
}

// ask takes up n queries.
func (r *relation) ask(ctx context.Context, from, n int) (err error) {
	r.scores = r.all[from : from+n]
	r.p, err = softmaxAll(ctx, r.logits[from*r.classes:(from+n)*r.classes], r.classes)
	return err
}

// read takes up the bank's rows from … to−1.
func (r *relation) read(ctx context.Context, from, to int) (err error) {
	r.block, err = softmaxAll(ctx, r.bank.Logits(from, to), r.classes)
	return err
}

// group orders rows by the class that they are predicted as, and groups those of
// one, or of a few where these have few rows.
func (p *packed) group(r *relation) {
	top := func(row int) int { return argmax(r.block[row*r.classes : (row+1)*r.classes]) }
	slices.SortStableFunc(p.at, func(a, b int) int { return cmp.Compare(top(a), top(b)) })
	p.groups = append(p.groups[:0], 0)
	for at := 1; at <= len(p.at); at++ {
		n := at - p.groups[len(p.groups)-1]
		if at == len(p.at) || n == groupMost || n >= groupLeast && top(p.at[at]) != top(p.at[at-1]) {
			p.groups = append(p.groups, at)
		}
	}
}

// sumUp prepares the groups of packed rows.
func (r *relation) sumUp(ctx context.Context, p *packed) error {
	c, m, groups := r.classes, len(p.at), len(p.groups)-1
	r.rows = slices.Grow(r.rows[:0], m*c)[:m*c]
	r.low, r.high, r.sums = make([]float64, groups*c), make([]float64, groups*c), nil
	d := 0
	if m > 0 && c <= mostSummed {
		d = len(p.unit) / m
		r.sums = make([]float64, groups*c*d)
	}
	return eachBlock(ctx, groups, 1, func(g, _ int) {
		low, high := r.low[g*c:(g+1)*c], r.high[g*c:(g+1)*c]
		from, to := p.groups[g], p.groups[g+1]
		n := to - from
		byClass := make([]float64, n*c)
		copy(low, r.block[p.at[from]*c:])
		for at := from; at < to; at++ {
			row := r.rows[at*c : (at+1)*c]
			copy(row, r.block[p.at[at]*c:])
			for k, v := range row {
				low[k], high[k] = min(low[k], v), max(high[k], v)
				byClass[k*n+at-from] = v * p.scale[at]
			}
		}
		if r.sums != nil {
			products.NN(c, d, n, byClass, p.wide[from*d:to*d], r.sums[g*c*d:(g+1)*c*d])
		}
	})
}

// relate adds to the scores of queries x [n, D], those in work from at on, their
// relations to the block's rows. Cosines [n, m] are rounded; their extents
// [n, groups] are filled in as they are wanted.
func (r *relation) relate(p *packed, cosines []float32, x, length []float64, extents []extent, at int) {
	c, n, m, groups := r.classes, len(length), len(p.at), len(p.groups)-1
	d := len(x) / n
	cosine := func(i, row int) float64 {
		return kernels.Dot(x[i*d:(i+1)*d], p.wide[row*d:(row+1)*d]) / length[i] * p.scale[row]
	}
	var whole []float64 // [n, groups, C]
	if r.sums != nil {
		whole = make([]float64, n*groups*c)
		products.NT(n, groups*c, d, x, r.sums, whole)
	}
	var some []int // queries to which some of a group may be related
	var of, likeness []float64
	var rows [2][groupMost]int // those that are related to a query, and the others
	var sign [tileRows]float64
	for g := range groups {
		low, high := r.low[g*c:(g+1)*c], r.high[g*c:(g+1)*c]
		from, to := p.groups[g], p.groups[g+1]
		sum := func(i int) float64 { // of all relations to the group
			return dot(whole[(i*groups+g)*c:(i*groups+g+1)*c], r.p[(at+i)*c:(at+i+1)*c]) / length[i]
		}
		some, of = some[:0], of[:0]
		for i := range n {
			q := r.p[(at+i)*c : (at+i+1)*c]
			most := dot(q, high)
			if !(length[i] > 0 && most > relationThreshold-unsure) {
				continue
			}
			e := &extents[i*groups+g]
			if e.least > e.most {
				*e = extentOf(cosines[i*m+from : i*m+to])
			}
			switch {
			case !((e.most+p.slack)*most > relationThreshold-unsure):
			case r.sums != nil && (e.least-p.slack)*dot(q, low) > relationThreshold+unsure:
				r.scores[at+i] += sum(i)
			default:
				some, of = append(some, i), append(of, q...)
			}
		}
		likeness = slices.Grow(likeness[:0], len(some)*(to-from))[:len(some)*(to-from)]
		products.NT(len(some), to-from, c, of, r.rows[from*c:to*c], likeness)
		var wanted [groupMost]uint64 // by row: the bits of those of some, no more than tileRows
		for s, i := range some {
			like := likeness[s*(to-from) : (s+1)*(to-from)]
			related, others := 0, 0
			for j, l := range like {
				v := float64(cosines[i*m+from+j]) * l
				if math.Abs(v-relationThreshold) <= p.slack*l+unsure {
					v = cosine(i, from+j) * l
				}
				rows[0][related], rows[1][others] = j, j
				if v > relationThreshold {
					related++
				}
				others = j + 1 - related
			}
			sign[s] = 1
			single := rows[0][:related]
			if r.sums != nil && others < related {
				sign[s], single = -1, rows[1][:others]
				r.scores[at+i] += sum(i)
			}
			for _, j := range single {
				wanted[j] |= 1 << s
			}
		}
		for j, of := range wanted[:to-from] { // row by row, which stays in the cache
			for ; of != 0; of &= of - 1 {
				s := bits.TrailingZeros64(of)
				r.scores[at+some[s]] += sign[s] * cosine(some[s], from+j) * likeness[s*(to-from)+j]
			}
		}
	}
}

// extent is the smallest and the largest of some values; {1, 0} is not known yet.
type extent struct{ least, most float64 }

func extentOf(x []float32) extent {
	least, most := x[0], x[0]
	for _, v := range x {
		if v < least {
			least = v
		}
		if v > most {
			most = v
		}
	}
	return extent{float64(least), float64(most)}
}

// softmaxAll returns the softmax of rows of logits, computed on all cores.
func softmaxAll(ctx context.Context, logits []float64, classes int) ([]float64, error) {
	p := make([]float64, len(logits))
	err := eachBlock(ctx, len(p)/classes, blockRows, func(from, to int) {
		copy(p[from*classes:], softmaxRows(logits[from*classes:to*classes], classes))
	})
	return p, err
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
