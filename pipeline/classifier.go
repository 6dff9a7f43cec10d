package pipeline

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"mlrbfn/head"
	"mlrbfn/posthoc"
)

// classifier is what gives the logits that post-hoc scores read.
type classifier struct {
	size    int                         // classes
	of      func(x []float32) []float64 // nil: the logits are the feature sets' own
	network posthoc.MLP                 // nil where the weights are not known

	// represent gives what scores read in the place of features [n, D], so many
	// values a row; nil leaves features as they are.
	represent func(x []float32) []float32
	width     int

	predicted map[*table][]int     // so far
	kept      map[*table][]float64 // logits that are not computed again
	train     *posthoc.Data        // all labelled rows, once they are asked for
}

func newClassifier(size int, of func(x []float32) []float64) *classifier {
	return &classifier{size: size, of: of, predicted: map[*table][]int{}, kept: map[*table][]float64{}}
}

// networkClassifier returns that of a trained network.
func networkClassifier(m *head.MLP) (*classifier, error) {
	c := newClassifier(m.Classes(), m.Logits)
	for _, l := range m.Layers {
		layer, err := posthoc.NewLinear(l.Weights, l.Bias)
		if err != nil {
			return nil, err
		}
		c.network = append(c.network, layer)
	}
	return c, nil
}

// backboneClassifier returns the one that the features' backbone has, with its
// weights where the training features have them.
func (t *table) backboneClassifier() (*classifier, error) {
	c := newClassifier(len(t.classes), nil)
	weights, bias, err := t.sets[0].Classifier()
	if err != nil || weights == nil {
		return c, err
	}
	last, err := posthoc.NewLinear(weights, bias)
	if err == nil && last.Out != c.size {
		err = fmt.Errorf("features %s have weights (fc_weight.npy) of %d classes, and there are %d classes to tell from strangers", t.dirs[0], last.Out, c.size)
	}
	c.network = posthoc.MLP{last}
	return c, err
}

// features returns what scores read of rows of features.
func (c *classifier) features(x []float32) []float32 {
	if c.represent == nil {
		return x
	}
	return c.represent(x)
}

// all returns the logits of the rows from … to−1, computed on all cores.
func (c *classifier) all(ctx context.Context, t *table, from, to int) ([]float64, error) {
	logits := make([]float64, (to-from)*c.size)
	err := c.each(ctx, t, from, to, func(at int, part []float64) { copy(logits[(at-from)*c.size:], part) })
	return logits, err
}

// predict returns the class of each row of a table.
func (c *classifier) predict(ctx context.Context, t *table) ([]int, error) {
	if classes, ok := c.predicted[t]; ok {
		return classes, nil
	}
	classes := make([]int, len(t.labels))
	err := c.each(ctx, t, 0, len(classes), func(at int, logits []float64) {
		for row := range slices.Chunk(logits, c.size) {
			classes[at], _ = best(row)
			at++
		}
	})
	if err == nil {
		c.predicted[t] = classes
	}
	return classes, err
}

// keep computes the logits of a table for later, as long as they fit into the
// room, which it takes them from.
func (c *classifier) keep(ctx context.Context, t *table, room *int64) error {
	size := 8 * int64(len(t.labels)) * int64(c.size)
	if c.kept[t] != nil || c.of == nil || size > *room {
		return nil
	}
	logits, err := c.all(ctx, t, 0, len(t.labels))
	if err == nil {
		*room -= size
		c.kept[t] = logits
	}
	return err
}

// each calls do for the logits of blocks of the rows from … to−1, on all cores.
func (c *classifier) each(ctx context.Context, t *table, from, to int, do func(at int, logits []float64)) error {
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for at := from; at < to && ctx.Err() == nil; at += verdictBlock {
		group.Go(func() error {
			rows := make([]int, min(verdictBlock, to-at))
			for i := range rows {
				rows[i] = at + i
			}
			do(at, c.logits(t, rows))
			return nil
		})
	}
	_ = group.Wait() // do does not fail
	return ctx.Err()
}

// logits returns those [n, C] of rows of a table, ascending.
func (c *classifier) logits(t *table, rows []int) []float64 {
	kept := c.kept[t]
	if c.of != nil && kept == nil {
		return c.of(t.gather(rows))
	}
	logits := make([]float64, 0, len(rows)*c.size)
	for _, r := range rows {
		if kept != nil {
			logits = append(logits, kept[r*c.size:(r+1)*c.size]...)
			continue
		}
		for _, v := range t.backboneLogits(r) {
			logits = append(logits, float64(v))
		}
	}
	return logits
}

// gather returns the features of rows, ascending; without copying where they follow each
// other.
func (t *table) gather(rows []int) []float32 {
	n := len(rows)
	if n == 0 {
		return nil
	}
	if rows[n-1]-rows[0] == n-1 {
		return t.x[rows[0]*t.d : (rows[0]+n)*t.d]
	}
	x := make([]float32, 0, n*t.d)
	for _, r := range rows {
		x = append(x, t.x[r*t.d:(r+1)*t.d]...)
	}
	return x
}

// backboneLogits returns those that lie beside a row's features.
func (t *table) backboneLogits(row int) []float32 {
	for _, set := range t.sets {
		if row < set.N {
			logits, c := set.Logits()
			return logits[row*c : (row+1)*c]
		}
		row -= set.N
	}
	panic("pipeline: a row beyond the sets")
}

// checkLogits says whether all sets of a table have logits of so many classes.
func (t *table) checkLogits(classes int) error {
	for _, set := range t.sets {
		switch _, c := set.Logits(); c {
		case classes:
		case 0:
			return fmt.Errorf("features %s have no logits of the backbone's (logits.npy)", set.Dir)
		default:
			return fmt.Errorf("features %s have logits of %d classes, and there are %d classes to tell from strangers", set.Dir, c, classes)
		}
	}
	return nil
}

// fitting is what post-hoc scores are fitted on.
type fitting struct {
	train, val *posthoc.Data // val may be nil
	network    posthoc.MLP   // of the classifier; nil where its weights are not known
	memory     int64
}

// data gives rows of a table, ascending, with the logits of the classifier;
// labels are those of all rows of the table.
func (c *classifier) data(t *table, rows []int, labels []int64, classes int) *posthoc.Data {
	data := &posthoc.Data{
		N: len(rows), D: t.d, Classes: classes,
		Features: func(from, to int) []float32 { return c.features(t.gather(rows[from:to])) },
		Logits:   func(from, to int) []float64 { return c.logits(t, rows[from:to]) },
	}
	if c.represent != nil {
		data.D = c.width
	}
	for _, r := range rows {
		data.Labels = append(data.Labels, labels[r])
	}
	return data
}

// fit fits a post-hoc score. One that needs a linear head and cannot have it on
// the features, as the classifier has hidden layers, reads what the last layer
// reads.
func (f fitting) fit(ctx context.Context, name string) (posthoc.Scorer, error) {
	in := posthoc.Input{Train: f.train, Val: f.val, Memory: f.memory}
	switch len(f.network) {
	case 0:
		return posthoc.Fit(ctx, name, in)
	case 1:
		in.Head = f.network[0]
		return posthoc.Fit(ctx, name, in)
	}
	in.Network = f.network
	s, err := posthoc.Fit(ctx, name, in)
	if !errors.Is(err, posthoc.ErrMissing) {
		return s, err
	}
	in.Train, in.Val, in.Head = f.hidden(f.train), f.hidden(f.val), f.network[len(f.network)-1]
	if s, err = posthoc.Fit(ctx, name, in); err != nil {
		return nil, err
	}
	return &onHidden{s, f.network}, nil
}

// hidden returns the same rows with the features that the last layer reads.
func (f fitting) hidden(data *posthoc.Data) *posthoc.Data {
	if data == nil {
		return nil
	}
	return &posthoc.Data{
		N: data.N, D: f.network[len(f.network)-1].In, Classes: data.Classes, Labels: data.Labels, Logits: data.Logits,
		Features: func(from, to int) []float32 { return lastHidden(f.network, data.Features(from, to)) },
	}
}

// onHidden is a score of what the last layer of a network reads.
type onHidden struct {
	score   posthoc.Scorer
	network posthoc.MLP
}

// Score implements posthoc.Scorer.
func (s *onHidden) Score(ctx context.Context, dst []float64, b posthoc.Batch) error {
	b.Features = lastHidden(s.network, b.Features)
	return s.score.Score(ctx, dst, b)
}

func lastHidden(network posthoc.MLP, x []float32) []float32 {
	hidden := network.Hidden(widened(x))
	out := make([]float32, len(hidden))
	for i, v := range hidden {
		out[i] = float32(v)
	}
	return out
}

func widened(x []float32) []float64 {
	wide := make([]float64, len(x))
	for i, v := range x {
		wide[i] = float64(v)
	}
	return wide
}
