package posthoc

import (
	"cmp"
	"context"
	"errors"
	"math"

	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

var _ = declare[NECO]("NECO", method{
	name:  "neco",
	words: Words{"features outside of the space in which the classes differ", "features in the space in which the classes differ", "with features more outside of the space in which the classes differ"},
	reads: featureRows | logitRows, needs: featureRows, memory: residualMemory,
	fit: func(ctx context.Context, in Input) (Scorer, error) { return FitNECO(ctx, in.Train, 0) },
})

func (s *NECO) fields(f *fields) {
	f.vector("mean", &s.Mean, -1)
	f.vector("deviation", &s.Deviation, len(s.Mean))
	f.matrix("axes", &s.Axes, -1, len(s.Mean))
}

// NECO is the share of the features' length that lies in the principal space of
// the training features, times the largest logit:
//
//	‖Px‖/‖x‖ · max_c z_c, x = (f − μ)/σ for each feature
//
// with the mean μ and the deviation σ (divisor N) of the training features, and
// the rows of P the principal axes of the standardised training features, the
// fewest that have a share of the variance. Reads features and logits. A feature
// that is the same in all training rows is divided by 1. Where f = μ, the score
// is 0, and where all logits are −Inf, it is −Inf. Negative logits, such as an
// MLRBFN's log-confidences, turn the meaning of the share around.
//
// Source: Ben Ammar et al., 2024, with the dimensions chosen as Müller and Hein,
// 2025, do (github.com/mueller-mp/maha-norm: evaluate_neco).
type NECO struct {
	Mean      []float64 // [D], μ
	Deviation []float64 // [D], σ
	Axes      []float64 // [R, D], P

	packed right
}

// FitNECO fits NECO with the fewest axes that have at least a share of the
// variance; 0 means 0.9.
func FitNECO(ctx context.Context, data *Data, share float64) (*NECO, error) {
	if err := data.need(featureRows); err != nil {
		return nil, err
	}
	sigma, m, err := data.total(ctx, false)
	if err != nil {
		return nil, err
	}
	s := &NECO{Mean: m.Mean, Deviation: make([]float64, data.D)}
	some := false
	for j, mu := range m.Mean {
		s.Deviation[j] = 1
		if v := sigma.At(j, j); varies(v, mu, data.N) {
			s.Deviation[j], some = math.Sqrt(v), true
		} else {
			for k := range data.D {
				sigma.SetSym(j, k, 0)
			}
		}
	}
	if !some {
		return nil, errors.New("the training features do not vary")
	}
	correlate(sigma, s.Deviation)
	s.Axes, _, err = principalAxes(ctx, sigma, cmp.Or(share, 0.9), data.D)
	return s, err
}

// correlate turns the covariance, in place, into that of features divided by
// their deviations.
func correlate(sigma *mat.SymDense, deviation []float64) {
	for i, a := range deviation {
		for j, b := range deviation[i:] {
			sigma.SetSym(i, i+j, sigma.At(i, i+j)/(a*b))
		}
	}
}

// Score implements [Scorer].
func (s *NECO) Score(ctx context.Context, dst []float64, b Batch) error {
	d := len(s.Mean)
	c, err := b.classes(len(dst), 0)
	if err != nil {
		return err
	}
	axes := len(s.Axes) / max(d, 1)
	return eachFeatures(ctx, dst, b, d, false, func(scores, x []float64, at int) {
		for i := range scores {
			row := x[i*d : (i+1)*d]
			for j, mu := range s.Mean {
				row[j] = (row[j] - mu) / s.Deviation[j]
			}
		}
		inside, done := scratch(len(scores) * axes)
		defer done()
		s.packed.times(axes, d, x, s.Axes, inside)
		for i := range scores {
			z := b.Logits[(at+i)*c : (at+i+1)*c]
			top := z[linalg.ArgMax(z)]
			if math.IsInf(top, -1) {
				scores[i] = top
				continue
			}
			scores[i] = over(norm(inside[i*axes:(i+1)*axes]), norm(x[i*d:(i+1)*d])) * top
		}
	})
}

func (s *NECO) graph(g *graph) onnx.Value {
	x := g.Op("Div", g.centred(g.Features, s.Mean), g.Vector(s.Deviation))
	share := g.Over(g.Length(g.Times(x, s.Axes, len(s.Mean))), g.Length(x))
	return g.Op("Mul", share, g.Largest(g.Logits))
}
