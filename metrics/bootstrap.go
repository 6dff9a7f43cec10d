package metrics

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// DefaultResamples is how many resamples a [Bootstrap] takes unless it is told otherwise.
const DefaultResamples = 1000

const level = 0.95 // of confidence

// Scores holds the scores that a method with one seed gives to the test images: ID
// are those of the in-distribution images, OOD those of each set of OOD images.
type Scores struct {
	ID  []float64
	OOD [][]float64
}

// Interval is a confidence interval. Both ends are NaN if the metric is.
type Interval struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// Intervals holds the interval of every metric of a [Result].
type Intervals struct{ AUROC, AUPROut, AUPRIn, FPR95, FPR95ID Interval }

// Estimate holds the intervals of one method: for each OOD set, and for the
// unweighted means over the sets.
type Estimate struct {
	Each []Intervals
	Mean Intervals
}

// Bootstrap estimates percentile bootstrap intervals of 95% (Efron 1979) of the metrics of
// methods. The metrics are averaged over a method's runs: the same images scored
// with several training seeds. Every resample draws, with replacement, as many ID
// images and as many images of each OOD set as there are. All runs and methods get
// the same drawn images. The ends are the quantiles (1 ± .95)/2 of the resamples'
// metrics, interpolated linearly.
//
// The intervals show how much the metrics depend on the choice of test images. They
// do not show how much they depend on the training seed.
//
// It takes O(resamples · images · runs), on all cores; scores are sorted once. It
// skips points of curves with more than 1,024. It takes 4 bytes for each score, and
// 32 for each image and core.
type Bootstrap struct {
	resamples int
	seed      uint64
	id        int   // images
	ood       []int // of each set
	methods   [][]ranking
	results   [][][]Result // of each method, by resample, of each set, and their means; see Intervals
}

// NewBootstrap returns a Bootstrap without methods, of so many resamples; 0 means
// [DefaultResamples]. The same seed gives the same intervals.
func NewBootstrap(resamples int, seed uint64) *Bootstrap {
	return &Bootstrap{resamples: cmp.Or(resamples, DefaultResamples), seed: seed}
}

// Add adds a method with its runs, at least one. It panics if the number of sets or
// images differs from that of the runs before.
func (b *Bootstrap) Add(runs ...Scores) {
	same := func(a, b Scores) bool {
		return slices.Equal(a.ID, b.ID) && slices.EqualFunc(a.OOD, b.OOD, slices.Equal)
	}
	if distinct := slices.CompactFunc(slices.Clone(runs), same); len(distinct) == 1 {
		runs = distinct // the seed changes nothing
	}
	ranked := make([]ranking, len(runs))
	for i, r := range runs {
		var ood []int
		for _, scores := range r.OOD {
			ood = append(ood, len(scores))
		}
		if len(b.methods) == 0 && i == 0 {
			b.id, b.ood = len(r.ID), ood
		}
		if b.id != len(r.ID) || !slices.Equal(b.ood, ood) {
			panic(fmt.Sprintf("metrics: a run of %d ID and %d OOD images after one of %d and %d", len(r.ID), ood, b.id, b.ood))
		}
	}
	parallel.Each(runtime.GOMAXPROCS(0), len(runs), func(i int) { ranked[i] = rank(runs[i]) })
	b.methods = append(b.methods, ranked)
}

// Intervals returns the intervals of each method. The only error is that of a
// cancelled context.
func (b *Bootstrap) Intervals(ctx context.Context) ([]Estimate, error) {
	results := make([][][]Result, len(b.methods))
	for m := range results {
		results[m] = make([][]Result, b.resamples)
	}
	err := parallel.Ranges(ctx, b.resamples, lanes, func() func(from, to int) error {
		drawn := b.room()
		return func(from, to int) error {
			drawn.draw(b.seed, from, to-from)
			for m, runs := range b.methods {
				of := resample(drawn, runs)
				copy(results[m][from:to], of[:])
			}
			return nil
		}
	})
	if err != nil {
		return nil, err
	}
	b.results = results
	all := make([]Estimate, len(b.methods))
	for m := range all {
		all[m] = b.estimate(func(resample, set, metric int) float64 { return *results[m][resample][set].values()[metric] })
	}
	return all, nil
}

// Difference returns the intervals of the metrics of method i minus those of method j, in
// the order of Add. In each resample both are measured on the same images, so that what
// makes an image hard for both does not widen them (paired bootstrap). The interval of the
// mean is that of sets like these: each resample also draws as many of the sets as there
// are, with replacement. Means of n drawn sets vary by (n − 1)/n of what those of n new
// sets do, so that the drawn mean's distance from the mean of all is stretched to that. It
// panics before Intervals has returned.
func (b *Bootstrap) Difference(i, j int) Estimate {
	n := len(b.ood)
	chosen := make([]int, n*b.resamples)
	if n > 1 {
		random := rand.New(rand.NewPCG(b.seed, math.MaxUint64)) // no stream of draw
		for k := range chosen {
			chosen[k] = random.IntN(n)
		}
	}
	stretch := math.Sqrt(float64(n) / float64(max(1, n-1)))
	return b.estimate(func(resample, set, metric int) float64 {
		of := func(set int) float64 {
			return *b.results[i][resample][set].values()[metric] - *b.results[j][resample][set].values()[metric]
		}
		if set < n || n < 2 {
			return of(set)
		}
		drawn := 0.
		for _, s := range chosen[resample*n:][:n] {
			drawn += of(s) / float64(n)
		}
		return of(n) + stretch*(drawn-of(n))
	})
}

// estimate returns the intervals of values of all resamples; those after the last set are the means.
func (b *Bootstrap) estimate(value func(resample, set, metric int) float64) Estimate {
	sets, column := len(b.ood), make([]float64, b.resamples)
	each := make([]Intervals, sets+1)
	for s := range each {
		for i, to := range each[s].values() {
			for k := range column {
				column[k] = value(k, s, i)
			}
			slices.Sort(column)
			*to = Interval{quantile(column, (1-level)/2), quantile(column, (1+level)/2)}
		}
	}
	return Estimate{each[:sets:sets], each[sets]}
}

func (r *Result) values() []*float64 {
	return []*float64{&r.AUROC, &r.AUPROut, &r.AUPRIn, &r.FPR95, &r.FPR95ID}
}

func (i *Intervals) values() []*Interval {
	return []*Interval{&i.AUROC, &i.AUPROut, &i.AUPRIn, &i.FPR95, &i.FPR95ID}
}

// ranking holds a run's images of each set in the order in which a falling threshold
// flags them.
type ranking []thresholds

// thresholds are the thresholds of a run on one set.
type thresholds struct {
	points  []point // how many images are flagged, ascending; nil if no metric can be computed
	id, ood []int32 // the images in the order in which they are flagged
}

func rank(r Scores) ranking {
	id, sortedID := order(r.ID)
	k := make(ranking, len(r.OOD))
	for s, scores := range r.OOD {
		ood, sorted := order(scores)
		c := sortedCurve(sortedID, sorted)
		if c == nil {
			continue
		}
		k[s] = thresholds{id: id, ood: ood}
		for i, p := range c {
			if c.counts(i) {
				k[s].points = append(k[s].points, p)
			}
		}
	}
	return k
}

// counts reports whether a resample uses the i-th point. Of a large curve it uses
// the points at its ends, where precision changes quickly, those where the rates can
// pass 95%, those on either side of many equal scores, and some between. Skipping
// the others changes a metric by 10⁻⁴ at most; drawing changes its second digit.
func (c curve) counts(i int) bool {
	const ends, others = 1 << 7, 1 << 10
	last := len(c) - 1
	step := min(last/others, min(i, last-i)/ends) + 1
	if i == last || i%step == 0 {
		return i > 0
	}
	p, all := c[i], c[last]
	many := func(n, of int) bool { return n > 1 && n*others > of }
	ties := func(p, q point) bool { return many(q.neg-p.neg, all.neg) || many(q.pos-p.pos, all.pos) }
	passes := func(n, of int) bool { // up to five standard deviations of the drawn number
		return math.Abs(float64(n)/float64(of)-0.95) < 5*math.Sqrt(0.95*0.05/float64(of))
	}
	// If enough OOD images are caught, the number of false alarms matters, and the
	// next point has more. If too few ID images are accepted, the OOD images that
	// were caught since the last point matter.
	differ := func(n, m, of int) bool { return n*others*10/of != m*others*10/of }
	if ties(c[i-1], p) || ties(p, c[i+1]) {
		return true
	}
	return passes(p.pos, all.pos) && differ(c[i+1].neg, p.neg, all.neg) || passes(all.neg-p.neg, all.neg) && differ(p.pos, c[i-1].pos, all.pos)
}

// order returns the indices that sort the scores in ascending order, and the sorted
// scores.
func order(scores []float64) (places []int32, sorted []float64) {
	places, sorted = make([]int32, len(scores)), make([]float64, len(scores))
	for i := range places {
		places[i] = int32(i)
	}
	slices.SortFunc(places, func(a, b int32) int { return cmp.Compare(scores[a], scores[b]) })
	for i, at := range places {
		sorted[i] = scores[at]
	}
	return places, sorted
}

// lanes is the number of resamples that are computed at a time.
const lanes = 32

// times counts how often an image is drawn in each of these resamples, in one byte each.
type times [lanes / 8]uint64

// drawn holds the drawn images of some resamples.
type drawn struct {
	id  []times
	ood [][]times
}

func (b *Bootstrap) room() drawn {
	d := drawn{id: make([]times, b.id)}
	for _, n := range b.ood {
		d.ood = append(d.ood, make([]times, n))
	}
	return d
}

// draw draws the images of n resamples, up to lanes, from the first on.
func (d drawn) draw(seed uint64, first, n int) {
	for _, times := range append([][]times{d.id}, d.ood...) {
		clear(times)
	}
	for lane := range n {
		random := rand.New(rand.NewPCG(seed, uint64(first+lane)))
		draw(random, d.id, lane)
		for _, ood := range d.ood {
			draw(random, ood, lane)
		}
	}
}

// draw counts how often each of n images, fewer than 2³², is drawn in n draws:
// never 256 times, which has a probability of 10⁻⁵⁰⁷.
func draw(random *rand.Rand, to []times, lane int) {
	n, word, one := uint64(len(to)), lane/8, uint64(1)<<(lane%8*8)
	// Two draws from one random number, with a bias below n/2³².
	for i := 0; i < len(to); i += 2 {
		bits := random.Uint64()
		to[bits>>32*n>>32][word] += one
		if i+1 < len(to) {
			to[bits&math.MaxUint32*n>>32][word] += one
		}
	}
}

// resample returns the metrics of each resample for each set, and their means.
func resample(d drawn, runs []ranking) [lanes][]Result {
	var results [lanes][]Result
	for lane := range results {
		results[lane] = make([]Result, len(d.ood)+1)
		if len(d.ood) == 0 {
			results[lane][0] = curve(nil).result()
		}
	}
	for s, ood := range d.ood {
		for _, run := range runs {
			for lane, r := range run[s].resampled(d.id, ood) {
				mean := &results[lane][len(d.ood)]
				for f, v := range r.values() {
					share := *v / float64(len(runs))
					*results[lane][s].values()[f] += share
					*mean.values()[f] += share / float64(len(d.ood))
				}
			}
		}
	}
	return results
}

// count sets sum to the number of draws of the images in each resample.
func count(sum *[lanes]float64, drawn []times, images []int32) {
	clear(sum[:])
	const even = 0x00ff00ff00ff00ff
	for some := range slices.Chunk(images, 256) { // whose sums fit into 16 bits
		var a, b, c, d, e, f, g, h uint64
		for _, image := range some {
			t := &drawn[image]
			a, b, c, d = a+t[0]&even, b+t[0]>>8&even, c+t[1]&even, d+t[1]>>8&even
			e, f, g, h = e+t[2]&even, f+t[2]>>8&even, g+t[3]&even, h+t[3]>>8&even
		}
		for i, four := range [...]uint64{a, b, c, d, e, f, g, h} {
			to := sum[i/2*8+i%2:][:7]
			to[0] += float64(four & 0xffff)
			to[2] += float64(four >> 16 & 0xffff)
			to[4] += float64(four >> 32 & 0xffff)
			to[6] += float64(four >> 48)
		}
	}
}

// resampled returns the metrics of resamples, by one pass over the points. They are
// those of the curve through the points, except for rounding.
func (t thresholds) resampled(id, ood []times) (all [lanes]Result) {
	if t.points == nil {
		for lane := range all {
			all[lane] = curve(nil).result()
		}
		return all
	}
	allNeg, allPos := float64(len(id)), float64(len(ood))
	enoughNeg, enoughPos := enough(len(id)), enough(len(ood))
	// The images flagged, their precision with OOD positive, and that of the rest
	// with ID positive.
	var state [lanes]struct{ neg, pos, out, in float64 }
	for lane := range state {
		state[lane].out, state[lane].in = 1, allNeg/(allNeg+allPos)
		all[lane].FPR95ID = allPos
	}
	var negs, poss [lanes]float64
	var last point
	for _, p := range t.points {
		count(&negs, id, t.id[last.neg:p.neg])
		count(&poss, ood, t.ood[last.pos:p.pos])
		last = p
		for lane, dn := range negs {
			dp, s, r := poss[lane], &state[lane], &all[lane]
			r.AUROC += dn * (2*s.pos + dp)
			if s.pos < enoughPos {
				r.FPR95 = s.neg + dn
			}
			s.neg, s.pos = s.neg+dn, s.pos+dp
			if allNeg-s.neg >= enoughNeg {
				r.FPR95ID = allPos - s.pos
			}
			lastOut, lastIn := s.out, s.in
			if flagged := s.neg + s.pos; flagged > 0 {
				s.out = s.pos / flagged
			}
			s.in = 1
			if rest := allNeg - s.neg + allPos - s.pos; rest > 0 {
				s.in = (allNeg - s.neg) / rest
			}
			r.AUPROut += dp * (lastOut + s.out)
			r.AUPRIn += dn * (lastIn + s.in)
		}
	}
	for lane := range all {
		r := &all[lane]
		r.AUROC /= 2 * allNeg * allPos
		r.AUPROut /= 2 * allPos
		r.AUPRIn /= 2 * allNeg
		r.FPR95 /= allNeg
		r.FPR95ID /= allPos
	}
	return all
}

// enough returns how many of n images are 95%.
func enough(n int) float64 {
	least := math.Floor(0.95 * float64(n))
	for least/float64(n) < 0.95 {
		least++
	}
	return least
}

// quantile interpolates linearly between sorted values; NaNs, which sort first,
// make it NaN.
func quantile(sorted []float64, q float64) float64 {
	if math.IsNaN(sorted[0]) {
		return math.NaN()
	}
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}
