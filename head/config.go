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
//
// Paper implements the multi-layer radial basis function network
// (MLRBFN) of Khanna et al., Multi-layer radial basis function networks for
// out-of-distribution detection. Its outputs are the confidences that an input
// belongs to each class. Far from the training data all of them are low.
//
// # The network
//
// Layer ℓ has N centroids c_c with inverse widths β⁺_c = softplus(β_c) and,
// except in the last layer, projections a_c of length o. With φ₀ = x and
// dep₀ = 1 a hidden layer computes
//
//	d_c  = ‖φ − c_c‖_k^k
//	s_c  = (β⁺_c / β⁺_init) · exp(−β⁺_c d_c)
//	n_c  = s_c · min(dep · rec, 1)
//	dep′ = max_c n_c
//	φ′   = Σ_c a_c n_c
//
// and the last layer, with one centroid per class, computes
//
//	log φ_c = −β⁺_c d_c + min(log dep + log rec, 0)
//
// φ_c in [0, 1] is the confidence that the input is of class c. The depression
// dep measures how near the input was to any centroid of the earlier layers: an
// input that is far from all centroids of a layer cannot become confident in a
// later one. The ratio β⁺_c/β⁺_init penalises very wide centroids.
//
// Training splits the problem into C binary ones, "is it of class c?", and
// minimises their mean binary cross-entropy with Adam [KB]. Before that,
// k-means++ [AV] and then web-scale k-means [S] place the centroids on the first
// batch.
//
// # Where this follows the paper's code, and where it does not
//
// The equations are the paper's (section Methods). The paper's text and its code
// (appendix) differ in places; this package does the following:
//
//   - Recovery is 1.1, as in the code; the text says 1.05.
//   - The loss is the mean over all N·C entries, as in the code; the algorithm
//     in the text sums them.
//   - Log-probabilities are shifted by −1e-6, as in the code; log(1−y) is
//     computed without cancellation, unlike in the code.
//   - Initialisation uses the first batch alone: one half of it places the
//     centroids, the other sets the widths.
//   - The widths come from 0.95 quantiles of d_c = ‖·‖_k^k, as in the code; the
//     text squares quantiles of ‖·‖_k.
//   - β⁺ = 4/d is set by β = log(expm1(4/d)) if 4/d < 5, and by β = 4/d
//     otherwise, where softplus is almost the identity.
//   - Layers pass on the logarithm of the depression. The function is the same,
//     but it never underflows to log 0, which gives NaN in the code.
//   - At a tie of min(dep·rec, 1) each side gets half the gradient, as in
//     torch.minimum.
//
// # Networks without one of the paper's steps
//
// [Config] can remove each step that led the paper to this network, to measure
// its contribution:
//
//   - NoDepression is the paper's naive equation: neither cap nor ratio,
//     s_c = exp(−β⁺_c d_c) and n_c = s_c.
//   - NoRatio keeps the cap: s_c = exp(−β⁺_c d_c), n_c = s_c · min(dep·rec, 1).
//   - NoProjections gives φ′ = (n_1, …, n_N), so that the next layer reads N
//     values. Together with NoDepression these are the layers of the earlier
//     architecture that the paper starts from (its first numbered equation,
//     after Wurzberger and Schwenker). That architecture ends in a linear layer
//     W·φ, whose outputs are not confidences in [0, 1]; here the last layer
//     above replaces it and reads the same N values.
//   - SumLoss sums the loss over the N·C entries of a batch. The gradients are
//     N·C times as large, which Adam cancels except for its ε: the learning
//     rate means the same, gradients of the order of 1e-8 have more effect, and
//     the smaller last batch of an epoch has less. Reported losses are means.
//
// # The bound far from the data
//
// With L layers and with depression, each φ_c is at most
// rec^(L−1)·Π max_c β⁺_c/β⁺_init times exp(−min_c β⁺_c d_c) of the first layer. The
// product is over the hidden layers. Training changes this bound.
//
// # References
//
//   - [AV] Arthur and Vassilvitskii, k-means++: the advantages of careful
//     seeding, SODA 2007.
//   - [KB] Kingma and Ba, Adam: a method for stochastic optimization, ICLR
//     2015.
//   - [S] Sculley, Web-scale k-means clustering, WWW 2010.
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

// WithDefaults implements Config.
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

// Settings implements Config.
func (c Paper) Settings() Settings {
	return Settings{
		Layers: c.Layers, Centroids: c.Centroids, Projection: c.Projection, Norm: c.Norm, Recovery: c.Recovery,
		NoDepression: c.NoDepression, NoRatio: c.NoRatio, NoProjections: c.NoProjections, SumLoss: c.SumLoss,
	}
}

// TrainOptions implements Config. The paper's defaults are those of
// head.TrainOptions.
func (c Paper) TrainOptions(o TrainOptions) (TrainOptions, error) { return o.WithDefaults() }

// Conditioning implements Config: the paper has none.
func (c Paper) Conditioning() ConditioningOptions {
	return ConditioningOptions{Kind: None}
}

// Prepare implements Config. The rows need no preparation.
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
