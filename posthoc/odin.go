package posthoc

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

var _ = declare[ODIN]("ODIN", method{
	name:  "odin",
	words: Words{"between {A} and {B} for the linear head", "clearly of one class for the linear head", "less clearly of one class for the linear head, after a step towards that class,"},
	reads: featureRows, needs: network,
	fit: func(_ context.Context, in Input) (Scorer, error) { return &ODIN{Network: in.Network}, nil },
})

func (s *ODIN) fields(f *fields) {
	f.network("network", &s.Network)
	f.notNegative("temperature", &s.Temperature)
	f.float("epsilon", &s.Epsilon)
}

// ODIN is the largest softmax probability at a high temperature after a small
// step of the input towards the predicted class:
//
//	max softmax(z(x̃)/T), x̃ = x − ε·sign(∂CE(z(x)/T, argmax z)/∂x), sign(0) = +1
//
// Here the input x is the features, as in the paper that this project implements:
// z is a linear head or an MLP on them. Reads features.
//
// Source: Liang et al., 2018 (OpenOOD: ODINPostprocessor with input_std 1).
type ODIN struct {
	Network     Network
	Temperature float64 // T; 0 means 1000
	Epsilon     float64 // ε; 0 means 0.0014
}

// Score implements [Scorer].
func (s ODIN) Score(ctx context.Context, dst []float64, b Batch) error {
	s.Temperature, s.Epsilon = cmp.Or(s.Temperature, 1000), cmp.Or(s.Epsilon, 0.0014)
	d, c := s.Network.Size()
	return eachFeatures(ctx, dst, b, d, false, func(scores, x []float64, _ int) {
		z := make([]float64, len(scores)*c)
		s.Network.Logits(z, x)
		for row := range slices.Chunk(z, c) {
			crossEntropyGradient(row, s.Temperature)
		}
		gradient, done := scratch(len(x))
		defer done()
		s.Network.InputGradient(gradient, x, z)
		for i, g := range gradient {
			if g >= 0 {
				x[i] -= s.Epsilon
			} else {
				x[i] += s.Epsilon
			}
		}
		s.Network.Logits(z, x)
		for i := range scores {
			scores[i] = maxSoftmax(z[i*c:(i+1)*c], s.Temperature)
		}
	})
}

// crossEntropyGradient replaces logits z by (softmax(z/t) − onehot(argmax z)):
// the gradient of the cross-entropy without the factor 1/t. The entry of the
// largest is minus the sum of the others, which avoids cancellation.
func crossEntropyGradient(z []float64, t float64) {
	sum, top := logSumExp(z, t)
	var others float64
	for c, v := range z {
		if c != top {
			z[c] = math.Exp(v/t - sum)
			others += z[c]
		}
	}
	z[top] = -others
}

func (s *ODIN) graph(g *graph) onnx.Value {
	t, epsilon := g.Number(cmp.Or(s.Temperature, 1000)), cmp.Or(s.Epsilon, 0.0014)
	layers, err := layersOf(s.Network)
	if err != nil {
		g.fail(err)
		return ""
	}
	_, classes := s.Network.Size()
	inputs, z := g.inputs(layers, g.Features)
	numbers := make([]int64, classes)
	for c := range numbers {
		numbers[c] = int64(c)
	}
	y := g.Op("Reshape", g.ArgMax(z), g.Int64s(-1, 1))
	top := g.Cast(g.Op("Equal", y, g.Int64s(numbers...)), onnx.Double) // one-hot
	others := g.Op("Mul", g.softmax(g.Op("Div", z, t)), g.Op("Sub", g.Number(1), top))
	gradient := g.Op("Sub", others, g.Op("Mul", g.Sum(others), top))
	for at := len(layers) - 1; at >= 0; at-- {
		l := layers[at]
		gradient = g.Op("MatMul", gradient, g.Doubles(l.Weights, l.Out, l.In))
		if at > 0 {
			gradient = g.Op("Mul", gradient, g.Positive(inputs[at]))
		}
	}
	sign := g.Cast(g.AtLeast(gradient, g.Number(0)), onnx.Double)
	step := g.Op("Mul", g.Op("Sub", g.Number(1), g.Op("Add", sign, sign)), g.Number(epsilon))
	_, z = g.inputs(layers, g.Op("Add", g.Features, step))
	z = g.Op("Div", g.Op("Sub", z, g.Largest(z)), t)
	return g.Op("Div", g.Number(1), g.Sum(g.Op("Exp", z)))
}

// inputs adds the inputs of each layer for rows x, and the logits.
func (g *graph) inputs(layers MLP, x onnx.Value) (inputs []onnx.Value, logits onnx.Value) {
	for i, l := range layers {
		if i > 0 {
			x = g.Op("Max", x, g.Number(0))
		}
		inputs = append(inputs, x)
		x = g.linear(l, x)
	}
	return inputs, x
}
