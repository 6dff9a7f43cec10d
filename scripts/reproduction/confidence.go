package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// confidences compares maps from the head's confidence φ to the probability that its class is
// right. All are fitted on the validation images, and measured on fresh test images.
const confidences = "confidence"

// confidenceMap is fitted on log φ of images and on whether their class is right.
type confidenceMap struct {
	name string
	fit  func(logPhi []float64, right []bool) func(logPhi float64) float64
}

var confidenceMaps = []confidenceMap{
	{"φ itself", func([]float64, []bool) func(float64) float64 { return math.Exp }},
	{"two parameters", func(logPhi []float64, right []bool) func(float64) float64 { return fitTwo(logPhi, right) }},
	{"beta (the detector's)", nil},
	{"isotonic", isotonic},
}

const (
	mostLogit   = 20 // as detector.FitPlatt has it
	usualWeight = 3. // likewise
)

func logit(logPhi float64) float64 {
	logPhi = min(max(logPhi, -mostLogit), detector.MostLogPhi)
	return logPhi - math.Log(-math.Expm1(logPhi))
}

// fitTwo fits σ(slope · logit φ + offset) as Platt has it, with the prior that
// detector.FitPlatt has, by Newton's method.
func fitTwo(logPhi []float64, right []bool) func(float64) float64 {
	slope, offset := 1., 0.
	for range 100 {
		g0, g1, h00, h01, h11 := usualWeight*(slope-1), usualWeight*offset, usualWeight, 0., usualWeight
		for i, l := range logPhi {
			v := logit(l)
			c := 1 / (1 + math.Exp(-slope*v-offset))
			e, w := c, c*(1-c)
			if right[i] {
				e--
			}
			g0, g1, h00, h01, h11 = g0+e*v, g1+e, h00+w*v*v, h01+w*v, h11+w
		}
		det := h00*h11 - h01*h01
		d0, d1 := (h11*g0-h01*g1)/det, (h00*g1-h01*g0)/det
		step := 1 / max(1, math.Abs(d0)+math.Abs(d1))
		slope, offset = slope-step*d0, offset-step*d1
	}
	return func(l float64) float64 { return 1 / (1 + math.Exp(-slope*logit(l)-offset)) }
}

// isotonic pools adjacent violators: the ascending steps that are nearest to what is right.
func isotonic(logPhi []float64, right []bool) func(float64) float64 {
	order := make([]int, len(logPhi))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		if logPhi[a] < logPhi[b] {
			return -1
		}
		return 1
	})
	type step struct{ from, sum, n float64 }
	var steps []step
	for _, i := range order {
		s := step{logPhi[i], 0, 1}
		if right[i] {
			s.sum = 1
		}
		for k := len(steps) - 1; k >= 0 && steps[k].sum/steps[k].n >= s.sum/s.n; k-- {
			s = step{steps[k].from, steps[k].sum + s.sum, steps[k].n + s.n}
			steps = steps[:k]
		}
		steps = append(steps, s)
	}
	return func(l float64) float64 {
		at, found := slices.BinarySearchFunc(steps, l, func(s step, l float64) int {
			if s.from < l {
				return -1
			} else if s.from > l {
				return 1
			}
			return 0
		})
		if !found {
			at = max(0, at-1)
		}
		return steps[at].sum / steps[at].n
	}
}

// heard is log φ of labelled rows, and whether their class is right.
func heard(ctx context.Context, d *detector.Detector, x []float32, labels []int64) (logPhi []float64, right []bool, err error) {
	for i := 0; i < len(labels); i += 1000 {
		block := x[i*d.Dim() : min(i+1000, len(labels))*d.Dim()]
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		all := d.Own(block).LogConfidences
		for k := 0; k < len(all); k += len(d.Classes) {
			row := all[k : k+len(d.Classes)]
			best := slices.Max(row)
			logPhi = append(logPhi, best)
			right = append(right, int64(slices.Index(row, best)) == labels[i+k/len(d.Classes)])
		}
	}
	return logPhi, right, nil
}

// calibrate trains on a pool, and returns for each map its error on fresh images, the
// standard error of that over draws of the test images, what chance alone would make, and
// the Brier score: an error near 0 is easy for a map that says 1 of all images.
func (p *pool) calibrate(ctx context.Context, opts pipeline.TrainOptions) (found [][4]float64, test int, err error) {
	classes := p.only
	if classes == nil {
		classes = p.train.Classes
	}
	const all = 1 << 30
	fresh, trained, at := p.fresh, all, 0
	if fresh == nil { // a fifth is not trained on
		trained = p.train.N / len(p.train.Classes) * 4 / 5
		fresh, at = p.train, trained
	}
	x, labels := rowsOf(p.train, classes, "", 0, trained)
	if opts.Rows, err = features.InMemory(x, p.train.D, labels, classes); err != nil {
		return nil, 0, err
	}
	d, _, err := pipeline.Train(ctx, opts)
	if err != nil {
		return nil, 0, err
	}
	var heldX []float32
	var heldY []int64
	for _, row := range d.Splits["validation"] {
		heldX, heldY = append(heldX, x[row*d.Dim():(row+1)*d.Dim()]...), append(heldY, labels[row])
	}
	logPhi, right, err := heard(ctx, d, heldX, heldY)
	if err != nil {
		return nil, 0, err
	}
	x, labels = rowsOf(fresh, classes, "", at, all)
	said, is, err := heard(ctx, d, x, labels)
	if err != nil {
		return nil, 0, err
	}
	for _, m := range confidenceMaps {
		of := make([]float64, len(said))
		if m.fit == nil {
			verdicts, err := d.Verdicts(ctx, x)
			if err != nil {
				return nil, 0, err
			}
			for i, v := range verdicts {
				of[i] = v.Confidence
			}
		} else {
			f := m.fit(logPhi, right)
			for i, l := range said {
				of[i] = f(l)
			}
		}
		const bins, draws = 15, 200
		r := metrics.Reliable(of, is, bins)
		rng := rand.New(rand.NewPCG(1, 2))
		var sum, squares float64
		c, ok := make([]float64, len(of)), make([]bool, len(of))
		for range draws {
			for i := range c {
				k := rng.IntN(len(of))
				c[i], ok[i] = of[k], is[k]
			}
			e := metrics.Reliable(c, ok, bins).Error
			sum, squares = sum+e, squares+e*e
		}
		brier := 0.
		for i, c := range of {
			if is[i] {
				c = 1 - c
			}
			brier += c * c / float64(len(of))
		}
		found = append(found, [4]float64{r.Error, math.Sqrt(max(0, squares/draws-sum*sum/draws/draws)), r.Chance, brier})
	}
	return found, len(said), nil
}

// runConfidences measures all tasks, and prints a line for each and the mean over them.
func (e *experiment) runConfidences(ctx context.Context, w io.Writer, models []string, seeds string, epochs int, only []string) error {
	if err := e.readTraining(seeds, epochs); err != nil {
		return err
	}
	opts := e.train[false]
	opts.NoHoldOut = true
	fmt.Fprintf(w, "Expected calibration error on fresh test images (15 bins) ± its standard error over draws of these; what chance alone would make in brackets; Brier score\n\n| features | task | test images |")
	for _, m := range confidenceMaps {
		fmt.Fprintf(w, " %s |", m.name)
	}
	fmt.Fprintln(w, "\n|---|---|---|---|---|---|---|")
	means := make([][3]float64, len(confidenceMaps))
	tasks := 0
	for _, m := range models {
		pools, err := e.pools(m, only)
		if err != nil {
			return err
		}
		for _, p := range pools {
			found, test, err := p.calibrate(ctx, opts)
			if err != nil {
				return fmt.Errorf("%s, %s: %w", m, p.task, err)
			}
			tasks++
			fmt.Fprintf(w, "| %s | %s | %d |", m, p.task, test)
			for i, f := range found {
				for k, v := range []float64{f[0], f[2], f[3]} {
					means[i][k] += v
				}
				fmt.Fprintf(w, " %.4f ± %.4f (%.4f); %.4f |", f[0], f[1], f[2], f[3])
			}
			fmt.Fprintln(w)
		}
	}
	fmt.Fprintf(w, "| mean of %d tasks | | |", tasks)
	for _, sum := range means {
		n := float64(max(1, tasks))
		fmt.Fprintf(w, " %.4f (%.4f); %.4f |", sum[0]/n, sum[1]/n, sum[2]/n)
	}
	_, err := fmt.Fprintln(w)
	return err
}
