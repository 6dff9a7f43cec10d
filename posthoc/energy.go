package posthoc

import (
	"cmp"
	"context"

	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

var (
	_ = declare[MaxLogit]("MaxLogit", method{
		name:  "mls",
		words: Words{"little evidence for any class", "the usual evidence for a class", "with less evidence for any class"},
		reads: logitRows, fit: plain(&MaxLogit{})})
	_ = declare[Energy]("Energy", method{
		name:  "energy",
		words: Words{"little evidence for any class", "the usual evidence for a class", "with less evidence for any class"},
		reads: logitRows, fit: plain(&Energy{})})
)

// MaxLogit is the largest logit (MLS): max_c z_c. Reads logits.
//
// Source: Hendrycks et al., 2022 (OpenOOD: MaxLogitPostprocessor).
type MaxLogit struct{}

// Score implements [Scorer].
func (MaxLogit) Score(ctx context.Context, dst []float64, b Batch) error {
	return eachLogits(ctx, dst, b, func(z []float64) float64 { return z[linalg.ArgMax(z)] })
}

func (*MaxLogit) fields(*fields) {}

// Energy is the negative free energy: T·log Σ_c exp(z_c/T). Reads logits.
//
// Source: Liu et al., 2020 (OpenOOD: EBOPostprocessor).
type Energy struct {
	Temperature float64 // T > 0; 0 means 1
}

// Score implements [Scorer].
func (s Energy) Score(ctx context.Context, dst []float64, b Batch) error {
	t := cmp.Or(s.Temperature, 1)
	return eachLogits(ctx, dst, b, func(z []float64) float64 { return energy(z, t) })
}

func (s *Energy) fields(f *fields) { f.notNegative("temperature", &s.Temperature) }

func energy(z []float64, t float64) float64 {
	sum, _ := logSumExp(z, t)
	return t * sum
}

func (*MaxLogit) graph(g *graph) onnx.Value { return g.Largest(g.Logits) }

func (s *Energy) graph(g *graph) onnx.Value {
	return g.energy(g.Logits, cmp.Or(s.Temperature, 1))
}
