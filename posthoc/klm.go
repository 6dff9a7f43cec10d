package posthoc

import (
	"context"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

var _ = declare[KLM]("KLM", method{
	name: "klm", reads: logits, needs: logits | validation,
	memory: func(_, c int) int64 { return matrices(2, c, c) },
	fit:    func(ctx context.Context, in Input) (Scorer, error) { return FitKLM(ctx, in.Val) },
})

func (s *KLM) fields(f *fields) {
	f.int("classes", &s.Classes)
	f.matrix("logmeans", &s.LogMeans, s.Classes, s.Classes)
}

// KLM is KL matching: −min_c KL(p ‖ q_c), p = softmax(z) and q_c the mean
// softmax of the fit rows that are predicted as c. Reads logits. All
// probabilities are stored as logarithms, so that none underflows.
//
// Source: Hendrycks et al., 2022 (OpenOOD: KLMatchingPostprocessor).
type KLM struct {
	Classes  int
	LogMeans []float64 // [C, C], log q; the one-hot log for a class that no row is predicted as
}

// FitKLM fits KLM on the logits of data. OpenOOD takes validation rows. A class that
// is never predicted has a one-hot q_c.
func FitKLM(ctx context.Context, data *Data) (*KLM, error) {
	if err := data.need(logits); err != nil {
		return nil, err
	}
	c := data.Classes
	largest := slices.Repeat([]float64{math.Inf(-1)}, c*c)
	sums, counts := make([]float64, c*c), make([]float64, c)
	err := data.blocks(ctx, func(from, to int) error {
		for z := range slices.Chunk(data.Logits(from, to), c) {
			z = possible(z)
			sum, top := logSumExp(z, 1)
			counts[top]++
			for j, v := range z {
				at := top*c + j
				if logP := v - sum; logP > largest[at] {
					sums[at] = sums[at]*math.Exp(largest[at]-logP) + 1
					largest[at] = logP
				} else if logP > math.Inf(-1) {
					sums[at] += math.Exp(logP - largest[at])
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s := &KLM{Classes: c, LogMeans: largest}
	for i := range s.LogMeans {
		if counts[i/c] > 0 {
			s.LogMeans[i] += math.Log(sums[i] / counts[i/c])
		} else if i/c == i%c {
			s.LogMeans[i] = 0
		}
	}
	return s, nil
}

// Score implements [Scorer].
func (s *KLM) Score(ctx context.Context, dst []float64, b Batch) error {
	return eachLogits(ctx, dst, b, s.Classes, func(z []float64) float64 {
		z = possible(z)
		p := softmaxRows(z, s.Classes)
		sum, _ := logSumExp(z, 1)
		best := math.Inf(-1)
		for q := range slices.Chunk(s.LogMeans, s.Classes) {
			var divergence float64
			for j, v := range z {
				if p[j] != 0 {
					divergence += p[j] * (v - sum - q[j])
				}
			}
			best = max(best, -divergence)
		}
		return best
	})
}

// graph computes −min_c KL(p ‖ q_c) as max_c Σ_j p_j·log q_cj − Σ_j p_j·log p_j.
func (s *KLM) graph(g *graph) (onnx.Value, error) {
	logMeans := slices.Clone(s.LogMeans)
	for i, v := range logMeans {
		logMeans[i] = max(v, -math.MaxFloat64) // not 0·−Inf
	}
	logP := g.logSoftmax(g.Logits)
	p := g.Op("Exp", logP)
	return g.Op("Sub", g.Largest(g.Times(p, logMeans, s.Classes)), g.Dot(p, logP)), nil
}
