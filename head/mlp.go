package head

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// Defaults of MLPConfig. A hidden layer has as many outputs as the paper's network has.
const (
	DefaultLayers = 2
	DefaultHidden = 100
)

// MLPConfig is the shape of an MLP. A zero field takes its default.
type MLPConfig struct {
	Layers int // linear layers, the last one included; 0 means DefaultLayers, 1 is a linear classifier
	Hidden int // outputs of each hidden layer; 0 means DefaultHidden
}

// WithDefaults fills in the zero fields and refuses invalid values.
func (c MLPConfig) WithDefaults() (MLPConfig, error) {
	c.Layers = cmp.Or(c.Layers, DefaultLayers)
	c.Hidden = cmp.Or(c.Hidden, DefaultHidden)
	if c.Layers < 1 || c.Layers > 100 || c.Hidden < 1 {
		return c, fmt.Errorf("%d layers with %d outputs: a network has 1 to 100, and outputs", c.Layers, c.Hidden)
	}
	return c, nil
}

// TrainMLP trains an MLP, the network that the paper compares with, by softmax
// cross-entropy, in the same loop as Train: Adam on shuffled mini-batches, the
// learning rate halved on a plateau. Weights and biases of a layer begin uniform in
// ±1/√In, as in torch.nn.Linear. One layer is the paper's linear head; package
// linear fits a better one.
func TrainMLP(ctx context.Context, cfg MLPConfig, train, val features.Rows, classes int, opts TrainOptions) (posthoc.MLP, []Epoch, error) {
	cfg, err := cfg.WithDefaults()
	if err != nil {
		return nil, nil, err
	}
	if opts, err = opts.WithDefaults(); err != nil {
		return nil, nil, err
	}
	var m posthoc.MLP
	for in, left := train.D, cfg.Layers; left > 0; left-- {
		out := cfg.Hidden
		if left == 1 {
			out = classes
		}
		m = append(m, &posthoc.Linear{In: in, Out: out, Weights: make([]float64, out*in), Bias: make([]float64, out)})
		in = out
	}
	t := mlpOf[float32](m, opts.Batch)
	epochs, err := Fit(ctx, mlpTrainer{t}, train, val, classes, opts)
	if err != nil {
		return nil, epochs, err
	}
	for i, l := range t.layers {
		kernels.Convert(m[i].Weights, l.weights)
		kernels.Convert(m[i].Bias, l.bias)
	}
	return m, epochs, nil
}

// mlpTrainer is an MLP in training.
type mlpTrainer struct{ *mlp[float32] }

func (t mlpTrainer) Constants() []*float64 { return nil }

func (t mlpTrainer) Draw(rng Random) {
	for _, l := range t.layers {
		bound := 1 / math.Sqrt(float64(l.in))
		for _, array := range [][]float32{l.weights, l.bias} {
			for i := range array {
				array[i] = float32(bound * (2*rng.Float64() - 1))
			}
		}
	}
}

func (t mlpTrainer) Start(context.Context, []float32, int, features.Rows, Random) error { return nil }

// mlp is an MLP in training, with buffers to compute in.
type mlp[T kernels.Real] struct {
	arithmetic[T]
	layers []*dense[T]
}

type dense[T kernels.Real] struct {
	in, out           int
	weights, gWeights []T
	bias, gBias       []T
	x                 []T // [B, in], the layer's input (not owned)
	y, gY             []T // [B, out], after the maximum
}

func mlpOf[T kernels.Real](m posthoc.MLP, batch int) *mlp[T] {
	t := &mlp[T]{arithmetic: newArithmetic[T]()}
	for _, from := range m {
		vector := func(n int) []T { return make([]T, n) }
		l := &dense[T]{
			in: from.In, out: from.Out,
			weights: vector(len(from.Weights)), gWeights: vector(len(from.Weights)),
			bias: vector(from.Out), gBias: vector(from.Out),
			y: vector(batch * from.Out), gY: vector(batch * from.Out),
		}
		kernels.Convert(l.weights, from.Weights)
		kernels.Convert(l.bias, from.Bias)
		t.layers = append(t.layers, l)
	}
	return t
}

// Params lists all arrays that training changes and their gradients.
func (t *mlp[T]) Params() (params, gradients [][]T) {
	for _, l := range t.layers {
		params, gradients = append(params, l.weights, l.bias), append(gradients, l.gWeights, l.gBias)
	}
	return params, gradients
}

func (t *mlp[T]) last() *dense[T] { return t.layers[len(t.layers)-1] }

// Logits returns the logits [b, C] of the rows x [b, D].
func (t *mlp[T]) Logits(x []T, b int) []T {
	for _, l := range t.layers {
		l.x = x
		x = l.y[:b*l.out]
		for i := range b {
			copy(x[i*l.out:], l.bias)
		}
		t.NT(b, l.out, l.in, 1, l.x, l.weights, 1, x)
		if l == t.last() {
			break
		}
		for i, v := range x {
			x[i] = max(v, 0)
		}
	}
	return x
}

// Loss returns the mean loss of the rows of the last call of Logits.
func (t *mlp[T]) Loss(labels []int) float64 {
	return crossEntropy(t.last().y[:len(labels)*t.last().out], labels, t.last().out, nil)
}

// Step returns the loss and computes the gradients.
func (t *mlp[T]) Step(x []T, labels []int) float64 {
	b := len(labels)
	loss := crossEntropy(t.Logits(x, b), labels, t.last().out, t.last().gY)
	for at := len(t.layers) - 1; at >= 0; at-- {
		l := t.layers[at]
		t.TN(l.out, l.in, b, 1, l.gY, l.x, 0, l.gWeights)
		clear(l.gBias)
		for i := range b {
			for c, g := range l.gY[i*l.out : (i+1)*l.out] {
				l.gBias[c] += g
			}
		}
		if at == 0 {
			break
		}
		gX := t.layers[at-1].gY[:b*l.in]
		t.NN(b, l.in, l.out, 1, l.gY, l.weights, 0, gX)
		for i, v := range l.x[:b*l.in] {
			if v <= 0 {
				gX[i] = 0
			}
		}
	}
	return loss
}
