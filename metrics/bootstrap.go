package metrics

import (
	"math"
	"math/rand/v2"
	"slices"
)

// BootstrapOptions says how to resample. A zero field takes its default.
type BootstrapOptions struct {
	Resamples int     // 0 means 1,000
	Level     float64 // of confidence; 0 means 0.95
	Seed      uint64  // of the random numbers: the same seed gives the same intervals
}

// Interval is a confidence interval. Both ends are NaN where there is no figure.
type Interval struct{ Low, High float64 }

// Intervals holds the interval of every figure of a [Result].
type Intervals struct{ AUROC, AUPROut, AUPRIn, FPR95, FPR95ID Interval }

// Bootstrap returns percentile bootstrap intervals (Efron 1979) of the figures of
// one ID set against each of the OOD sets, and of their unweighted means over
// these. Every resample draws as many ID images and as many images of each OOD
// set as there are, with replacement; all OOD sets meet the same ID draw, as
// they met the same ID images. The ends are the quantiles (1 ± level)/2 of the
// resamples' figures, interpolated linearly.
//
// The intervals tell how the figures depend on which test images there happened
// to be. They say nothing of how much another training seed would change them.
// Time grows with Resamples times the number of scores; scores are sorted once.
func Bootstrap(o BootstrapOptions, id []float64, ood ...[]float64) (each []Intervals, mean Intervals) {
	if o.Resamples == 0 {
		o.Resamples = 1000
	}
	if o.Level == 0 {
		o.Level = 0.95
	}
	random := rand.New(rand.NewPCG(o.Seed, 0))
	curves := make([]curve, len(ood))
	for s := range ood {
		curves[s] = newCurve(id, ood[s])
	}
	figures := make([][]Result, len(ood)+1) // the last are the means
	drawnID := make([]int, len(id)+1)
	for range o.Resamples {
		draw(random, drawnID)
		var sum Result
		for s, c := range curves {
			drawn := make([]int, len(ood[s])+1)
			draw(random, drawn)
			r := c.resampled(drawnID, drawn).result()
			figures[s] = append(figures[s], r)
			for i, to := range sum.values() {
				*to += *r.values()[i] / float64(len(ood))
			}
		}
		figures[len(ood)] = append(figures[len(ood)], sum)
	}
	all := make([]Intervals, len(figures))
	for s := range figures {
		for i, to := range all[s].values() {
			column := make([]float64, o.Resamples)
			for k := range figures[s] {
				column[k] = *figures[s][k].values()[i]
			}
			slices.Sort(column)
			*to = Interval{quantile(column, (1-o.Level)/2), quantile(column, (1+o.Level)/2)}
		}
	}
	if len(ood) == 0 {
		nan := Interval{math.NaN(), math.NaN()}
		return nil, Intervals{nan, nan, nan, nan, nan}
	}
	return all[:len(ood)], all[len(ood)]
}

func (r *Result) values() []*float64 {
	return []*float64{&r.AUROC, &r.AUPROut, &r.AUPRIn, &r.FPR95, &r.FPR95ID}
}

func (i *Intervals) values() []*Interval {
	return []*Interval{&i.AUROC, &i.AUPROut, &i.AUPRIn, &i.FPR95, &i.FPR95ID}
}

// draw draws n of n images with replacement and sets sums[k] to how many of the
// first k, in order of score, were drawn; sums has length n+1.
func draw(random *rand.Rand, sums []int) {
	clear(sums)
	n := len(sums) - 1
	for range n {
		sums[1+random.IntN(n)]++
	}
	for k := range n {
		sums[k+1] += sums[k]
	}
}

// resampled returns the curve of a resample. Points of c are counts of the
// lowest scores, hence places in the sums of a draw.
func (c curve) resampled(neg, pos []int) curve {
	r := make(curve, len(c))
	for i, p := range c {
		r[i] = point{neg[p.neg], pos[p.pos]}
	}
	return slices.Compact(r)
}

// quantile interpolates linearly between sorted values; NaNs sort first and
// make it NaN.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	if math.IsNaN(sorted[0]) {
		return math.NaN()
	}
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}
