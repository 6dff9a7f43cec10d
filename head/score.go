package head

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// HeadScore says how in-distribution a row is, from the squared distance m from the
// nearest class mean and from the l_c of the last layer:
//
//	s = (−m − m₁)/σ₁ + (G − m₂)/σ₂,  G = −Σ_c p_c^γ (1−p_c)^γ
//
// with p = softmax(l) and γ = [DecisionPower], over the [DecisionClasses]
// largest p. The first term finds out-of-distribution rows far from all classes;
// the second, the generalised entropy of Liu et al. (GEN, CVPR 2023), those between
// classes. Both are standardised with the mean and the standard deviation of
// in-distribution rows.
type HeadScore struct {
	Nearness, Decision Scale // of −m and of G
}

// The parameters of G of a [HeadScore].
const (
	DecisionPower   = 0.1 // γ
	DecisionClasses = 100 // how many p it sums over at most
)

func (s *HeadScore) valid() bool { return s.Nearness.Valid() && s.Decision.Valid() }

// of returns the score of a row with the distance m and the decision G.
func (s *HeadScore) of(m, g float64) float64 {
	return s.Nearness.Of(-m) + s.Decision.Of(g)
}

// fitScore returns the score standardised on conditioned in-distribution rows.
func (n *ResidualNetwork) fitScore(ctx context.Context, data features.Rows) (*HeadScore, error) {
	rows, classes := features.Spread(data.Index, residualMostRows), n.Classes()
	nearness, decisions := make([]float64, len(rows)), make([]float64, len(rows))
	err := parallel.Ranges(ctx, len(rows), BatchRows, func() func(from, to int) error {
		e, z := n.evaluator(), make([]float64, BatchRows*data.D)
		return func(from, to int) error {
			for i, r := range rows[from:to] {
				kernels.Convert(z[i*data.D:], data.Row(r))
			}
			logits := e.forward(z[:(to-from)*data.D])
			for i := range to - from {
				nearness[from+i], decisions[from+i] = -e.distance[i], decision(logits[i*classes:(i+1)*classes])
			}
			return nil
		}
	})
	if err != nil {
		return nil, err
	}
	score := &HeadScore{ScaleOf(nearness), ScaleOf(decisions)}
	if !score.valid() {
		return nil, fmt.Errorf("%w: the score of the validation rows is %+v", ErrDiverged, *score)
	}
	return score, nil
}

// decision returns G of l. It computes 1−p as the sum of the other p, because
// rounding would lose it for p near 1.
func decision(l []float64) float64 {
	top, largest := slices.Max(l), linalg.ArgMax(l)
	var others float64 // Σ e^{l−top} without the largest
	for c, v := range l {
		if c != largest {
			others += math.Exp(v - top)
		}
	}
	p := l
	if len(l) > DecisionClasses {
		p = slices.Clone(l)
		linalg.KthLargest(p, DecisionClasses)
		p = p[:DecisionClasses]
		slices.Sort(p)
		largest = DecisionClasses - 1
	}
	sum := 1 + others
	var g float64
	for c, v := range p {
		e := math.Exp(v - top)
		rest := sum - e
		if c == largest {
			rest = others
		}
		g -= math.Pow(e/sum*rest/sum, DecisionPower)
	}
	return g
}

// Scale standardises a score with its mean and its standard deviation, so that
// different scores can be added.
type Scale struct{ Mean, Deviation float64 }

// ScaleOf returns the mean and the standard deviation (ddof 0) of v. Values
// that are all equal have the deviation 1.
func ScaleOf(v []float64) Scale {
	var s Scale
	for _, a := range v {
		s.Mean += a / float64(len(v))
	}
	for _, a := range v {
		s.Deviation += (a - s.Mean) * (a - s.Mean) / float64(len(v))
	}
	if s.Deviation = math.Sqrt(s.Deviation); !(s.Deviation > 1e-12*math.Abs(s.Mean)) {
		s.Deviation = 1
	}
	return s
}

// Of returns (v − mean) / deviation.
func (s Scale) Of(v float64) float64 { return (v - s.Mean) / s.Deviation }

// Valid reports whether both are finite and the deviation is positive.
func (s Scale) Valid() bool {
	return !notFinite(s.Mean) && !notFinite(s.Deviation) && s.Deviation > 0
}
