package posthoc

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

var _ = declare[DICE]("DICE", method{
	name:  "dice",
	words: Words{"little evidence for any class in its most important features", "the usual evidence for a class in its most important features", "with less evidence for any class in its most important features"},
	reads: featureRows, needs: featureRows | lastLayer,
	memory: func(d, c float64) float64 { return 4 * c * d },
	fit:    func(ctx context.Context, in Input) (Scorer, error) { return FitDICE(ctx, in.Train, in.LastLayer, 0) },
})

func (s *DICE) fields(f *fields) { f.layer("head", &s.Head) }

// DICE is the energy of a sparse linear head: only the weights that contribute most
// on the training features remain, the others are 0. Reads features.
//
// Source: Sun and Li, 2022 (OpenOOD: DICEPostprocessor).
type DICE struct {
	Head *Linear // with the weights that remain
}

// FitDICE sets w_cd to 0 unless mean(f)_d·w_cd is above its percentile (linearly
// interpolated) over all c and d; 0 means 90.
func FitDICE(ctx context.Context, data *Data, head *Linear, percentile float64) (*DICE, error) {
	mean, err := data.mean(ctx, head)
	if err != nil {
		return nil, err
	}
	percentile = cmp.Or(percentile, 90)
	if !(percentile >= 0 && percentile <= 100) {
		return nil, fmt.Errorf("percentile %g: it lies in [0, 100]", percentile)
	}
	contributions := make([]float64, len(head.Weights))
	for i, w := range head.Weights {
		contributions[i] = w * mean[i%head.In]
	}
	sorted := slices.Clone(contributions)
	slices.Sort(sorted)
	threshold := linalg.Quantile(sorted, percentile/100)
	sparse := &Linear{In: head.In, Out: head.Out, Weights: slices.Clone(head.Weights), Bias: head.Bias}
	for i, v := range contributions {
		if !(v > threshold) {
			sparse.Weights[i] = 0
		}
	}
	return &DICE{sparse}, nil
}

// Score implements [Scorer].
func (s *DICE) Score(ctx context.Context, dst []float64, b Batch) error {
	return alone(ctx, s, dst, b)
}

func (s *DICE) join(t *together, dst []float64, _ Batch) error {
	return shape{d: s.Head.In, how: none}.join(t, s.Head, dst)
}

func (s *DICE) graph(g *graph) onnx.Value {
	return g.energy(g.linear(s.Head, g.Features), 1)
}
