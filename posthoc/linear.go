package posthoc

import (
	"context"
	"fmt"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// Linear is a linear head: the logits of features x are W·x + b.
type Linear struct {
	In, Out int
	Weights []float64 // W [C, D]; do not change them after the first use
	Bias    []float64 // b [C]

	packed right
}

// NewLinear returns the head with the weights [C, D] and bias [C].
func NewLinear(weights, bias []float32) (*Linear, error) {
	c := len(bias)
	if c == 0 || len(weights) == 0 || len(weights)%c != 0 {
		return nil, fmt.Errorf("a linear head of %d weights and %d biases", len(weights), c)
	}
	h := &Linear{In: len(weights) / c, Out: c, Weights: make([]float64, len(weights)), Bias: make([]float64, c)}
	kernels.Convert(h.Weights, weights)
	kernels.Convert(h.Bias, bias)
	return h, nil
}

// need returns an error if the head is nil.
func (h *Linear) need() error {
	if h == nil {
		return fmt.Errorf("weights of a linear head: %w", ErrMissing)
	}
	return nil
}

// row returns w_c, the weights of a class.
func (h *Linear) row(c int) []float64 { return h.Weights[c*h.In : (c+1)*h.In] }

// Narrow rounds the weights of a large head, such as one of 768 features and 342
// classes, to float32. A head of one image takes the time of reading its weights.
func (h *Linear) Narrow() {
	if len(h.Weights) < large {
		return
	}
	for i, v := range h.Weights {
		h.Weights[i] = float64(float32(v))
	}
}

// Logits puts the logits of the rows x [n, D] into dst [n, C].
func (h *Linear) Logits(dst, x []float64) {
	h.packed.times(h.Out, h.In, x, h.Weights, dst)
	for i := range dst {
		dst[i] += h.Bias[i%h.Out]
	}
}

// energies puts the energies of the rows x [n, D] into dst [n].
func (h *Linear) energies(dst, x []float64) {
	z := make([]float64, len(dst)*h.Out)
	h.Logits(z, x)
	for i := range dst {
		dst[i] = energy(z[i*h.Out:(i+1)*h.Out], 1)
	}
}

// Network is a differentiable head, as [ODIN] needs it. Its methods serve any
// number of goroutines.
type Network interface {
	// Size returns how many features the network reads and how many logits it
	// gives.
	Size() (d, classes int)
	// Logits puts the logits of the rows x [n, D] into dst [n, C].
	Logits(dst, x []float64)
	// InputGradient puts the gradients by the rows x [n, D] into dst [n, D],
	// given those by their logits, g [n, C].
	InputGradient(dst, x, g []float64)
}

// Size returns D and C.
func (h *Linear) Size() (d, classes int) { return h.In, h.Out }

// InputGradient puts gᵀW into dst.
func (h *Linear) InputGradient(dst, _, g []float64) {
	linalg.NN(len(g)/h.Out, h.In, h.Out, g, h.Weights, dst)
}

// MLP is a softmax classifier of linear layers with ReLU between them. One layer is
// a linear head, the usual last layer of a backbone. With h₀ = x it computes
//
//	h_ℓ = max(W_ℓ·h_{ℓ−1} + b_ℓ, 0)
//
// and, in the last layer, the logits without the maximum. It does not change, so
// any number of goroutines may use it.
type MLP []*Linear

// OfFeatures returns the logits [n, C] of the features x [n, D]. It computes on all
// cores.
func (m MLP) OfFeatures(x []float32) []float64 {
	d, classes := m.Size()
	n := len(x) / d
	logits := make([]float64, n*classes)
	_ = parallel.Blocks(context.Background(), n, blockRows, func(from, to int) { // cannot fail
		rows, done := scratch((to - from) * d)
		defer done()
		kernels.Convert(rows, x[from*d:to*d])
		m.Logits(logits[from*classes:to*classes], rows)
	})
	return logits
}

// Size returns the inputs of the first layer and the outputs of the last.
func (m MLP) Size() (d, classes int) { return m[0].In, m[len(m)-1].Out }

// Logits puts the logits of the rows x [n, D] into dst [n, C].
func (m MLP) Logits(dst, x []float64) {
	inputs := m.inputs(x)
	m[len(m)-1].Logits(dst, inputs[len(m)-1])
}

// Hidden returns the inputs of the last layer for the rows x [n, D]: the features
// on which that layer is a linear head.
func (m MLP) Hidden(x []float64) []float64 { return m.inputs(x)[len(m)-1] }

// inputs returns the inputs of each layer.
func (m MLP) inputs(x []float64) [][]float64 {
	inputs := [][]float64{x}
	for _, l := range m[:len(m)-1] {
		y := make([]float64, len(x)/l.In*l.Out)
		l.Logits(y, x)
		for i, v := range y {
			y[i] = max(v, 0)
		}
		inputs, x = append(inputs, y), y
	}
	return inputs
}

// InputGradient puts the gradients by x into dst; that of max(v, 0) is 0 at 0.
func (m MLP) InputGradient(dst, x, g []float64) {
	inputs := m.inputs(x)
	for at := len(m) - 1; at > 0; at-- {
		l := m[at]
		below := make([]float64, len(inputs[at]))
		l.InputGradient(below, nil, g)
		for i, v := range inputs[at] {
			if v <= 0 {
				below[i] = 0
			}
		}
		g = below
	}
	m[0].InputGradient(dst, nil, g)
}
