package head

import (
	"context"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

// PaperNetwork is the paper's network, trained. It implements Network.
type PaperNetwork struct {
	Norm     float64 // k
	Recovery float64 // rec
	Layers   []Layer

	NoDepression, NoRatio, NoProjections bool // as in Config
}

// newNetwork returns cfg's network, all parameters zero, for d features.
func newNetwork(cfg Paper, d, classes int) *PaperNetwork {
	n := PaperFromSettings(cfg.Settings())
	out := cfg.Projection
	if cfg.NoProjections {
		out = cfg.Centroids
	}
	for range cfg.Layers - 1 {
		n.Layers = append(n.Layers, NewLayer(d, cfg.Centroids, out, !cfg.NoProjections))
		d = out
	}
	n.Layers = append(n.Layers, NewLayer(d, classes, 0, false))
	return n
}

// PaperFromSettings returns a network with these settings and without layers, for a
// caller that reads the layers from a file. Validate then checks them.
func PaperFromSettings(s Settings) *PaperNetwork {
	return &PaperNetwork{
		Norm: s.Norm, Recovery: s.Recovery,
		NoDepression: s.NoDepression, NoRatio: s.NoRatio, NoProjections: s.NoProjections,
	}
}

// Settings implements Network.
func (n *PaperNetwork) Settings() Settings {
	return Settings{
		Layers: len(n.Layers), Norm: n.Norm, Recovery: n.Recovery,
		NoDepression: n.NoDepression, NoRatio: n.NoRatio, NoProjections: n.NoProjections,
	}
}

// Dim implements Network.
func (n *PaperNetwork) Dim() int { return n.Layers[0].In }

// Classes implements Network.
func (n *PaperNetwork) Classes() int { return n.Layers[len(n.Layers)-1].N }

// Width implements Network.
func (n *PaperNetwork) Width() int { return n.Layers[len(n.Layers)-1].In }

// HasScore implements Network: its score is max_c log φ_c.
func (n *PaperNetwork) HasScore() bool { return false }

// Validate implements Network.
func (n *PaperNetwork) Validate() error {
	if err := (Paper{Norm: n.Norm, Recovery: n.Recovery}).check(); err != nil {
		return err
	}
	return CheckLayers(n.Layers, !n.NoProjections)
}

// network is a Network with buffers to compute in. It serves one goroutine.
type network[T kernels.Real] struct {
	*rbfNetwork[T]
	first []T // [B], log dep before the first layer: 0
}

// compute copies a network's parameters into one with buffers for batches of up
// to batch rows.
func compute[T kernels.Real](n *PaperNetwork, batch int) *network[T] {
	return &network[T]{newRBF[T](n.Settings(), n.Layers, batch), make([]T, batch)}
}

// forward computes log φ for the rows x [b, d]. Call Refresh first.
func (net *network[T]) forward(x []T, b int) {
	d := net.Layers[0].D
	in, logDep := []T(nil), net.first
	if net.K == 2 && net.GInput != nil { // else a product reads the rows as they are
		in = net.In[:d*b]
		net.Transpose(in, x, b, d)
	}
	for _, l := range net.Layers {
		net.forwardLayer(l, in, x, logDep, b)
		in, x, logDep = l.Out[:l.O*b], nil, l.LogDep
		if net.K != 2 {
			x = net.Rows(l, b)
		}
	}
}

// forwardLayer computes n_c, dep' and φ' = Σ_c a_c n_c of a hidden layer, or
// log φ_c of the last; see rbf.Network.Weigh.
func (net *network[T]) forwardLayer(l *rbfLayer[T], in, rows, logDep []T, b int) {
	net.Weigh(l, in, rows, logDep, b)
	net.Project(l, 0, b)
}

// backward computes the gradients of all parameters from the gradient by
// log φ [C, b], which it finds in the last layer's GWeights, for the rows of
// the last forward pass.
func (net *network[T]) backward(b int) {
	for at := len(net.Layers) - 1; at >= 0; at-- {
		l := net.Layers[at]
		gIn, gLogDep := net.GInput, []T(nil)
		if at > 0 {
			gIn, gLogDep = net.Layers[at-1].GOut, net.Layers[at-1].GLogDep
		}
		net.BackwardLayer(l, gIn, gLogDep, b)
	}
}

// Step computes the mean loss on labelled rows x [b, d] and all gradients.
func (net *network[T]) Step(x []T, labels []int) float64 {
	net.Refresh()
	net.forward(x, len(labels))
	loss := net.LossGradient(labels)
	net.backward(len(labels))
	return loss
}

// kmeansPasses is how often web-scale k-means goes over the rows.
const kmeansPasses = 100

// initialise places the centroids and sets the inverse widths of every layer from
// the rows x [b, d], b ≥ 2, as the layers before transform them (paper, appendix
// A): the first half of the rows places the centroids, the second half sets β.
// Projections must be drawn before. It returns ctx.Err() when ctx is cancelled.
func (net *network[T]) initialise(ctx context.Context, x []T, b int, rng Random) error {
	logDep, d := net.first, net.Layers[0].D
	in := net.In[:d*b]
	net.Transpose(in, x, b, d)
	for _, l := range net.Layers {
		half := b / 2
		if err := plusPlus(ctx, l.Centroids, l.D, x[:half*l.D], net.K, rng); err != nil {
			return err
		}
		if err := webScale(ctx, l.Centroids, l.D, x[:half*l.D], net.K, kmeansPasses); err != nil {
			return err
		}
		beta, err := initialBeta(ctx, l.Centroids, l.D, x[half*l.D:b*l.D], net.K, 4)
		if err != nil {
			return err
		}
		l.SetBeta(beta)
		net.RefreshLayer(l)
		net.forwardLayer(l, in, x, logDep, b)
		in, x, logDep = l.Out[:l.O*b], net.Rows(l, b), l.LogDep
	}
	return nil
}

// trainer is a network in training.
type trainer struct {
	*network[float32]
	model *PaperNetwork
}

// Draw implements Trainable: it draws the projections.
func (t *trainer) Draw(rng Random) {
	for _, l := range t.model.Layers {
		for i := range l.Projections {
			l.Projections[i] = float32(rng.NormFloat64())
		}
	}
	t.CopyFrom(t.model.Layers)
}

// Start implements Trainable. It computes in float64: it runs only once, and
// rounding errors of distances end up in exponents.
func (t *trainer) Start(ctx context.Context, x []float32, b int, _ features.Rows, rng Random) error {
	network := compute[float64](t.model, b)
	rows := make([]float64, b*t.model.Dim())
	kernels.Convert(rows, x[:len(rows)])
	if err := network.initialise(ctx, rows, b, rng); err != nil {
		return err
	}
	network.CopyTo(t.model.Layers)
	t.CopyFrom(t.model.Layers)
	return nil
}

// Logits implements Trainable.
func (t *trainer) Logits(x []float32, b int) []float32 {
	t.Refresh()
	t.forward(x, b)
	return t.Output(b)
}

// NewEvaluator implements Network.
func (n *PaperNetwork) NewEvaluator() Evaluator {
	return &evaluator{compute[float64](n, BatchRows), n.Dim(), n.Classes()}
}

type evaluator struct {
	*network[float64]
	d, classes int
}

// Predict implements Evaluator.
func (e *evaluator) Predict(o Outputs, z []float64) {
	b := len(z) / e.d
	e.forward(z, b)
	for i, v := range e.Output(b) {
		o.LogConfidences[i] = min(v, 0) // rounding may lift v above 0
	}
	for i := range o.Scores {
		o.Scores[i] = slices.Max(o.LogConfidences[i*e.classes : (i+1)*e.classes])
	}
}

// Represent implements Evaluator: φ of the layer before the last.
func (e *evaluator) Represent(dst []float32, z []float64) {
	b := len(z) / e.d
	e.forward(z, b)
	kernels.Convert(dst, e.Inputs(e.Last(), b))
}
