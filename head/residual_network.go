package head

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

// ResidualNetwork is the residual network, trained. It implements Network.
type ResidualNetwork struct {
	Recovery float64 // rec
	Layers   []Layer
	Density  *Density
	Score    *HeadScore // nil means max_c log φ_c
}

// residualNewNetwork returns cfg's network for d features, with all parameters zero and
// without a density.
func residualNewNetwork(cfg Residual, d, classes int) *ResidualNetwork {
	n := &ResidualNetwork{Recovery: cfg.Recovery}
	e := cfg.Projection
	if e == 0 {
		e = max(LeastProjection, classes-1)
	}
	e = min(e, d)
	for range cfg.Layers - 1 {
		n.Layers = append(n.Layers, NewLayer(e, cfg.Centroids, e, true))
	}
	n.Layers = append(n.Layers, NewLayer(e, classes, 0, false))
	return n
}

// ResidualFromSettings returns a network with these settings and without layers, density
// and score, for a caller that reads these from a file. Validate then checks them.
// Settings that only the paper's network has are an error.
func ResidualFromSettings(s Settings) (*ResidualNetwork, error) {
	if s.Norm != 2 || s.NoDepression || s.NoRatio || s.NoProjections {
		return nil, errors.New("the residual network has norm 2, and none of the paper's steps can be removed")
	}
	return &ResidualNetwork{Recovery: s.Recovery}, nil
}

// Settings implements Network.
func (n *ResidualNetwork) Settings() Settings {
	return Settings{Layers: len(n.Layers), Norm: 2, Recovery: n.Recovery, Residual: true}
}

// Dim implements Network.
func (n *ResidualNetwork) Dim() int { return n.Density.D }

// Classes implements Network.
func (n *ResidualNetwork) Classes() int { return n.Layers[len(n.Layers)-1].N }

// Width implements Network.
func (n *ResidualNetwork) Width() int { return n.Layers[len(n.Layers)-1].In }

// HasScore implements Network.
func (n *ResidualNetwork) HasScore() bool { return n.Score != nil }

// Validate implements Network.
func (n *ResidualNetwork) Validate() error {
	if err := errors.Join(checkRecovery(n.Recovery), CheckLayers(n.Layers, true)); err != nil {
		return err
	}
	for i, l := range n.Layers[:len(n.Layers)-1] {
		if l.In != l.Out {
			return fmt.Errorf("layer %d of a residual network has the shape d=%d, o=%d", i, l.In, l.Out)
		}
	}
	if n.Density == nil || !n.Density.valid() || n.Density.D < n.Layers[0].In {
		return errors.New("the residual network's density is missing or does not fit its layers")
	}
	if s := n.Score; s != nil && !s.valid() {
		return fmt.Errorf("the head holds the score %+v", *s)
	}
	return nil
}

// residualNetwork holds a Network's layers with buffers to compute in. It serves one
// goroutine.
type residualNetwork[T kernels.Real] struct {
	*rbfNetwork[T]
	rows   []T // [B, E], the first features
	dep    []T // [B], log dep₀
	logits []T // [C, B], l_c
	norm   []T // [B], log Σ_c e^{l_c}
	share  []T // [C, B], softmax(l)
	l      []T // [B, C], the transpose of logits
	zero   []T // [B]

	// products, where set, puts the products [b, C] of rows with the centroids of the
	// last layer into dst.
	products func(dst, rows []T)
}

// residualCompute copies a network's parameters into one with buffers for batches of up
// to batch rows.
func residualCompute[T kernels.Real](n *ResidualNetwork, batch int) *residualNetwork[T] {
	vector := func(n int) []T { return make([]T, n) }
	e, classes := n.Width(), n.Classes()
	return &residualNetwork[T]{
		rbfNetwork: newRBF[T](n.Settings(), n.Layers, batch),
		rows:       vector(batch * e), dep: vector(batch), norm: vector(batch), zero: vector(batch),
		logits: vector(classes * batch), share: vector(classes * batch), l: vector(batch * classes),
	}
}

// forward computes log φ for rows x [b, E+1] of reduce. The hidden layers are the
// paper's, but add to their inputs; the last is
//
//	l_c = −β⁺_c ‖u−c_c‖²,  log φ_c = l_c − log Σ_j e^{l_j} + min(log dep + log rec, 0)
//
// where the cap is log dep₀ itself if there are no hidden layers. Call Refresh
// first.
func (net *residualNetwork[T]) forward(x []T, b int) {
	last := net.Last()
	e := last.D
	for i := range b {
		row := x[i*(e+1) : (i+1)*(e+1)]
		copy(net.rows[i*e:], row[:e])
		net.dep[i] = row[e]
	}
	u, rows, logDep := net.In[:e*b], net.rows, net.dep
	net.Transpose(u, rows, b, e)
	for _, l := range net.Hidden() {
		net.Weigh(l, u, rows, logDep, b)
		copy(l.Out, u)
		net.Project(l, 1, b)
		u, rows, logDep = l.Out[:e*b], nil, l.LogDep
	}
	last.In, last.RowsIn = u, rows
	if net.products == nil {
		net.Measure(last, b)
	} else {
		net.MeasureBy(last, b, net.products)
	}
	if len(net.Hidden()) > 0 {
		net.Caps(last, logDep, b)
	} else {
		copy(last.Limit[:b], logDep)
	}
	size := last.N * b
	net.LogPhi(net.logits[:size], last.Dist[:size], last.Width, net.zero[:b])
	net.Softmax(net.share[:size], net.norm[:b], net.logits[:size])
	for i, norm := range net.norm[:b] {
		last.Limit[i] -= norm
	}
	net.LogPhi(last.Weights[:size], last.Dist[:size], last.Width, last.Limit[:b])
	// Far from all class means l_c and log Σ e^l are large and cancel: their float32
	// rounding can lift log φ above 0, where the loss is NaN.
	for i, norm := range net.norm[:b] {
		if norm > -4 {
			continue
		}
		for c := range last.N {
			if v := &last.Weights[c*b+i]; *v >= logShift {
				*v = 0
			}
		}
	}
}

// outputLogits returns the l [b, C] of the last forward pass. The next call
// overwrites it.
func (net *residualNetwork[T]) outputLogits(b int) []T {
	return net.PerRow(net.l, net.logits, b)
}

// backward computes the gradients of all parameters from the gradient by
// log φ [C, b], which it finds in the last layer's GWeights, for the rows of
// the last forward pass.
func (net *residualNetwork[T]) backward(b int) {
	last, hidden := net.Last(), net.Hidden()
	gIn, gCap := net.GInput, net.norm[:b] // log φ also contains the cap
	if len(hidden) > 0 {
		l := hidden[len(hidden)-1]
		gIn, gCap = l.GOut, l.GLogDep[:b]
	}
	net.SoftmaxBackward(last.GWeights[:last.N*b], gCap, net.share)
	net.Multiply(gCap, last.Passed)
	net.BackwardLayer(last, gIn, nil, b)
	for at := len(hidden) - 1; at >= 0; at-- {
		l := hidden[at]
		gIn, gLogDep := net.GInput, []T(nil)
		if at > 0 {
			gIn, gLogDep = hidden[at-1].GOut, hidden[at-1].GLogDep
		}
		net.BackwardLayer(l, gIn, gLogDep, b)
		if gIn != nil { // past the layer
			net.Add(gIn[:l.D*b], l.GOut)
		}
	}
}

// Step computes the mean loss on labelled rows x [b, E+1] and all gradients.
func (net *residualNetwork[T]) Step(x []T, labels []int) float64 {
	net.Refresh()
	net.forward(x, len(labels))
	loss := net.LossGradient(labels)
	net.backward(len(labels))
	return loss
}

// residualTrainer is a network in training.
type residualTrainer struct {
	*residualNetwork[float32]
	model *ResidualNetwork
	val   features.Rows // reduced

	balance bool    // see network.start
	from    *Linear // likewise
}

// Draw implements Trainable. There is nothing to draw.
func (t *residualTrainer) Draw(Random) {}

// Start implements Trainable. It computes in float64: it runs only once, and
// rounding errors of distances end up in exponents.
func (t *residualTrainer) Start(ctx context.Context, _ []float32, b int, train features.Rows, rng Random) error {
	network := residualCompute[float64](t.model, b)
	if err := network.start(ctx, train, t.val, t.model.Classes(), t.balance, t.from, rng); err != nil {
		return err
	}
	network.CopyTo(t.model.Layers)
	t.CopyFrom(t.model.Layers)
	return nil
}

// Logits implements Trainable.
func (t *residualTrainer) Logits(x []float32, b int) []float32 {
	t.Refresh()
	t.forward(x, b)
	return t.Output(b)
}

// NewEvaluator implements Network.
func (n *ResidualNetwork) NewEvaluator() Evaluator { return n.evaluator() }

func (n *ResidualNetwork) evaluator() *residualEvaluator {
	last := n.Layers[len(n.Layers)-1]
	centroids := packed(last.Centroids, last.In)
	e := &residualEvaluator{
		residualNetwork: residualCompute[float64](n, BatchRows), score: n.Score, classes: n.Classes(),
		density: n.Density, measure: n.Density.measure(),
		distance: make([]float64, BatchRows), reduced: make([]float64, BatchRows*(n.Width()+1)),
	}
	e.products = func(dst, rows []float64) { centroids.NN(len(rows)/last.In, rows, dst) }
	return e
}

type residualEvaluator struct {
	*residualNetwork[float64]
	score   *HeadScore
	classes int

	density  *Density
	measure  *measure
	distance []float64 // of a batch from the nearest class mean
	reduced  []float64 // inputs of the layers
}

// forward computes the conditioned rows z [b, D] and returns their l_c [b, C].
func (e *residualEvaluator) forward(z []float64) (logits []float64) {
	d, first := e.measure.d, e.Last().D
	b := len(z) / d
	e.measure.distances(e.distance, z, b)
	for i := range b {
		row := e.reduced[i*(first+1) : (i+1)*(first+1)]
		copy(row, z[i*d:i*d+first])
		row[first] = e.density.logDep(e.distance[i])
	}
	e.residualNetwork.forward(e.reduced, b)
	return e.outputLogits(b)
}

// Predict implements Evaluator. The terms are −m and G.
func (e *residualEvaluator) Predict(o Outputs, z []float64) {
	logits := e.forward(z)
	for i, v := range e.Output(len(z) / e.measure.d) {
		o.LogConfidences[i] = min(v, 0) // rounding may lift v above 0
	}
	for i := range o.Scores {
		from, to := i*e.classes, (i+1)*e.classes
		if e.score == nil {
			o.Scores[i] = slices.Max(o.LogConfidences[from:to])
			continue
		}
		g := decision(logits[from:to])
		o.Scores[i] = e.score.of(e.distance[i], g)
		if o.Nearness != nil {
			o.Nearness[i], o.Decision[i] = -e.distance[i], g
		}
	}
}

// Represent implements Evaluator: the first features after the hidden
// layers.
func (e *residualEvaluator) Represent(dst []float32, z []float64) {
	e.forward(z)
	kernels.Convert(dst, e.Inputs(e.Last(), len(z)/e.measure.d))
}
