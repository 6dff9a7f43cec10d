package metrics

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// BootstrapOptions says how to resample. A zero field takes its default.
type BootstrapOptions struct {
	Resamples int     // 0 means 1,000
	Level     float64 // of confidence; 0 means 0.95
	Seed      uint64  // of the random numbers: the same seed gives the same intervals
}

// Scores is what a method with one seed gave the test images: ID the
// in-distribution ones, OOD each set of strangers.
type Scores struct {
	ID  []float64
	OOD [][]float64
}

// Interval is a confidence interval. Both ends are NaN where there is no figure.
type Interval struct{ Low, High float64 }

// Intervals holds the interval of every figure of a [Result].
type Intervals struct{ AUROC, AUPROut, AUPRIn, FPR95, FPR95ID Interval }

// Bootstrap returns percentile bootstrap intervals (Efron 1979) of the figures of
// each OOD set, and of their unweighted means over the sets, both averaged over
// runs: the same images scored with several training seeds. Every resample draws
// as many ID images and as many images of each OOD set as there are, with
// replacement; all sets and runs meet the same drawn images, as they met the same
// images. The ends are the quantiles (1 ± level)/2 of the resamples' figures,
// interpolated linearly.
//
// The intervals tell how the figures depend on which test images there happened
// to be. They say nothing of how much other training seeds would change them.
//
// It takes O(resamples · images · runs), on all cores; scores are sorted once. Of
// curves with more than 4,096 points it leaves some out. It
// panics if runs differ in their numbers of sets or images.
func Bootstrap(o BootstrapOptions, runs ...Scores) (each []Intervals, mean Intervals) {
	o.Resamples, o.Level = cmp.Or(o.Resamples, 1000), cmp.Or(o.Level, 0.95)
	same := func(a, b Scores) bool {
		return slices.Equal(a.ID, b.ID) && slices.EqualFunc(a.OOD, b.OOD, slices.Equal)
	}
	if distinct := slices.CompactFunc(slices.Clone(runs), same); len(distinct) == 1 {
		runs = distinct // what no seed changes
	}
	if len(runs) == 0 {
		runs = []Scores{{}}
	}
	sets := len(runs[0].OOD)
	ranked := make([]ranking, len(runs))
	for i, r := range runs {
		ranked[i] = rank(r, runs[0])
	}
	figures := make([][]Result, o.Resamples) // of each set, and their means
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), o.Resamples) {
		workers.Go(func() {
			for k := int(next.Add(1)) - 1; k < o.Resamples; k = int(next.Add(1)) - 1 {
				figures[k] = resample(rand.New(rand.NewPCG(o.Seed, uint64(k))), runs[0], ranked)
			}
		})
	}
	workers.Wait()
	all := make([]Intervals, sets+1)
	for s := range all {
		for i, to := range all[s].values() {
			column := make([]float64, o.Resamples)
			for k := range figures {
				column[k] = *figures[k][s].values()[i]
			}
			slices.Sort(column)
			*to = Interval{quantile(column, (1-o.Level)/2), quantile(column, (1+o.Level)/2)}
		}
	}
	return all[:sets:sets], all[sets]
}

func (r *Result) values() []*float64 {
	return []*float64{&r.AUROC, &r.AUPROut, &r.AUPRIn, &r.FPR95, &r.FPR95ID}
}

func (i *Intervals) values() []*Interval {
	return []*Interval{&i.AUROC, &i.AUPROut, &i.AUPRIn, &i.FPR95, &i.FPR95ID}
}

// ranking is a run's images by the thresholds, in ascending order, at which they
// come to be flagged.
type ranking []thresholds

// thresholds are those of a run on one set.
type thresholds struct {
	n       int     // 0 where there is no figure
	id, ood []int32 // of each image
}

func rank(r, like Scores) ranking {
	if len(r.ID) != len(like.ID) || len(r.OOD) != len(like.OOD) {
		panic(fmt.Sprintf("metrics: runs of %d and %d ID images, %d and %d OOD sets", len(r.ID), len(like.ID), len(r.OOD), len(like.OOD)))
	}
	idOrder := order(r.ID)
	var k ranking
	for s, ood := range r.OOD {
		if len(ood) != len(like.OOD[s]) {
			panic(fmt.Sprintf("metrics: runs of %d and %d images of an OOD set", len(ood), len(like.OOD[s])))
		}
		c := newCurve(r.ID, ood)
		if c == nil {
			k = append(k, thresholds{})
			continue
		}
		t := thresholds{id: make([]int32, len(r.ID)), ood: make([]int32, len(ood))}
		oodOrder := order(ood)
		var last point
		for i, p := range c[1:] {
			if !c.counts(i + 1) {
				continue
			}
			for _, image := range idOrder[last.neg:p.neg] {
				t.id[image] = int32(t.n)
			}
			for _, image := range oodOrder[last.pos:p.pos] {
				t.ood[image] = int32(t.n)
			}
			last, t.n = p, t.n+1
		}
		k = append(k, t)
	}
	return k
}

// counts reports whether a resample looks at the i-th point. Of a large curve
// these are all where precision changes quickly, which is at its ends, all where
// the rates can pass 95%, and some elsewhere: the others do not show in the
// fourth digit, where drawing shows in the second.
func (c curve) counts(i int) bool {
	const ends, others = 1 << 10, 1 << 12
	step := (len(c)-1)/others + 1
	if i%step == 0 || i < ends || i >= len(c)-ends {
		return true
	}
	p, all := c[i], c[len(c)-1]
	passes := func(n, of int) bool { return math.Abs(float64(n)/float64(of)-0.95) < 0.01 }
	return passes(p.pos, all.pos) || passes(all.neg-p.neg, all.neg)
}

// order returns the places of scores in ascending order of these.
func order(scores []float64) []int32 {
	places := make([]int32, len(scores))
	for i := range places {
		places[i] = int32(i)
	}
	slices.SortFunc(places, func(a, b int32) int { return cmp.Compare(scores[a], scores[b]) })
	return places
}

// resample returns the figures of one resample for each set, and their means.
func resample(random *rand.Rand, like Scores, runs []ranking) []Result {
	id := draw(random, len(like.ID))
	figures := make([]Result, len(like.OOD)+1)
	mean := &figures[len(like.OOD)]
	if len(like.OOD) == 0 {
		for _, to := range mean.values() {
			*to = math.NaN()
		}
	}
	var room []int32 // for what is drawn at each threshold
	for s := range like.OOD {
		ood := draw(random, len(like.OOD[s]))
		for _, run := range runs {
			r := run[s].resampled(id, ood, &room)
			for f, v := range r.values() {
				share := *v / float64(len(runs))
				*figures[s].values()[f] += share
				*mean.values()[f] += share / float64(len(like.OOD))
			}
		}
	}
	return figures
}

// draw tells how often each of n images, fewer than 2³², is drawn in n draws:
// never 256 times, which has a probability of 10⁻⁵⁰⁷.
func draw(random *rand.Rand, n int) []uint8 {
	times := make([]uint8, n)
	// Two draws of a number, which favour none by more than n/2³².
	for i := 0; i < n; i += 2 {
		bits := random.Uint64()
		times[bits>>32*uint64(n)>>32]++
		if i+1 < n {
			times[bits&math.MaxUint32*uint64(n)>>32]++
		}
	}
	return times
}

// resampled returns the figures of a resample in which each image was drawn so
// many times. They are those of the curve through the thresholds, but for
// rounding, in one pass.
func (t thresholds) resampled(id, ood []uint8, room *[]int32) Result {
	if t.n == 0 {
		return curve(nil).result()
	}
	*room = slices.Grow((*room)[:0], 2*t.n)[:2*t.n]
	clear(*room)
	negs, poss := (*room)[:t.n], (*room)[t.n:]
	for i, bin := range t.id {
		negs[bin] += int32(id[i])
	}
	for i, bin := range t.ood {
		poss[bin] += int32(ood[i])
	}
	const tpr = 0.95
	allNeg, allPos := float64(len(id)), float64(len(ood))
	r := Result{FPR95: math.NaN(), FPR95ID: 1}
	// What is flagged, and the precision of that with OOD positive and of the
	// rest with ID positive.
	var neg, pos float64
	out, in := 1., allNeg/(allNeg+allPos)
	for bin := range t.n {
		dn, dp := float64(negs[bin]), float64(poss[bin])
		if dn == 0 && dp == 0 {
			continue
		}
		r.AUROC += dn * (2*pos + dp)
		neg, pos = neg+dn, pos+dp
		lastOut, lastIn := out, in
		out = pos / (pos + neg)
		if in = 1; neg < allNeg || pos < allPos {
			in = (allNeg - neg) / (allNeg - neg + allPos - pos)
		}
		r.AUPROut += dp * (lastOut + out)
		r.AUPRIn += dn * (lastIn + in)
		if math.IsNaN(r.FPR95) && pos/allPos >= tpr {
			r.FPR95 = neg / allNeg
		}
		if (allNeg-neg)/allNeg >= tpr {
			r.FPR95ID = (allPos - pos) / allPos
		}
	}
	r.AUROC /= 2 * allNeg * allPos
	r.AUPROut /= 2 * allPos
	r.AUPRIn /= 2 * allNeg
	return r
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
