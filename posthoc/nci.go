package posthoc

import (
	"cmp"
	"context"

	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

var _ = declare[NCI]("NCI", method{
	name:  "nci",
	words: Words{"features that point to no class", "features that point to a class", "with features that point less to a class"},
	reads: featureRows | logitRows, needs: featureRows | lastLayer,
	memory: func(d, c float64) float64 { return c * d },
	fit:    func(ctx context.Context, in Input) (Scorer, error) { return FitNCI(ctx, in.Train, in.LastLayer, 0) },
})

func (s *NCI) fields(f *fields) {
	f.layer("head", &s.Head)
	f.vector("mean", &s.Mean, s.Head.In)
	f.float("alpha", &s.Alpha)
}

// NCI is the neural-collapse score: ⟨w_y, f − μ⟩/‖f − μ‖₂ + α‖f‖₁ with y the
// class that the logits predict and μ the mean of the training features. Reads
// features and logits. The first term is 0 where f = μ.
//
// Source: Liu and Qin, 2025 (OpenOOD: NCIPostprocessor).
type NCI struct {
	Head  *Linear
	Mean  []float64 // [D]
	Alpha float64   // α; 0 means 0.0001
}

// FitNCI fits NCI with the mean of the training features.
func FitNCI(ctx context.Context, data *Data, head *Linear, alpha float64) (*NCI, error) {
	mean, err := data.mean(ctx, head)
	if err != nil {
		return nil, err
	}
	return &NCI{Head: head, Mean: mean, Alpha: cmp.Or(alpha, 0.0001)}, nil
}

// Score implements [Scorer].
func (s *NCI) Score(ctx context.Context, dst []float64, b Batch) error {
	d, c := s.Head.Size()
	if _, err := b.classes(len(dst), c); err != nil {
		return err
	}
	return eachFeatures(ctx, dst, b, d, false, func(scores, x []float64, at int) {
		for i := range scores {
			f, w := x[i*d:(i+1)*d], s.Head.row(linalg.ArgMax(b.Logits[(at+i)*c:(at+i+1)*c]))
			length := l1(f)
			subtract(f, s.Mean)
			scores[i] = over(dot(w, f), norm(f)) + s.Alpha*length
		}
	})
}

func (s *NCI) graph(g *graph) onnx.Value {
	x := g.centred(g.Features, s.Mean)
	likeness := g.Over(g.Dot(x, g.ofPredicted(s.Head.Weights)), g.Length(x))
	return g.Op("Add", likeness, g.Op("Mul", g.absolute(g.Features), g.Number(s.Alpha)))
}
