package metrics

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sort"
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
// It takes O(resamples · images · runs), on all cores; scores are sorted once. It
// panics if runs differ in their numbers of sets or images.
func Bootstrap(o BootstrapOptions, runs ...Scores) (each []Intervals, mean Intervals) {
	o.Resamples, o.Level = cmp.Or(o.Resamples, 1000), cmp.Or(o.Level, 0.95)
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

// ranking is a run with its images in the order of their scores.
type ranking struct {
	id     []int32
	ood    [][]int32
	curves []curve // of each set
}

func rank(r, like Scores) ranking {
	if len(r.ID) != len(like.ID) || len(r.OOD) != len(like.OOD) {
		panic(fmt.Sprintf("metrics: runs of %d and %d ID images, %d and %d OOD sets", len(r.ID), len(like.ID), len(r.OOD), len(like.OOD)))
	}
	order := func(scores []float64) []int32 {
		places := make([]int32, len(scores))
		for i := range places {
			places[i] = int32(i)
		}
		slices.SortFunc(places, func(a, b int32) int { return cmp.Compare(scores[a], scores[b]) })
		return places
	}
	k := ranking{id: order(r.ID)}
	for s, ood := range r.OOD {
		if len(ood) != len(like.OOD[s]) {
			panic(fmt.Sprintf("metrics: runs of %d and %d images of an OOD set", len(ood), len(like.OOD[s])))
		}
		k.ood, k.curves = append(k.ood, order(ood)), append(k.curves, newCurve(r.ID, ood))
	}
	return k
}

// resample returns the figures of one resample for each set, and their means.
func resample(random *rand.Rand, like Scores, runs []ranking) []Result {
	id := draw(random, len(like.ID))
	idSums := make([][]int32, len(runs))
	for i, run := range runs {
		idSums[i] = sums(id, run.id)
	}
	figures := make([]Result, len(like.OOD)+1)
	mean := &figures[len(like.OOD)]
	if len(like.OOD) == 0 {
		for _, to := range mean.values() {
			*to = math.NaN()
		}
	}
	for s := range like.OOD {
		ood := draw(random, len(like.OOD[s]))
		for i, run := range runs {
			r := run.curves[s].resampled(idSums[i], sums(ood, run.ood[s]))
			for f, v := range r.values() {
				share := *v / float64(len(runs))
				*figures[s].values()[f] += share
				*mean.values()[f] += share / float64(len(like.OOD))
			}
		}
	}
	return figures
}

// draw tells how often each of n images is drawn in n draws.
func draw(random *rand.Rand, n int) []int32 {
	times := make([]int32, n)
	for range n {
		times[random.IntN(n)]++
	}
	return times
}

// sums tells how many of the first k images in an order were drawn, k = 0 … n.
func sums(times, order []int32) []int32 {
	s := make([]int32, len(order)+1)
	var sum int32
	for k, image := range order {
		sum += times[image]
		s[k+1] = sum
	}
	return s
}

// resampled returns the figures of a resample. Points of c are counts of the
// lowest scores, hence places in the sums. It is result of the curve through
// these, but for rounding, in one pass and without making that curve.
func (c curve) resampled(negs, poss []int32) Result {
	if len(c) == 0 {
		return curve(nil).result()
	}
	at := func(i int) (neg, pos float64) { return float64(negs[c[i].neg]), float64(poss[c[i].pos]) }
	allNeg, allPos := at(len(c) - 1)
	var auroc, out, in float64 // twice the areas, times the counts
	var neg, pos float64
	// Precision at the last point, with either side positive, where it is known.
	outAt, inAt := 1., allNeg/(allNeg+allPos)
	outKnown, inKnown := true, true
	for i := range c {
		n, p := at(i)
		dn, dp := n-neg, p-pos
		if dp > 0 {
			if !outKnown {
				outAt = pos / (pos + neg)
			}
			q := p / (p + n)
			out += dp * (outAt + q)
			outAt = q
		}
		if dn > 0 {
			if !inKnown {
				inAt = (allNeg - neg) / (allNeg - neg + allPos - pos)
			}
			q := 1. // beyond the last threshold nothing is flagged
			if n < allNeg || p < allPos {
				q = (allNeg - n) / (allNeg - n + allPos - p)
			}
			in += dn * (inAt + q)
			inAt = q
			auroc += dn * (p + pos)
		}
		if dp > 0 || dn > 0 {
			outKnown, inKnown = dp > 0, dn > 0
		}
		neg, pos = n, p
	}
	const tpr = 0.95
	first := sort.Search(len(c)-1, func(i int) bool { _, p := at(i); return p/allPos >= tpr })
	last := sort.Search(len(c)-1, func(i int) bool { n, _ := at(i + 1); return (allNeg-n)/allNeg < tpr })
	flagged, _ := at(first)
	_, caught := at(last)
	return Result{
		AUROC: auroc / 2 / allNeg / allPos, AUPROut: out / 2 / allPos, AUPRIn: in / 2 / allNeg,
		FPR95: flagged / allNeg, FPR95ID: (allPos - caught) / allPos,
	}
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
