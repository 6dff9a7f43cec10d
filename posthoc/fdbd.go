package posthoc

import (
	"context"

	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

var _ = declare[FDBD]("FDBD", method{
	name:  "fdbd",
	words: Words{"near to the borders between classes", "far from the borders between classes", "nearer to the borders between classes"},
	reads: featureRows | logitRows, needs: featureRows | lastLayer,
	memory: func(d, c float64) float64 { return c*c + c*d },
	fit:    func(ctx context.Context, in Input) (Scorer, error) { return FitFDBD(ctx, in.Train, in.LastLayer) },
})

func (s *FDBD) fields(f *fields) {
	f.int("classes", &s.Classes)
	f.vector("mean", &s.Mean, -1)
	f.matrix("distances", &s.Distances, s.Classes, s.Classes)
}

// FDBD is the distance to the decision boundaries, over that to the mean of the
// training features:
//
//	Σ_{c≠y} |z_c − z_y|/‖w_c − w_y‖ / ‖f − μ‖, y = argmax z
//
// Reads features and logits. The logits come from the linear head with the weights w.
// It is a sum, where the paper has a mean. Classes of equal weights have no
// boundary between them and are left out. Where the denominator is zero, as for
// features of zeros without a mean, the score is 0, the lowest there is:
// OpenOOD's is +Inf.
//
// Source: Liu and Qin, 2024 (OpenOOD: fDBDPostprocessor).
type FDBD struct {
	Classes   int
	Mean      []float64 // [D], μ; zeros to divide by ‖f‖
	Distances []float64 // [C, C], ‖w_c − w_y‖
}

// FitFDBD fits FDBD to the head, with the mean of the training features or, if
// data is nil, with zeros in its place.
func FitFDBD(ctx context.Context, data *Data, head *Linear) (*FDBD, error) {
	if err := head.need(); err != nil {
		return nil, err
	}
	s := &FDBD{Classes: head.Out, Mean: make([]float64, head.In), Distances: make([]float64, head.Out*head.Out)}
	if data != nil {
		mean, err := data.mean(ctx, head)
		if err != nil {
			return nil, err
		}
		s.Mean = mean
	}
	err := parallel.Blocks(ctx, head.Out, 1, func(c, _ int) {
		for y := range c {
			v := distance(head.row(c), head.row(y))
			s.Distances[c*head.Out+y], s.Distances[y*head.Out+c] = v, v
		}
	})
	return s, err
}

// Score implements [Scorer].
func (s *FDBD) Score(ctx context.Context, dst []float64, b Batch) error {
	c, d := s.Classes, len(s.Mean)
	if _, err := b.classes(len(dst), c); err != nil {
		return err
	}
	return eachFeatures(ctx, dst, b, d, false, func(scores, x []float64, at int) {
		for i := range scores {
			z := b.Logits[(at+i)*c : (at+i+1)*c]
			y := linalg.ArgMax(z)
			var sum float64
			for k, v := range z {
				sum += over(z[y]-v, s.Distances[y*c+k])
			}
			scores[i] = over(sum, distance(x[i*d:(i+1)*d], s.Mean))
		}
	})
}

func (s *FDBD) graph(g *graph) onnx.Value {
	inverse := make([]float64, len(s.Distances))
	for i, v := range s.Distances {
		inverse[i] = over(1, v)
	}
	sum := g.Dot(g.Op("Sub", g.Largest(g.Logits), g.Logits), g.ofPredicted(inverse))
	return g.Over(sum, g.Length(g.centred(g.Features, s.Mean)))
}
