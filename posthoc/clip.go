package posthoc

import (
	"cmp"
	"context"
	"fmt"
	"math"

	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

var _ = declare[Clip]("Clip",
	method{
		name:  "react",
		words: Words{"little evidence for any class without unusually large features", "the usual evidence for a class without unusually large features", "with less evidence for any class, without unusually large features,"},
		reads: featureRows, needs: featureRows | validation | lastLayer, fit: func(ctx context.Context, in Input) (Scorer, error) {
			return FitReAct(ctx, in.Val, in.LastLayer, 0)
		}},
	method{
		name:  "vra",
		words: Words{"little evidence for any class without unusually large and small features", "the usual evidence for a class without unusually large and small features", "with less evidence for any class, without unusually large and small features,"},
		reads: featureRows, needs: featureRows | validation | lastLayer, fit: func(ctx context.Context, in Input) (Scorer, error) {
			return FitVRA(ctx, in.Val, in.LastLayer, 0, 0)
		}})

func (s *Clip) fields(f *fields) {
	f.layer("head", &s.Head)
	f.float("low", &s.Low)
	f.float("high", &s.High)
}

// Clip is the energy of a linear head on features clipped to [Low, High]:
// log Σ_c exp(W clip(f) + b)_c. Reads features. With Low = −Inf it is ReAct,
// with both VRA.
//
// Source: Sun et al., 2021, ReAct (OpenOOD: ReactPostprocessor); Xu et al.,
// 2023, VRA (VRAPostprocessor, which raises low values to the lower limit where
// the paper sets them to 0).
type Clip struct {
	Head      *Linear
	Low, High float64
}

// FitReAct clips above the percentile of all features of the data; 0 means 90.
func FitReAct(ctx context.Context, data *Data, head *Linear, percentile float64) (*Clip, error) {
	s, err := fitClip(ctx, data, head, cmp.Or(percentile, 90))
	if err != nil {
		return nil, err
	}
	s.Low = math.Inf(-1)
	return s, nil
}

// FitVRA clips to the two percentiles of all features of the data; 0 means 60
// and 95.
func FitVRA(ctx context.Context, data *Data, head *Linear, low, high float64) (*Clip, error) {
	return fitClip(ctx, data, head, cmp.Or(low, 60), cmp.Or(high, 95))
}

// fitClip sets Low to the first percentile and High to the last.
func fitClip(ctx context.Context, data *Data, head *Linear, percentiles ...float64) (*Clip, error) {
	if err := data.fits(head); err != nil {
		return nil, err
	}
	q := make([]float64, len(percentiles))
	for i, p := range percentiles {
		if !(p >= 0 && p <= 100) {
			return nil, fmt.Errorf("percentile %g: it lies in [0, 100]", p)
		}
		q[i] = p / 100
	}
	at, err := data.quantiles(ctx, q...)
	if err != nil {
		return nil, err
	}
	return &Clip{Head: head, Low: at[0], High: at[len(at)-1]}, nil
}

// Score implements [Scorer].
func (s *Clip) Score(ctx context.Context, dst []float64, b Batch) error {
	return alone(ctx, s, dst, b)
}

func (s *Clip) join(t *together, dst []float64, _ Batch) error {
	return shape{d: s.Head.In, how: clip, low: s.Low, high: s.High}.join(t, s.Head, dst)
}

func (s *Clip) graph(g *graph) onnx.Value {
	x := g.Op("Min", g.Features, g.Number(s.High))
	if !math.IsInf(s.Low, -1) {
		x = g.Op("Max", x, g.Number(s.Low))
	}
	return g.energy(g.linear(s.Head, x), 1)
}
