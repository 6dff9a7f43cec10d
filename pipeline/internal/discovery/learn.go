// Package discovery judges many rows together: what is new in a folder, and how many
// of the rows that are called new can be known ones.
//
// A score that is learned from the folder tells its rows, together with the calibration
// rows, from the training rows, and another, for ranks alone, tells its rows from all known
// ones: [Learn]. P-values against the calibration rows, false
// discovery rates and bounds are computed from the scores alone: [PValues], [QValues],
// [Certify]. The promise needs nothing but exchangeability: the score depends on fixed
// training and validation rows and on the calibration and folder rows as one set, in
// which it knows neither which is which nor their order. See Marandon, Lei, Mary and
// Roquain, Adaptive novelty detection with false discovery rate guarantee
// (arXiv 2208.06685), and Bates et al., Testing for outliers with conformal p-values
// (arXiv 2104.08279).
package discovery

import (
	"bytes"
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"unsafe"

	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// Rows are rows of features with their scores, higher meaning more in-distribution.
type Rows struct {
	N      int
	Row    func(i int) []float32 // [D]; several goroutines call it
	Scores []float64             // [N]; nil of training rows
}

// Input is what a score is learned from. Rows of Calibration and Folder are told apart
// only when a result is given back.
type Input struct {
	D                                         int
	Training, Validation, Calibration, Folder Rows
	Seed                                      uint64
}

// Learned are scores that look at the folder as a whole, higher meaning more
// in-distribution.
type Learned struct {
	Calibration, Folder []float64 // for p-values
	// Weight is how much of the learned score was added to the single one, in its own
	// deviations: 0 where the folder says nothing.
	Weight float64

	// Ranked are the scores of the folder to rank it by, and RankWeight is their weight. They
	// know which rows are calibration rows, so that no p-value may come from them.
	Ranked     []float64
	RankWeight float64
}

const (
	folds = 5
	// ridge is what is added to the scatter of the standardised rows. It is strong: for
	// few rows the direction is nearly that from the mean of the training rows to that
	// of the pool.
	ridge = 1e4
	// LeastValidation is how many validation rows the weight needs.
	LeastValidation = 20
	// A weight w is by penalty + w less likely beforehand than 0, as a logarithm: it was
	// chosen so that folders with hardly anything new lose next to nothing, on classes
	// held out of CIFAR-10 and of half of the superclasses of CIFAR-100, with ViT-Tiny.
	penalty = 3
	// The weight of the score that ranks is rankSlope times the excess of the folder beyond
	// rankErrors standard errors, less for folders of fewer than steadyFolder rows, whose excess is
	// more often chance, and mostRank at most, or weakSlope times the standard errors by which
	// the folder exceeds more than weakErrors, in the mean of l and of the sum, if that is more. It
	// is not more than the mean by how likely each weight makes the ranks of the folder among the
	// known rows, as of the list, but w by penalty + likelySlope·w less likely beforehand: that is
	// less where the score tells very many kinds, which no direction does. All were chosen so that
	// folders with 2 or 5% new lose nothing in the mean, on classes held out of CIFAR-10,
	// Imagenette and ten of the superclasses of CIFAR-100, also against many classes at once and
	// ten classes of CIFAR-100 against the others.
	rankSlope, rankErrors, mostRank    = 12, 2, 3
	steadyFolder                       = 300
	weakSlope, weakErrors, likelySlope = .3, 1.5, .5
	// leastAgain is the least weight by which rows are new for what is learned once more.
	leastAgain = .5
)

// weights are those that are compared.
var weights = []float64{0, .25, .5, .75, 1, 1.5, 2, 3}

// Learn returns the scores of the pool of calibration and folder rows,
//
//	score − w · deviation · l
//
// l tells the pool from the training rows: a linear regression with an L2 penalty on
// standardised features, of which each row gets the value by a fit without a fifth of the
// pool that it is in (cross-fitting), standardised by the validation rows. Rows that are
// equal are in one part. The weight w is by how likely it makes the ranks of the pool among the
// validation rows: see [likely]. Only the pool as a whole and fixed rows decide.
//
// The scores to rank by are made alike, but l tells the folder from all known rows, and the
// weight goes by how much more of the folder lies beyond a quantile of these: see [pool.rank].
func Learn(ctx context.Context, in Input) (*Learned, error) {
	p := newPool(in)
	if in.Validation.N < LeastValidation || in.Training.N < 2 || len(p.rows) <= folds {
		return p.scores(0), nil
	}
	validation, err := p.learn(ctx)
	if err != nil {
		return nil, err
	}
	learned := p.scores(p.weigh(validation))
	p.rank(learned)
	return learned, nil
}

// scores returns the scores with a weight of the learned values.
func (p *pool) scores(weight float64) *Learned {
	if weight == 0 {
		return &Learned{Calibration: p.Calibration.Scores, Folder: p.Folder.Scores, Ranked: p.Folder.Scores}
	}
	out := &Learned{Calibration: make([]float64, p.Calibration.N), Folder: make([]float64, p.Folder.N), Weight: weight}
	for _, r := range p.rows {
		to := out.Calibration
		if r.folder {
			to = out.Folder
		}
		to[r.at] = r.score - weight*p.scale*r.learned
	}
	return out
}

// pooled is a row of the pool.
type pooled struct {
	folder         bool
	at             int // among the calibration rows or those of the folder
	x              []float32
	score, learned float64
	ranked         float64 // the learned value to rank by, not standardised
	fold           int
}

type pool struct {
	Input
	rows  []pooled // in an order that the rows themselves give
	known []pooled // the validation rows, with what they are ranked by
	parts []part
	scale float64 // deviation of the validation scores
}

// newPool orders the pool by what the rows are, so that no result depends on how they
// came, and draws the folds.
func newPool(in Input) *pool {
	p := &pool{Input: in}
	_, p.scale = centre(in.Validation.Scores)
	for _, part := range []struct {
		Rows
		folder bool
	}{{in.Calibration, false}, {in.Folder, true}} {
		for i := range part.N {
			p.rows = append(p.rows, pooled{folder: part.folder, at: i, x: part.Row(i), score: part.Scores[i]})
		}
	}
	slices.SortFunc(p.rows, func(a, b pooled) int {
		return cmp.Or(cmp.Compare(a.score, b.score), bytes.Compare(bytesOf(a.x), bytesOf(b.x)))
	})
	random := rand.New(rand.NewPCG(in.Seed, 0x6469_7363)) // the stream's own number
	var order []int
	for i := range p.rows {
		r := &p.rows[i]
		if i > 0 && r.score == p.rows[i-1].score && slices.Equal(r.x, p.rows[i-1].x) {
			r.fold = p.rows[i-1].fold
			continue
		}
		if len(order) == 0 {
			order = random.Perm(folds)
		}
		r.fold, order = order[0], order[1:]
	}
	return p
}

func bytesOf(x []float32) []byte {
	if len(x) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*len(x))
}

// fit is a linear function of a row, v·x − offset.
type fit struct {
	v      []float64
	offset float64
}

// part is what was learned without a part of the pool: what l for p-values is by, and that to
// rank by.
type part struct {
	regression
	pooled, ranked fit
}

func (f *fit) of(x []float32) float64 {
	sum := -f.offset
	for i, v := range x {
		sum += f.v[i] * float64(v)
	}
	return sum
}

// block is the first two moments of some rows.
type block struct {
	n     float64
	mean  []float64
	about *mat.SymDense // covariance about the mean; nil without rows
}

// fit returns the regressions without each part of the pool.
func (p *pool) fit(ctx context.Context) ([]part, error) {
	moments := func(n int, index []int, row func(i int) []float32) (block, error) {
		if n == 0 {
			return block{mean: make([]float64, p.D)}, ctx.Err()
		}
		r := linalg.Rows{D: p.D, Index: index, Classes: 1, Label: func(int) int { return 0 }, Read: func(dst []float64, i int) {
			for j, v := range row(i) {
				dst[j] = float64(v)
			}
		}}
		m, err := linalg.Means(ctx, r)
		if err != nil {
			return block{}, err
		}
		about, err := m.Total(ctx, r)
		return block{float64(n), m.Mean, about}, err
	}
	all := make([]int, p.Training.N)
	for i := range all {
		all[i] = i
	}
	known, err := moments(len(all), all, p.Training.Row)
	if err != nil {
		return nil, err
	}
	parts, calibration := make([]block, folds), make([]block, folds)
	for k := range parts {
		calibration[k].mean = make([]float64, p.D)
		var index []int
		for i, r := range p.rows {
			if r.fold != k {
				continue
			}
			if index = append(index, i); !r.folder {
				c := &calibration[k]
				c.n++
				for j, v := range r.x {
					c.mean[j] += (float64(v) - c.mean[j]) / c.n
				}
			}
		}
		if parts[k], err = moments(len(index), index, func(i int) []float32 { return p.rows[i].x }); err != nil {
			return nil, err
		}
	}
	done := make([]part, folds)
	parallel.Each(runtime.GOMAXPROCS(0), folds, func(k int) {
		if ctx.Err() != nil {
			return
		}
		rows := without(parts, k)
		folder := mixed(rows)
		done[k].regression = regress(append(rows, known))
		done[k].pooled = done[k].towards(folder)
		old := mixed(without(calibration, k))
		old.n = -old.n
		done[k].ranked = done[k].towards(mixed([]block{folder, old}))
	})
	return done, ctx.Err()
}

func without(b []block, k int) []block { return slices.Concat(b[:k], b[k+1:]) }

// regression is a linear regression of what is given later.
type regression struct {
	cholesky mat.Cholesky
	fails    bool
	scale    []float64
	total    block // of all rows
}

// regress returns the regression on the rows of the blocks.
func regress(all []block) (r regression) {
	d := len(all[0].mean)
	r.total = mixed(all)
	scatter := mat.NewSymDense(d, nil)
	s := scatter.RawSymmetric()
	for _, b := range all {
		if b.about == nil {
			continue
		}
		about := b.about.RawSymmetric()
		for i := range d {
			at, to, from := b.mean[i]-r.total.mean[i], s.Data[i*s.Stride:], about.Data[i*about.Stride:]
			for j := i; j < d; j++ {
				to[j] += b.n * (from[j] + at*(b.mean[j]-r.total.mean[j]))
			}
		}
	}
	r.scale = make([]float64, d)
	for i := range r.scale {
		if r.scale[i] = math.Sqrt(s.Data[i*s.Stride+i] / r.total.n); !(r.scale[i] > 0) {
			r.scale[i] = 1
		}
	}
	for i := range d {
		for j := i; j < d; j++ {
			s.Data[i*s.Stride+j] /= r.scale[i] * r.scale[j]
		}
		s.Data[i*s.Stride+i] += ridge
	}
	r.fails = !r.cholesky.Factorize(scatter)
	return r
}

// towards returns the regression of 1 for some of the rows, or shares of them, and 0 for the
// others. Only their number and mean are needed.
func (r *regression) towards(ones block) fit {
	f := fit{v: make([]float64, len(r.scale))}
	right := mat.NewVecDense(len(r.scale), nil)
	for i, scale := range r.scale {
		right.SetVec(i, ones.n*(ones.mean[i]-r.total.mean[i])/scale)
	}
	var w mat.VecDense
	if r.fails || r.cholesky.SolveVecTo(&w, right) != nil {
		return f
	}
	for i, scale := range r.scale {
		f.v[i] = w.AtVec(i) / scale
		f.offset += f.v[i] * r.total.mean[i]
	}
	return f
}

// mixed returns number and mean of the rows of several blocks.
func mixed(blocks []block) block {
	m := block{mean: make([]float64, len(blocks[0].mean))}
	for _, b := range blocks {
		m.n += b.n
	}
	if m.n == 0 {
		return m
	}
	for _, b := range blocks {
		for i, v := range b.mean {
			m.mean[i] += b.n / m.n * v
		}
	}
	return m
}

// learn sets the learned value of each row of the pool, standardised as those of the
// validation rows by the same fit, and returns the latter [folds][N].
func (p *pool) learn(ctx context.Context) ([][]float64, error) {
	fits, err := p.fit(ctx)
	if err != nil {
		return nil, err
	}
	p.parts = fits
	validation := make([][]float64, folds)
	p.known = make([]pooled, p.Validation.N)
	mean, scale := make([]float64, folds), make([]float64, folds)
	for k := range fits {
		validation[k] = make([]float64, p.Validation.N)
		for i := range validation[k] {
			validation[k][i] = fits[k].pooled.of(p.Validation.Row(i))
		}
		for i := k; i < p.Validation.N; i += folds {
			x := p.Validation.Row(i)
			p.known[i] = pooled{x: x, fold: k, score: p.Validation.Scores[i], ranked: fits[k].ranked.of(x)}
		}
		mean[k], scale[k] = centre(validation[k])
		for i := range validation[k] {
			validation[k][i] = (validation[k][i] - mean[k]) / scale[k]
		}
	}
	return validation, parallel.Blocks(ctx, len(p.rows), 256, func(from, to int) {
		for i := from; i < to; i++ {
			r := &p.rows[i]
			r.learned = (fits[r.fold].pooled.of(r.x) - mean[r.fold]) / scale[r.fold]
			r.ranked = fits[r.fold].ranked.of(r.x)
		}
	})
}

// centre returns the median and half of what lies between the 16% and 84% quantiles: the
// standard deviation of a normal distribution, which few outliers do not move; 1 where
// it is 0.
func centre(values []float64) (median, deviation float64) {
	if len(values) == 0 {
		return 0, 1
	}
	sorted := slices.Sorted(slices.Values(values))
	const sigma = .1586553
	deviation = (linalg.Quantile(sorted, 1-sigma) - linalg.Quantile(sorted, sigma)) / 2
	if !(deviation > 0) || math.IsInf(deviation, 0) {
		deviation = 1
	}
	return linalg.Quantile(sorted, .5), deviation
}

// weigh returns the weight of the learned values.
func (p *pool) weigh(validation [][]float64) float64 {
	w := likely(p.Validation.N, len(p.rows), 1, func(weight float64) []float64 {
		reference := make([][]float64, folds)
		for k := range reference {
			reference[k] = make([]float64, p.Validation.N)
			for i, s := range p.Validation.Scores {
				reference[k][i] = s - weight*p.scale*validation[k][i]
			}
			slices.Sort(reference[k])
		}
		counts := make([]float64, len(bins))
		for _, r := range p.rows {
			counts[bin(reference[r.fold], r.score-weight*p.scale*r.learned)]++
		}
		return counts
	})
	if w >= weights[1]/10 {
		return w
	}
	return 0
}

// likely returns the mean of the weights, each as likely as it makes the ranks of m rows among
// n known ones, counted in bins: the more new rows are in the tail, the less uniform are these.
// The likelihood counts as if there were n·m/(n + m) rows, since the ranks have the chance of
// both, and beforehand w is by penalty + slope·w less likely than 0.
func likely(n, m int, slope float64, ranks func(weight float64) []float64) float64 {
	logs := make([]float64, len(weights))
	parallel.Each(runtime.GOMAXPROCS(0), len(weights), func(i int) {
		logs[i] = decreasing(ranks(weights[i])) * float64(n) / float64(n+m)
		if w := weights[i]; w > 0 {
			logs[i] -= penalty + slope*w
		}
	})
	var sum, all float64
	for i, l := range logs {
		chance := math.Exp(l - slices.Max(logs))
		all += chance
		sum += chance * weights[i]
	}
	return sum / all
}

// bin returns the bin of the rank of a score among those of known rows, ascending.
func bin(known []float64, score float64) int {
	below, found := slices.BinarySearch(known, score)
	if found {
		below++
	}
	at, _ := slices.BinarySearch(bins, (float64(below)+.5)/float64(len(known)+1))
	return at
}

// bins are the upper ends of the bins of ranks.
var bins = []float64{.01, .02, .035, .05, .075, .1, .15, .2, .3, .4, .5, 1}

// decreasing returns the logarithm of the likelihood of the counts of ranks in the bins by
// the most likely density that does not increase (Grenander's), relative to the uniform one.
func decreasing(counts []float64) (sum float64) {
	type step struct{ count, width float64 }
	var steps []step
	n, low := 0.0, 0.0
	for i, c := range counts {
		next := step{c, bins[i] - low}
		low, n = bins[i], n+c
		for len(steps) > 0 {
			last := steps[len(steps)-1]
			if last.count*next.width >= next.count*last.width {
				break
			}
			next.count, next.width = next.count+last.count, next.width+last.width
			steps = steps[:len(steps)-1]
		}
		steps = append(steps, next)
	}
	for _, s := range steps {
		if s.count > 0 {
			sum += s.count * math.Log(s.count/n/s.width)
		}
	}
	return sum
}

// rank sets the scores to rank by: score − w · deviation · l, where l tells the folder from
// the known rows and is standardised by validation and calibration rows. The weight w goes by
// the excess of the folder beyond these, of l and of the sum. Then l is
// learned once more, from the rows as sure as they are new by these scores, and the mean of
// both, and of their weights, is what counts (self-training), unless the ranks make less likely.
func (p *pool) rank(learned *Learned) {
	known, folder := p.known, make([]pooled, 0, p.Folder.N)
	for _, r := range p.rows {
		if r.folder {
			folder = append(folder, r)
		} else {
			known = append(known, r)
		}
	}
	standardise(known, folder)
	weight := p.weight(known, folder)
	joint := func(r pooled) float64 { return r.score/p.scale - max(weight, leastAgain)*r.ranked }
	again := make([]block, folds) // rows by how sure they are new
	for k := range again {
		again[k].mean = make([]float64, p.D)
	}
	for i, q := range QValues(PValues(each(known, joint), each(folder, joint)), len(known)) {
		if b := &again[folder[i].fold]; q < 1 {
			b.n += 1 - q
			for j, v := range folder[i].x {
				b.mean[j] += (1 - q) / b.n * (float64(v) - b.mean[j])
			}
		}
	}
	if mixed(again).n >= 1 {
		var fits [folds]fit
		for k := range fits {
			fits[k] = p.parts[k].towards(mixed(without(again, k)))
		}
		both := [][]pooled{known, folder}
		for _, rows := range both {
			for i, r := range rows { // what was learned for p-values is not needed here
				rows[i].learned, rows[i].ranked = r.ranked, fits[r.fold].of(r.x)
			}
		}
		standardise(known, folder)
		for _, rows := range both {
			for i := range rows {
				rows[i].ranked += rows[i].learned
			}
		}
		standardise(known, folder)
	}
	learned.RankWeight = min((weight+p.weight(known, folder))/2, likely(len(known), len(folder), likelySlope, func(weight float64) []float64 {
		sum := func(r pooled) float64 { return r.score/p.scale - weight*r.ranked }
		reference, counts := slices.Sorted(slices.Values(each(known, sum))), make([]float64, len(bins))
		for _, r := range folder {
			counts[bin(reference, sum(r))]++
		}
		return counts
	}))
	learned.Ranked = make([]float64, p.Folder.N)
	for _, r := range folder {
		learned.Ranked[r.at] = r.score - learned.RankWeight*p.scale*r.ranked
	}
}

// standardise standardises what rows are ranked by, by the known ones.
func standardise(known, folder []pooled) {
	mean, scale := centre(each(known, func(r pooled) float64 { return r.ranked }))
	for _, rows := range [][]pooled{known, folder} {
		for i := range rows {
			rows[i].ranked = (rows[i].ranked - mean) / scale
		}
	}
}

// each returns a value of each row.
func each(rows []pooled, of func(r pooled) float64) []float64 {
	values := make([]float64, len(rows))
	for i, r := range rows {
		values[i] = of(r)
	}
	return values
}

// weight returns the weight of what rows are ranked by.
func (p *pool) weight(known, folder []pooled) float64 {
	l := func(r pooled) float64 { return r.ranked }
	sum := func(r pooled) float64 { return r.ranked - r.score/p.scale }
	e, alone := excess(each(known, l), each(folder, l))
	_, joint := excess(each(known, sum), each(folder, sum))
	slope := rankSlope * min(1, float64(len(folder))/steadyFolder)
	return max(min(mostRank, slope*e), weakSlope*((alone+joint)/2-weakErrors))
}

// excess returns how much more of the folder than of the known rows lies high: the largest,
// over quantiles of the known rows, of its share beyond, without its most extreme row and
// rankErrors standard errors, over the share of known rows that lies below; and the largest
// number of standard errors. It sorts both.
func excess(known, folder []float64) (most, evidence float64) {
	slices.Sort(known)
	slices.Sort(folder)
	n := float64(len(folder))
	for _, q := range bins[1 : len(bins)-1] {
		at, _ := slices.BinarySearch(folder, linalg.Quantile(known, 1-q))
		more := float64(len(folder)-at-1)/n - q
		chance := math.Sqrt(q * (1 - q) * (1/n + 1/float64(len(known))))
		most, evidence = max(most, (more-rankErrors*chance)/(1-q)), max(evidence, more/chance)
	}
	return most, evidence
}
