package posthoc

import (
	"context"
	"math"
	"slices"
)

var _ = declare[ODIN]("ODIN", method{
	name: "odin", reads: features, needs: network,
	fit: func(_ context.Context, in Input) (Scorer, error) { return &ODIN{Network: in.Network}, nil },
})

func (s *ODIN) fields(f *fields) {
	f.network("network", &s.Network)
	f.float("temperature", &s.Temperature)
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
	if s.Temperature == 0 {
		s.Temperature = 1000
	}
	if s.Epsilon == 0 {
		s.Epsilon = 0.0014
	}
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
