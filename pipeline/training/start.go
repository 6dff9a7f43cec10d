package training

import (
	"cmp"
	"context"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
)

// startWork is how many multiplications, of rows by weights, one step of fitting the
// classifier may take that a residual head begins as, and startBytes the memory of
// the rows that it is fitted on. They do not depend on the memory that there is: a
// training gives the same everywhere.
const (
	startWork  = 1e11
	startBytes = 256 << 20
)

// start fits the linear classifier that a residual head begins as, with one scale for
// all features, on the rows that the conditioning reads, and turns the conditioning
// so that the classifier reads its first coordinates. Both are nil where the head
// begins with the class means: where the conditioning does not whiten, where the layers
// read too few coordinates, and where classes are balanced, which the classifier is
// not. The rows are not conditioned. near is a fitted classifier of nearly the same rows; it may be nil.
func (t *Data) start(ctx context.Context, c *head.Conditioning, train, val features.Rows, classes int, near *head.FittedLinear) (*head.Linear, *head.FittedLinear, error) {
	d := train.D
	room := d - 1 // for the classes−1 coordinates that the classifier reads
	if h, ok := t.Options.Head.(head.Residual); ok && h.Projection > 0 {
		room = min(room, h.Projection)
	}
	whitens := c != nil && c.Kind == head.Whiten && len(c.Matrix) == d*d
	if !whitens || classes < 2 || classes-1 > room || t.Options.Train.Balance || t.Options.fromMeans {
		return nil, nil, nil
	}
	o := t.Options.Linear
	o.OneScale, o.Near = true, near
	if t.reuses() {
		o.C = cmp.Or(o.C, t.Options.Keep.Training.StartC)
	}
	if near != nil {
		o.C, o.Tolerance = near.C, foldTolerance
	}
	most := int(min(cmp.Or(o.MostWork, startWork)/float64(d*classes), startBytes/4/float64(d)))
	fitted, err := head.FitLinear(ctx, read(train, most, c.L2), read(val, most, c.L2), classes, o)
	if err != nil {
		return nil, nil, err
	}
	// Weights less their mean: the last of them follows from the others.
	weights, mean := make([]float64, 0, classes*d), make([]float64, d)
	for i, v := range fitted.Weights {
		mean[i%d] += v / float64(classes)
	}
	for i, v := range fitted.Weights {
		weights = append(weights, v-mean[i%d])
	}
	k := classes - 1
	turned, err := c.Turn(weights[:k*d])
	if err != nil {
		return nil, nil, err
	}
	last := make([]float64, k)
	for i, v := range turned {
		last[i%k] -= v
	}
	from := &head.Linear{Weights: append(turned, last...)}
	for y, b := range fitted.Bias {
		for j, v := range weights[y*d : (y+1)*d] {
			b += v * float64(c.Mean[j])
		}
		from.Bias = append(from.Bias, b)
	}
	return from, fitted, nil
}

// read returns about most of the rows as a conditioning reads them, and as many of
// each class.
func read(rows features.Rows, most int, l2 bool) features.Rows {
	index := rows.Balanced(most)
	x, wide := make([]float32, len(index)*rows.D), make([]float64, rows.D)
	for i, r := range index {
		to := x[i*rows.D : (i+1)*rows.D]
		copy(to, rows.Row(r))
		if l2 {
			kernels.Convert(wide, to)
			linalg.Normalise(wide)
			kernels.Convert(to, wide)
		}
	}
	return features.All(x, rows.D, rows.With(index).Chosen())
}

// startWith returns the head of a network that begins as a classifier; nil leaves it
// as it is.
func startWith(c head.Config, from *head.Linear) head.Config {
	if own, ok := c.(head.Residual); ok && from != nil {
		own.Start = from
		return own
	}
	return c
}
