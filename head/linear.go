package head

import (
	"context"
	"math"
)

// Linear is a softmax classifier of one layer: what most backbones end in, and
// what the MLRBFN is compared with. Its logits are W·x + b.
type Linear struct {
	In, Classes int
	Weights     []float32 // [C, D]
	Bias        []float32 // [C]
}

// TrainLinear trains a linear head by cross-entropy, in the same loop as Train:
// Adam on shuffled mini-batches, the learning rate halved on a plateau. Weights
// and bias begin uniform in ±1/√D, as torch.nn.Linear has them.
func TrainLinear(ctx context.Context, train, val Data, classes int, opts TrainOptions) (*Linear, []Epoch, error) {
	opts, err := opts.WithDefaults()
	if err != nil {
		return nil, nil, err
	}
	rng := newRand(opts.Seed)
	m := &Linear{In: train.D, Classes: classes, Weights: make([]float32, classes*train.D), Bias: make([]float32, classes)}
	bound := 1 / math.Sqrt(float64(train.D))
	for _, array := range [][]float32{m.Weights, m.Bias} {
		for i := range array {
			array[i] = float32(bound * (2*rng.Float64() - 1))
		}
	}
	epochs, err := fit(ctx, m.trainer(opts.Batch), train, val, classes, opts, rng)
	if err != nil {
		return nil, epochs, err
	}
	return m, epochs, nil
}

// Logits returns W·x + b [n, C] for the rows x [n, D].
func (m *Linear) Logits(x []float32) []float64 {
	n := len(x) / m.In
	out := make([]float64, n*m.Classes)
	t := m.trainer(predictBatch)
	for from := 0; from < n; from += predictBatch {
		b := min(predictBatch, n-from)
		convert(out[from*m.Classes:], t.logits(x[from*m.In:(from+b)*m.In], b))
	}
	return out
}

// linearTrainer is a Linear with room to compute in.
type linearTrainer struct {
	arithmetic[float32]
	*Linear
	gWeights, gBias []float32
	out, gOut       []float32 // [B, C]
}

func (m *Linear) trainer(batch int) *linearTrainer {
	return &linearTrainer{
		arithmetic: arithmeticOf[float32](), Linear: m,
		gWeights: make([]float32, len(m.Weights)), gBias: make([]float32, len(m.Bias)),
		out: make([]float32, batch*m.Classes), gOut: make([]float32, batch*m.Classes),
	}
}

func (t *linearTrainer) params() []param[float32] {
	return []param[float32]{{t.Weights, t.gWeights}, {t.Bias, t.gBias}}
}

func (t *linearTrainer) start(context.Context, []float32, int, draws) error { return nil }

func (t *linearTrainer) logits(x []float32, b int) []float32 {
	out := t.out[:b*t.Classes]
	for i := range b {
		copy(out[i*t.Classes:], t.Bias)
	}
	t.NT(b, t.Classes, t.In, 1, x, t.Weights, 1, out)
	return out
}

func (t *linearTrainer) loss(logits []float32, labels []int) float64 {
	return crossEntropy(logits, labels, t.Classes, nil)
}

func (t *linearTrainer) step(x []float32, labels []int) float64 {
	b := len(labels)
	loss := crossEntropy(t.logits(x, b), labels, t.Classes, t.gOut)
	t.TN(t.Classes, t.In, b, 1, t.gOut, x, 0, t.gWeights)
	clear(t.gBias)
	for i := range b {
		for c, g := range t.gOut[i*t.Classes : (i+1)*t.Classes] {
			t.gBias[c] += g
		}
	}
	return loss
}
