package head

import (
	"cmp"
	"context"
	"errors"
	"math"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// LeastProjection is the least number of features that the layers read by default.
const LeastProjection = 50

// Residual is the shape of the residual network. A zero field takes its default,
// which docs/research.md found best.
type Residual struct {
	Layers     int     // RBF layers, the last one included; 0 means 2
	Centroids  int     // N, centroids of each hidden layer; 0 means 50
	Projection int     // e, how many of the first features the layers read; 0 means LeastProjection, or the number of classes less one if that is more
	Recovery   float64 // rec ≥ 1; 0 means 1.1
	// Start, unless nil, is a linear classifier of the first features that the last
	// layer begins as; nil means Gaussians at the class means.
	Start   *Linear
	SumLoss bool // the loss is the sum over the entries instead of the mean
}

// Linear is a classifier of the first K features: logits of class c are
// Weights[c]·u + Bias[c].
type Linear struct {
	Weights []float64 // [C, K]
	Bias    []float64 // [C]
}

// WithDefaults implements head.Config. A Projection of 0 stays 0, as its default
// depends on the number of classes.
func (c Residual) WithDefaults() (Config, error) { return c.withDefaults() }

func (c Residual) withDefaults() (Residual, error) {
	c.Layers = cmp.Or(c.Layers, 2)
	c.Centroids = cmp.Or(c.Centroids, 50)
	c.Recovery = cmp.Or(c.Recovery, 1.1)
	switch {
	case c.Layers < 1 || c.Layers > 100:
		return c, options.Errorf("Layers", "%d: a head has 1 to 100", c.Layers)
	case c.Centroids < 1:
		return c, options.Errorf("Centroids", "%d is not positive", c.Centroids)
	case c.Start != nil && (len(c.Start.Bias) == 0 || len(c.Start.Weights)%len(c.Start.Bias) != 0):
		return c, options.Errorf("Start", "%d weights and %d biases", len(c.Start.Weights), len(c.Start.Bias))
	case c.Projection < 0:
		return c, options.Errorf("Projection", "%d is negative", c.Projection)
	}
	return c, checkRecovery(c.Recovery)
}

func checkRecovery(recovery float64) error {
	if !(recovery >= 1) || math.IsInf(recovery, 1) {
		return options.Errorf("Recovery", "%g: it must be finite and at least 1", recovery)
	}
	return nil
}

// Settings implements head.Config.
func (c Residual) Settings() Settings {
	return Settings{
		Layers: c.Layers, Centroids: c.Centroids, Projection: c.Projection,
		Norm: 2, Recovery: c.Recovery, SumLoss: c.SumLoss, Residual: true,
	}
}

// TrainOptions implements head.Config. The defaults are 20 epochs and a learning
// rate of 0.003 with the cosine schedule, and at most 30,000 steps: so many change a
// centroid of each of 1,000 classes thousands of times.
func (c Residual) TrainOptions(o TrainOptions) (TrainOptions, error) {
	o.Epochs = cmp.Or(o.Epochs, 20)
	o.MostSteps = cmp.Or(o.MostSteps, 30000)
	o.LR = cmp.Or(o.LR, 0.003)
	o.Schedule = cmp.Or(o.Schedule, Cosine)
	return o.WithDefaults()
}

// Conditioning implements head.Config.
func (c Residual) Conditioning() ConditioningOptions {
	return ConditioningOptions{Kind: Auto}
}

// Prepare implements head.Config. It fits the density to the training rows and
// reduces each row to the values that the layers read.
func (c Residual) Prepare(ctx context.Context, train, val features.Rows, classes int, space *features.Space) (Prepared, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := CheckRows(train, val, classes); err != nil {
		return nil, err
	}
	p := &residualPrepared{cfg: c, given: val, classes: classes}
	if val.Len() == 0 {
		p.given = train
	}
	if p.density, err = fitDensity(ctx, train, val, classes); err != nil {
		return nil, err
	}
	e := residualNewNetwork(c, train.D, classes).Layers[0].In
	if s := c.Start; s != nil && (len(s.Bias) != classes || len(s.Weights) > classes*e) {
		return nil, options.Errorf("Start", "%d weights of %d classes, and the layers read %d features in %d classes", len(s.Weights), len(s.Bias), e, classes)
	}
	if p.train, err = p.density.reduce(ctx, train, e, space); err != nil {
		return nil, err
	}
	if p.val, err = p.density.reduce(ctx, val, e, space); err != nil {
		return nil, errors.Join(err, p.train.Close())
	}
	return p, nil
}

// residualPrepared holds rows to train on.
type residualPrepared struct {
	cfg        Residual
	train, val features.Rows // reduced
	given      features.Rows // the rows that the score is fitted on, conditioned
	classes    int
	density    *Density
}

func (p *residualPrepared) Window(batch int) int { return Window(p.train, batch) }

func (p *residualPrepared) Close() error { return errors.Join(p.train.Close(), p.val.Close()) }

func (p *residualPrepared) Train(ctx context.Context, opts TrainOptions) (*Head, []Epoch, error) {
	opts, err := p.cfg.TrainOptions(opts)
	if err != nil {
		return nil, nil, err
	}
	n := residualNewNetwork(p.cfg, p.density.D, p.classes)
	n.Density = p.density
	t := &residualTrainer{residualNetwork: residualCompute[float32](n, opts.Batch), model: n, val: p.val, balance: opts.Balance, from: p.cfg.Start}
	t.SumLoss = p.cfg.SumLoss
	epochs, err := Fit(ctx, t, p.train, p.val, p.classes, opts)
	if err != nil {
		return nil, epochs, err
	}
	t.CopyTo(n.Layers)
	// Training is complete: finish even if ctx is cancelled now.
	if n.Score, err = n.fitScore(context.WithoutCancel(ctx), p.given); err != nil {
		return nil, epochs, err
	}
	return &Head{Network: n}, epochs, nil
}
