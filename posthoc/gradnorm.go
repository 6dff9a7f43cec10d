package posthoc

import (
	"context"
	"math"

	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

var _ = declare[GradNorm]("GradNorm", method{
	name:  "gradnorm",
	words: Words{"small features, or no clear class", "large features and a clear class", "with smaller features or a less clear class"},
	reads: featureRows, needs: lastLayer,
	fit: func(_ context.Context, in Input) (Scorer, error) { return &GradNorm{in.LastLayer}, nil },
})

func (s *GradNorm) fields(f *fields) { f.layer("head", &s.Head) }

// GradNorm is the L1 norm of the gradient of Σ_c −log softmax(Wf + b)_c by the
// weights of a linear head, in closed form: ‖f‖₁·Σ_c |C·p_c − 1|. Reads
// features.
//
// Source: Huang et al., 2021 (OpenOOD: GradNormPostprocessor, whose targets are
// ones where the paper's are 1/C: a factor C).
type GradNorm struct{ Head *Linear }

// Score implements [Scorer].
func (s GradNorm) Score(ctx context.Context, dst []float64, b Batch) error {
	d, c := s.Head.Size()
	return eachFeatures(ctx, dst, b, d, false, func(scores, x []float64, _ int) {
		logits := make([]float64, len(scores)*c)
		s.Head.Logits(logits, x)
		for i := range scores {
			z := logits[i*c : (i+1)*c]
			all, _ := logSumExp(z, 1)
			var sum float64
			for _, v := range z {
				sum += math.Abs(float64(c)*math.Exp(v-all) - 1)
			}
			scores[i] = l1(x[i*d:(i+1)*d]) * sum
		}
	})
}

func (s *GradNorm) graph(g *graph) onnx.Value {
	p := g.softmax(g.linear(s.Head, g.Features))
	gradient := g.Op("Sub", g.Op("Mul", p, g.Number(float64(s.Head.Out))), g.Number(1))
	return g.Op("Mul", g.absolute(g.Features), g.absolute(gradient))
}
