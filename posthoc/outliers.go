package posthoc

import (
	"context"

	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

var _ = declare[Outliers]("Outliers")

func (s *Outliers) fields(f *fields) {
	f.layer("head", &s.Head)
	f.refuse(s.Head.Out < 2, "head", "it has %d classes, want one beside that of the outliers", s.Head.Out)
}

// Outliers is the log-odds, by a linear head that has out-of-distribution images that
// are known as one class more, that an image is not like these:
//
//	log Σ_{c<C} exp z_c − z_C, z = W·f + b
//
// Reads features. It is outlier exposure on features that stay as they are: where there
// are no outliers like an image, it says little of it.
//
// Source: Hendrycks, Mazeika and Dietterich, 2019, whose outliers train the backbone.
type Outliers struct {
	Head *Linear // the last class is that of the outliers
}

// Score implements [Scorer].
func (s *Outliers) Score(ctx context.Context, dst []float64, b Batch) error {
	out := s.Head.Out
	return eachFeatures(ctx, dst, b, s.Head.In, false, func(scores, x []float64, _ int) {
		z, done := scratch(len(scores) * out)
		defer done()
		s.Head.Logits(z, x)
		for i := range scores {
			row := z[i*out : (i+1)*out]
			scores[i] = energy(row[:out-1], 1) - row[out-1]
		}
	})
}

func (s *Outliers) graph(g *graph) onnx.Value {
	c := s.Head.Out - 1
	known := &Linear{In: s.Head.In, Out: c, Weights: s.Head.Weights[:c*s.Head.In], Bias: s.Head.Bias[:c]}
	outlier := &Linear{In: s.Head.In, Out: 1, Weights: s.Head.row(c), Bias: s.Head.Bias[c:]}
	return g.Op("Sub", g.energy(g.linear(known, g.Features), 1), g.linear(outlier, g.Features))
}
