package evaluation

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// Bounds of the rows that a head and a density are fitted on; fewer are all used.
const (
	leastFitted = 50  // rows for each class
	fitWork     = 1e9 // multiplications, of rows by weights, of one step of a head
	fitRows     = 50_000
	densityRows = 100_000

	manyRows      = 10_000
	manyTolerance = 1e-4 // of the mean loss of a head, with more rows

	judgeRows = 10_000 // by whose predictions the penalty of the heads is chosen
	blockRows = 64     // predicted at once
)

// likeliest is how many classes of a prediction are remembered.
const likeliest = 5

// prediction is the out-of-fold prediction for a row: by heads that were fitted without it.
type prediction struct {
	own     float64 // probability of the row's label
	classes [likeliest]int32
	p       [likeliest]float32 // of classes, the largest first
	// distance is the squared distance to the nearest class mean of the conditioned
	// features; NaN if the row has no prediction.
	distance float64
}

func noPrediction() prediction {
	p := prediction{own: math.NaN(), distance: math.NaN()}
	for i := range p.classes {
		p.classes[i] = -1
	}
	return p
}

// folds divides the labelled rows into k parts of about as many rows of each
// class, in the given order. Rows of one group share a part.
func folds(labels []int64, group []int, k int, order []int) []int {
	fold := make([]int, len(labels))
	of := make([]int, len(labels)) // the part of a group, from 1 on
	next := map[int64]int{}
	for _, i := range order {
		y := labels[i]
		if y < 0 {
			fold[i] = -1
			continue
		}
		f := of[group[i]] - 1
		if f < 0 {
			f = next[y] % k
			of[group[i]] = f + 1
			next[y]++
		}
		fold[i] = f
	}
	return fold
}

// folded has the rows of a part, and those of the others that its head and its density
// are fitted on.
type folded struct {
	test, head, density features.Rows
	fitted              *head.FittedLinear
}

// outOfFold predicts each labelled row by a linear head and a density that were
// fitted on the other parts.
func (in *inspector) outOfFold(ctx context.Context, fold []int) ([]prediction, error) {
	out := make([]prediction, in.train)
	for i := range out {
		out[i] = noPrediction()
	}
	usable := 0
	for _, c := range in.report.Classes {
		if c.Rows >= 2 {
			usable++
		}
	}
	if usable < 2 {
		in.report.Notes = append(in.report.Notes, "there are fewer than two classes with two images, so labels and outliers were not looked at")
		return out, nil
	}
	parts := in.parts(fold)
	in.progress("predicting labels", 0, len(parts))
	c, err := in.choosePenalty(ctx, parts)
	if err != nil {
		return nil, err
	}
	var last *head.FittedLinear
	for f := range parts {
		part := &parts[f]
		if part.fitted == nil {
			if part.fitted, err = in.fit(ctx, part.head, c, last); err != nil {
				return nil, err
			}
		}
		last = part.fitted
		err := in.logits(ctx, part.fitted, part.test.Index, func(at int, logits []float64) {
			i := part.test.Index[at]
			out[i].fill(logits, int(in.Labels[i]))
		})
		if err != nil {
			return nil, err
		}
		part.head, part.fitted = features.Rows{}, nil
		in.progress("predicting labels", f+1, len(parts))
	}
	least := in.leastOwn(out)
	for f, part := range parts {
		part.density.Index = slices.DeleteFunc(part.density.Index, func(i int) bool { return out[i].own < least[in.Labels[i]] })
		if err := in.distances(ctx, part.density, part.test, out); err != nil {
			return nil, err
		}
		parts[f] = folded{}
	}
	return out, nil
}

// doubted is the part of a class's rows by which densities are not fitted: those with
// the least probability of their label. Outliers among them would pull means and, above
// all, widen the covariance in just their direction, and so hide each other.
const doubted = 10 // one in so many

// leastOwn returns for each class the least probability of its own that rows have which
// densities are fitted on.
func (in *inspector) leastOwn(out []prediction) []float64 {
	least := make([]float64, len(in.Classes))
	own := make([]float64, 0, len(out))
	for y := range least {
		own = own[:0]
		for i, p := range out {
			if int(in.Labels[i]) == y && p.classes[0] >= 0 {
				own = append(own, p.own)
			}
		}
		if slices.Sort(own); len(own) > 0 {
			least[y] = own[len(own)/doubted]
		}
	}
	return least
}

// parts lists the rows inside and outside of each fold that has both.
func (in *inspector) parts(fold []int) (parts []folded) {
	least := leastFitted * len(in.Classes)
	var others []int // of many rows few are needed
	for f := range in.Folds {
		var test []int
		others = others[:0]
		for i, g := range fold {
			switch {
			case g == f:
				test = append(test, i)
			case g >= 0:
				others = append(others, i)
			}
		}
		if len(test) > 0 && len(others) > 0 {
			spread := func(most int) features.Rows {
				return in.With(slices.Clone(features.Spread(others, max(least, most))))
			}
			parts = append(parts, folded{test: in.With(test), density: spread(densityRows),
				head: spread(min(fitRows, int(fitWork/float64(in.D*len(in.Classes)))))})
		}
	}
	return parts
}

// choosePenalty returns the C of [head.LinearOptions] with which heads predict the labels
// of most rows that they were not fitted on; of equal ones that with the least
// cross-entropy. The least cross-entropy of all wants a weaker penalty, with which heads
// also follow wrong labels that are alike. Parts whose rows were predicted keep the head.
func (in *inspector) choosePenalty(ctx context.Context, parts []folded) (float64, error) {
	judging, rows := 0, 0
	for ; judging < len(parts) && rows < judgeRows; judging++ {
		rows += parts[judging].test.Len()
	}
	heads := make([]*head.FittedLinear, judging) // of the last C
	best, most, least, worse := 0., -1, 0., 0
	for _, c := range head.LinearGrid {
		right, sum := 0, 0.
		for f, part := range parts[:judging] {
			near := heads[f]
			if near == nil && f > 0 {
				near = heads[f-1]
			}
			h, err := in.fit(ctx, part.head, c, near)
			if err != nil {
				return 0, err
			}
			heads[f] = h
			index := features.Spread(part.test.Index, judgeRows)
			predictions := make([]prediction, len(index))
			err = in.logits(ctx, h, index, func(at int, logits []float64) { predictions[at].fill(logits, int(in.Labels[index[at]])) })
			if err != nil {
				return 0, err
			}
			for at, p := range predictions {
				sum -= math.Log(max(p.own, math.SmallestNonzeroFloat64))
				if int64(p.classes[0]) == in.Labels[index[at]] {
					right++
				}
			}
		}
		if right > most || right == most && sum < least {
			best, most, least, worse = c, right, sum, 0
			for f, h := range heads {
				parts[f].fitted = h
			}
		} else if worse++; worse == 2 {
			break
		}
	}
	return best, nil
}

// fit fits a head. It begins at another, if there is one.
func (in *inspector) fit(ctx context.Context, train features.Rows, c float64, near *head.FittedLinear) (*head.FittedLinear, error) {
	o := head.LinearOptions{C: c, Near: near}
	if train.Len() > manyRows {
		o.Tolerance = manyTolerance
	}
	h, err := head.FitLinear(ctx, train, features.Rows{}, len(in.Classes), o)
	if err != nil {
		return nil, fmt.Errorf("fitting a linear head on %d rows: %w", train.Len(), err)
	}
	return h, nil
}

// logits calls do, from several goroutines, with the logits of each row index[at].
func (in *inspector) logits(ctx context.Context, h *head.FittedLinear, index []int, do func(at int, logits []float64)) error {
	classes := len(in.Classes)
	return parallel.Ranges(ctx, len(index), blockRows, func() func(int, int) error {
		x, logits := make([]float64, blockRows*in.D), make([]float64, blockRows*classes)
		return func(from, to int) error {
			for at, i := range index[from:to] {
				for j, v := range in.rowOf(i) {
					x[at*in.D+j] = float64(v)
				}
			}
			n := to - from
			h.Logits(logits[:n*classes], x[:n*in.D])
			for at := range n {
				do(from+at, logits[at*classes:(at+1)*classes])
			}
			return nil
		}
	})
}

// fill turns logits into probabilities, in place, and stores what is needed.
func (p *prediction) fill(logits []float64, label int) {
	most := slices.Max(logits)
	var sum float64
	for c, v := range logits {
		logits[c] = math.Exp(v - most)
		sum += logits[c]
	}
	for c := range logits {
		logits[c] /= sum
	}
	p.own = logits[label]
	for at := range min(likeliest, len(logits)) {
		best := -1
		for c, v := range logits {
			if (best < 0 || v > logits[best]) && !slices.Contains(p.classes[:at], int32(c)) {
				best = c
			}
		}
		p.classes[at], p.p[at] = int32(best), float32(logits[best])
	}
}

// distances computes each test row's squared distance to the nearest mean of a
// class, in features that are whitened within the classes.
func (in *inspector) distances(ctx context.Context, train, test features.Rows, out []prediction) error {
	c, err := head.FitConditioning(ctx, train, features.Rows{}, len(in.Classes), head.ConditioningOptions{Kind: head.Auto, Memory: in.Memory / 2})
	if err != nil {
		return fmt.Errorf("whitening features: %w", err)
	}
	d := c.Out()
	if c == nil {
		d = in.D
	}
	rows := func(index []int, do func(at int, rows []float32) error) error {
		if c == nil {
			return parallel.Ranges(ctx, len(index), blockRows, func() func(int, int) error {
				return func(from, to int) error { return do(from, in.Gather(index[from:to])) }
			})
		}
		return c.Each(ctx, in.With(index), do)
	}
	var means, half []float32 // of the classes with rows, and half of their squared lengths
	// One class after the other, so that sums do not depend on the number of cores.
	for _, index := range train.ByClass() {
		const part = 4096 // rows in memory at once
		sum := make([]float64, d)
		for some := range slices.Chunk(index, part) {
			x := make([]float32, len(some)*d)
			if err := rows(some, func(at int, block []float32) error { copy(x[at*d:], block); return nil }); err != nil {
				return err
			}
			for i := range some {
				for j, v := range x[i*d : (i+1)*d] {
					sum[j] += float64(v)
				}
			}
		}
		var square float64
		for _, v := range sum {
			v /= float64(len(index))
			means = append(means, float32(v))
			square += v * v
		}
		half = append(half, float32(square/2))
	}
	classes := len(half)
	return rows(test.Index, func(at int, block []float32) error {
		n := len(block) / d
		products := make([]float32, n*classes)
		linalg.NT(n, classes, d, block, means, products)
		for i := range n {
			nearest, most := 0, float32(math.Inf(-1))
			for y, v := range products[i*classes : (i+1)*classes] {
				if v -= half[y]; v > most {
					nearest, most = y, v
				}
			}
			var sum float64
			for j, v := range block[i*d : (i+1)*d] {
				e := float64(v) - float64(means[nearest*d+j])
				sum += e * e
			}
			out[test.Index[at+i]].distance = sum
		}
		return nil
	})
}
