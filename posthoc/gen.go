package posthoc

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

var _ = declare[GEN]("GEN", method{
	name:  "gen",
	words: Words{"between {A} and {B} for the linear head", "clearly of one class for the linear head", "less clearly of one class for the linear head (between {A} and {B})"},
	reads: logitRows, fit: plain(&GEN{})})

func (s *GEN) fields(f *fields) {
	f.notNegative("gamma", &s.Gamma)
	f.int("m", &s.M)
	f.refuse(s.M < 0, "m", "it is %d", s.M)
}

// GEN is the generalised entropy: −Σ p^γ (1−p)^γ over the M largest softmax
// probabilities p. Reads logits. Both logarithms are taken without
// cancellation, 1 − max p as the sum of the other terms, so that confident rows
// do not tie.
//
// Source: Liu et al., 2023 (OpenOOD: GENPostprocessor).
type GEN struct {
	Gamma float64 // γ; 0 means 0.1
	M     int     // 0 means 100; more than C means C
}

// Score implements [Scorer].
func (s GEN) Score(ctx context.Context, dst []float64, b Batch) error {
	s.Gamma, s.M = cmp.Or(s.Gamma, 0.1), cmp.Or(s.M, 100)
	return eachLogits(ctx, dst, b, s.row)
}

func (s GEN) row(z []float64) float64 {
	z = possible(z)
	top := linalg.ArgMax(z)
	others := math.Inf(-1) // log Σ of all but the top, relative to the top
	if rest := append(slices.Clone(z[:top]), z[top+1:]...); len(rest) > 0 {
		others, _ = logSumExp(rest, 1)
		others -= z[top]
	}
	all := math.Log1p(math.Exp(others))
	logP := make([]float64, len(z))
	for c, v := range z {
		logP[c] = v - z[top] - all
	}
	score := -math.Exp(s.Gamma * (logP[top] + others - all))
	logP = slices.Delete(logP, top, top+1)
	if s.M <= len(logP) {
		if s.M > 1 {
			linalg.KthLargest(logP, s.M-1)
		}
		logP = logP[:s.M-1]
		slices.SortFunc(logP, func(a, b float64) int { return cmp.Compare(b, a) })
	}
	for _, p := range logP {
		score -= math.Exp(s.Gamma * (p + math.Log1p(-math.Exp(p))))
	}
	return score
}

// graph computes 1−p of the largest p as the sum of all others, and p itself in the
// place of its logarithm: where p underflows its term would be below 10⁻³⁰.
func (s *GEN) graph(g *graph) onnx.Value {
	gamma, most := cmp.Or(s.Gamma, 0.1), cmp.Or(s.M, 100)
	first, others := make([]float64, g.Classes), make([]float64, g.Classes)
	for c := range others {
		others[c] = 1
	}
	first[0], others[0] = 1, 0
	descending, _ := g.TopK(g.logSoftmax(g.Logits), g.Classes)
	p := g.Op("Exp", descending)
	rest := g.Sum(g.Op("Mul", p, g.Vector(others)))
	rest = g.Op("Add", g.Op("Mul", rest, g.Vector(first)), g.Op("Mul", g.Op("Sub", g.Number(1), p), g.Vector(others)))
	products := g.Op("Mul", p, rest)
	if most < g.Classes {
		products = g.First(products, most)
	}
	return g.Neg(g.Sum(g.Op("Pow", products, g.Number(gamma))))
}
