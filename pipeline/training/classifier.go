package training

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"gonum.org/v1/gonum/floats"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// Classifier gives the logits that post-hoc scores read, of rows of a table.
type Classifier struct {
	Network posthoc.MLP // nil where the weights are not known

	// Represent gives what scores read in the place of features [n, D], Width values
	// a row; nil leaves features as they are.
	Represent func(x []float32) []float32
	Width     int

	Train *posthoc.Data // all labelled training rows, once a caller has set them

	size      int                           // classes
	of        func(x []float32) []float64   // nil: the logits are the feature sets' own
	predicted map[*features.Table][]int     // so far
	kept      map[*features.Table][]float64 // logits that are not computed again
}

// NewClassifier returns a classifier of so many classes. The function of gives its
// logits; nil means that they lie beside the features.
func NewClassifier(size int, of func(x []float32) []float64) *Classifier {
	return &Classifier{size: size, of: of, predicted: map[*features.Table][]int{}, kept: map[*features.Table][]float64{}}
}

// ClassifierOf makes a classifier of a trained network.
func ClassifierOf(m posthoc.MLP) *Classifier {
	_, classes := m.Size()
	c := NewClassifier(classes, m.OfFeatures)
	c.Network = m
	return c
}

// BackboneClassifier returns the classifier that the features' backbone has, with its
// weights where the training features have them.
func BackboneClassifier(t *features.Table) (*Classifier, error) {
	c := NewClassifier(len(t.Classes), nil)
	weights, bias, err := t.Sets[0].Classifier()
	if err != nil || weights == nil {
		return c, err
	}
	last, err := posthoc.NewLinear(weights, bias)
	if err == nil && last.Out != c.size {
		err = fmt.Errorf("features %s have weights (fc_weight.npy) of %d classes, and there are %d in-distribution classes", t.Dirs[0], last.Out, c.size)
	}
	c.Network = posthoc.MLP{last}
	return c, err
}

// Features returns rows of features as scores read them.
func (c *Classifier) Features(x []float32) []float32 {
	if c.Represent == nil {
		return x
	}
	return c.Represent(x)
}

// All returns the logits of the rows from … to−1, computed on all cores.
func (c *Classifier) All(ctx context.Context, t *features.Table, from, to int) ([]float64, error) {
	logits := make([]float64, (to-from)*c.size)
	err := c.each(ctx, t, from, to, func(at int, part []float64) { copy(logits[(at-from)*c.size:], part) })
	return logits, err
}

// Predict returns the class of each row of a table.
func (c *Classifier) Predict(ctx context.Context, t *features.Table) ([]int, error) {
	if classes, ok := c.predicted[t]; ok {
		return classes, nil
	}
	classes := make([]int, len(t.Labels))
	err := c.each(ctx, t, 0, len(classes), func(at int, logits []float64) {
		for row := range slices.Chunk(logits, c.size) {
			classes[at] = floats.MaxIdx(row)
			at++
		}
	})
	if err == nil {
		c.predicted[t] = classes
	}
	return classes, err
}

// Keep computes the logits of a table for later, as long as they fit into the
// room, which it takes them from.
func (c *Classifier) Keep(ctx context.Context, t *features.Table, room *int64) error {
	size := 8 * int64(len(t.Labels)) * int64(c.size)
	if c.kept[t] != nil || c.of == nil || size > *room {
		return nil
	}
	logits, err := c.All(ctx, t, 0, len(t.Labels))
	if err == nil {
		*room -= size
		c.kept[t] = logits
	}
	return err
}

// each calls do for the logits of blocks of the rows from … to−1, on all cores.
func (c *Classifier) each(ctx context.Context, t *features.Table, from, to int, do func(at int, logits []float64)) error {
	return parallel.Blocks(ctx, to-from, features.BlockRows, func(at, end int) {
		rows := make([]int, end-at)
		for i := range rows {
			rows[i] = from + at + i
		}
		do(from+at, c.Logits(t, rows))
	})
}

// Logits returns the logits [n, C] of rows of a table; the rows ascend.
func (c *Classifier) Logits(t *features.Table, rows []int) []float64 {
	kept := c.kept[t]
	if c.of != nil && kept == nil {
		return c.of(t.Gather(rows))
	}
	logits := make([]float64, 0, len(rows)*c.size)
	for _, r := range rows {
		if kept != nil {
			logits = append(logits, kept[r*c.size:(r+1)*c.size]...)
			continue
		}
		for _, v := range t.BackboneLogits(r) {
			logits = append(logits, float64(v))
		}
	}
	return logits
}

// Data returns rows of a table, which ascend, with the logits of the classifier.
// labels has the labels of all rows of the table.
func (c *Classifier) Data(t *features.Table, rows []int, labels []int64, classes int) *posthoc.Data {
	data := &posthoc.Data{
		N: len(rows), D: t.D, Classes: classes,
		Features: func(from, to int) []float32 { return c.Features(t.Gather(rows[from:to])) },
		Logits:   func(from, to int) []float64 { return c.Logits(t, rows[from:to]) },
	}
	if c.Represent != nil {
		data.D = c.Width
	}
	for _, r := range rows {
		data.Labels = append(data.Labels, labels[r])
	}
	return data
}

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
