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
//
// Residual implements the default network: an MLRBFN whose hidden layers
// add to their inputs, with a density before the layers and a closed-form start.
// It is based on the network of [Paper], which explains the symbols.
//
// # Why not the paper's network
//
// Two things limit the paper's head on the features of a backbone. First, it
// depends on distances alone, and most of ‖x−c‖² comes from directions in which
// the classes do not differ. Second, exp(−β⁺d) over hundreds of coordinates
// cannot be near 1 for the rows of a class and near 0 for other rows, because
// these are hardly farther from the class mean. The residual network therefore
// reads conditioned features, separates the density from the decision, and starts
// from a closed form that already classifies well.
//
// # The network
//
// Features should be divided by their length and whitened within the classes
// ([Conditioning]). Whitening makes squared distances Mahalanobis
// distances, which detect out-of-distribution (OOD) rows [LLLS], and more of them
// after the division by the length [MH]. Let z be such a row, of length D. Its
// first coordinates separate the class means best. The layers read u, the first e
// of them: e is Config.Projection, by default max(50, C − 1), at most D.
//
// The density has no trained parameters. With the class means μ_c of the training
// rows, and the 0.5 and 0.99 quantiles r₅₀ and r of m over the validation rows (or
// the training rows if there are none),
//
//	m = min_c ‖z − μ_c‖²
//	log dep₀ = −log(1 + exp(4·(m − r)/(r − r₅₀)))
//
// so that dep₀ is 0.98 at m = r₅₀ and ½ at m = r. The hidden layers are the
// paper's, but begin with this depression and add to their inputs:
//
//	log n_c = log(β⁺_c/β⁺_init) − β⁺_c ‖u − c_c‖² + min(log dep + log rec, 0)
//	dep′ = max_c n_c
//	u′ = u + Σ_c a_c n_c
//
// The last layer divides the remaining confidence among the classes:
//
//	l_c = −β⁺_c ‖u − w_c‖²
//	log φ_c = l_c − log Σ_j exp(l_j) + min(log dep + log rec, 0)
//
// where the last term is log dep₀ itself if there are no hidden layers.
//
// Before the first step the projections a_c are 0. Unless Config.Start is nil, the
// last layer is a linear classifier, which one width for all classes allows; what
// follows is the start without it. The w_c are the class means. All β⁺_c of the last layer are the one number of a grid for which
// softmax(l) has the least cross-entropy on the validation rows (with balanced
// sampling times n/(n + 1) for a class of n rows). Training thus
// starts from a closed form, which classifies like linear discriminant analysis
// with equal priors in the first e coordinates. The hidden layers are initialised
// like the paper's, but on up to 2,000 rows, with 20 passes, and with β⁺ = ¼/d, at
// most 4, instead of 4/d. A class without training rows gets a centroid too narrow
// for any row. The loss and the optimiser are the paper's. They change the layers
// only, not the conditioning or the density.
//
// The [HeadScore] is not max_c log φ_c but the sum of two terms, each standardised on
// the validation rows: −m, which finds OOD rows far from all classes, and the
// generalised entropy of softmax(l), GEN [LLZ], which finds OOD rows between the
// classes. The first term is not enough: most of m comes from coordinates in which
// near-OOD rows are like rows of the classes (Ren et al. [RFLRPL]).
//
// # The bound far from the data
//
// Let e^slack be the product of rec·max_c β⁺_c/β⁺_init over the hidden layers,
// times rec for the last layer if there are hidden layers. Then
//
//	Σ_c φ_c ≤ min(1, dep₀·e^slack) and dep₀ ≤ exp(−4·(m − r)/(r − r₅₀))
//
// because no layer raises the depression by more than that, and softmax sums to
// 1. So the total confidence goes to 0 exponentially in the squared distance from
// the nearest class mean, in every direction. Training changes only the slack. The
// score falls with −m without bound, because GEN is bounded. The bound does not
// help with OOD images whose features lie among the rows of a class, or with the
// length of a row if the conditioning divides by it: x and 10x are then the same.
//
// # References
//
//   - [LLLS] Lee, Lee, Lee and Shin, A simple unified framework for detecting
//     out-of-distribution samples and adversarial attacks, NeurIPS 2018.
//   - [LLZ] Liu, Lochman and Zach, GEN: pushing the limits of softmax-based
//     out-of-distribution detection, CVPR 2023.
//   - [MH] Mueller and Hein, Mahalanobis++: improving OOD detection via feature
//     normalization, ICML 2025.
//   - [RFLRPL] Ren, Fort, Liu, Roy, Padhy and Lakshminarayanan, A simple fix to
//     Mahalanobis distance for improving near-OOD detection, 2021.
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

// WithDefaults implements Config. A Projection of 0 stays 0, as its default
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

// Settings implements Config.
func (c Residual) Settings() Settings {
	return Settings{
		Layers: c.Layers, Centroids: c.Centroids, Projection: c.Projection,
		Norm: 2, Recovery: c.Recovery, SumLoss: c.SumLoss, Residual: true,
	}
}

// TrainOptions implements Config. The defaults are 20 epochs and a learning
// rate of 0.003 with the cosine schedule, and at most 30,000 steps: so many change a
// centroid of each of 1,000 classes thousands of times.
func (c Residual) TrainOptions(o TrainOptions) (TrainOptions, error) {
	o.Epochs = cmp.Or(o.Epochs, 20)
	o.MostSteps = cmp.Or(o.MostSteps, 30000)
	o.LR = cmp.Or(o.LR, 0.003)
	o.Schedule = cmp.Or(o.Schedule, Cosine)
	return o.WithDefaults()
}

// Conditioning implements Config.
func (c Residual) Conditioning() ConditioningOptions {
	return ConditioningOptions{Kind: Auto}
}

// Prepare implements Config. It fits the density to the training rows and
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
