package head

import (
	"cmp"
	"context"
	"math"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// Paper is the shape of the paper's network. A zero field takes the paper's
// value.
type Paper struct {
	Layers     int     // RBF layers, the last one included; 0 means 4
	Centroids  int     // N, centroids of each hidden layer; 0 means 50
	Projection int     // o, outputs of each hidden layer; 0 means 100
	Norm       float64 // k ≥ 1 of the distance ‖x−c‖_k^k; 0 means 2
	Recovery   float64 // rec ≥ 1; 0 means 1.1

	// Each of these removes one of the paper's steps; see the package comment.

	NoDepression  bool // neither cap nor β ratio: the paper's naive network
	NoRatio       bool // depression without the ratio β⁺_c/β⁺_init
	NoProjections bool // a hidden layer outputs (n_1, …, n_N), and Projection is ignored
	SumLoss       bool // the loss is the sum over the entries instead of the mean
}

// PaperPreset holds the settings of one of the paper's experiments.
type PaperPreset struct {
	Paper
	Train TrainOptions
}

// PaperPresets holds the settings of the paper's experiments, by name. Zero fields
// take the defaults.
var PaperPresets = map[string]PaperPreset{
	"imagenet1k": {Paper{Layers: 5}, TrainOptions{Epochs: 1000}},
	"mnist":      {Paper{Centroids: 200}, TrainOptions{Epochs: 200, Batch: 256}},
	"moons":      {Paper{Layers: 3}, TrainOptions{Epochs: 250, Batch: 100}},
}

// WithDefaults implements head.Config.
func (c Paper) WithDefaults() (Config, error) { return c.withDefaults() }

func (c Paper) withDefaults() (Paper, error) {
	c.Layers = cmp.Or(c.Layers, 4)
	c.Centroids = cmp.Or(c.Centroids, 50)
	c.Projection = cmp.Or(c.Projection, 100)
	c.Norm = cmp.Or(c.Norm, 2)
	c.Recovery = cmp.Or(c.Recovery, 1.1)
	switch {
	case c.Layers < 1 || c.Layers > 100:
		return c, options.Errorf("Layers", "%d: a head has 1 to 100", c.Layers)
	case c.Centroids < 1:
		return c, options.Errorf("Centroids", "%d is not positive", c.Centroids)
	case c.Projection < 1:
		return c, options.Errorf("Projection", "%d is not positive", c.Projection)
	}
	return c, c.check()
}

// check reports what is wrong with the norm and the recovery.
func (c Paper) check() error {
	switch {
	case !(c.Norm >= 1) || math.IsInf(c.Norm, 1):
		return options.Errorf("Norm", "%g: k must be finite and at least 1", c.Norm)
	case !(c.Recovery >= 1) || math.IsInf(c.Recovery, 1):
		return options.Errorf("Recovery", "%g: it must be finite and at least 1", c.Recovery)
	}
	return nil
}

// Settings implements head.Config.
func (c Paper) Settings() Settings {
	return Settings{
		Layers: c.Layers, Centroids: c.Centroids, Projection: c.Projection, Norm: c.Norm, Recovery: c.Recovery,
		NoDepression: c.NoDepression, NoRatio: c.NoRatio, NoProjections: c.NoProjections, SumLoss: c.SumLoss,
	}
}

// TrainOptions implements head.Config. The paper's defaults are those of
// head.TrainOptions.
func (c Paper) TrainOptions(o TrainOptions) (TrainOptions, error) { return o.WithDefaults() }

// Conditioning implements head.Config: the paper has none.
func (c Paper) Conditioning() ConditioningOptions {
	return ConditioningOptions{Kind: None}
}

// Prepare implements head.Config. The rows need no preparation.
func (c Paper) Prepare(_ context.Context, train, val features.Rows, classes int, _ *features.Space) (Prepared, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := CheckRows(train, val, classes); err != nil {
		return nil, err
	}
	return &prepared{c, train, val, classes}, nil
}

// prepared holds the caller's rows unchanged.
type prepared struct {
	cfg        Paper
	train, val features.Rows
	classes    int
}

func (p *prepared) Window(batch int) int { return Window(p.train, batch) }

func (p *prepared) Close() error { return nil }

func (p *prepared) Train(ctx context.Context, opts TrainOptions) (*Head, []Epoch, error) {
	opts, err := p.cfg.TrainOptions(opts)
	if err != nil {
		return nil, nil, err
	}
	n := newNetwork(p.cfg, p.train.D, p.classes)
	t := &trainer{model: n, network: compute[float32](n, opts.Batch)}
	t.SumLoss = p.cfg.SumLoss
	epochs, err := Fit(ctx, t, p.train, p.val, p.classes, opts)
	if err != nil {
		return nil, epochs, err
	}
	t.CopyTo(n.Layers)
	return &Head{Network: n}, epochs, nil
}
