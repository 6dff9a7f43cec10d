package head

import (
	"context"
	"fmt"
	"math"
	"slices"
)

// Score says how in-distribution a row is from an open head's m, the squared
// distance from the nearest class mean, and its l_c:
//
//	s = (−m − m₁)/σ₁ + (G − m₂)/σ₂,  G = −Σ_c p_c^γ (1−p_c)^γ
//
// with p = softmax(l) and γ = [DecisionPower], over the [DecisionClasses]
// largest p. The first part tells strangers that are far from all classes; the
// second, the generalised entropy of Liu et al. (GEN, CVPR 2023), those that lie
// between classes. Means and standard deviations of in-distribution rows put the
// two on one scale.
type Score struct {
	Nearness, Decision Scale // of −m and of G
}

// What G of a [Score] is made of.
const (
	DecisionPower   = 0.1 // γ
	DecisionClasses = 100 // how many p it sums over at most
)

// Scale is the mean and the standard deviation of a number.
type Scale struct{ Mean, Deviation float64 }

// Of returns (v − mean) / deviation.
func (s Scale) Of(v float64) float64 { return (v - s.Mean) / s.Deviation }

// Valid tells whether both are numbers and the deviation is positive.
func (s Scale) Valid() bool { return !notNumber(s.Mean) && !notNumber(s.Deviation) && s.Deviation > 0 }

func (s *Score) valid() bool { return s.Nearness.Valid() && s.Decision.Valid() }

// of returns the score of a row.
func (s *Score) of(m float64, l []float64) float64 {
	return s.Nearness.Of(-m) + s.Decision.Of(decision(l))
}

// fitScore returns the score that conditioned in-distribution rows scale.
func (m *MLRBFN) fitScore(ctx context.Context, data Data) (*Score, error) {
	rows, classes := spread(data.Rows), m.Classes()
	nearness, decisions := make([]float64, len(rows)), make([]float64, len(rows))
	err := share(ctx, len(rows), predictBatch, func() func(from, to int) error {
		p, x := m.NewPredictor(), make([]float32, predictBatch*data.D)
		return func(from, to int) error {
			for i, r := range rows[from:to] {
				copy(x[i*data.D:], data.X[r*data.D:(r+1)*data.D])
			}
			logits := p.forward(x[:(to-from)*data.D], to-from)
			for i := range to - from {
				nearness[from+i], decisions[from+i] = -p.distance[i], decision(logits[i*classes:(i+1)*classes])
			}
			return nil
		}
	})
	if err != nil {
		return nil, err
	}
	score := &Score{ScaleOf(nearness), ScaleOf(decisions)}
	if !score.valid() {
		return nil, fmt.Errorf("%w: the score of the validation rows is %+v", ErrDiverged, *score)
	}
	return score, nil
}

// ScaleOf returns the mean and the standard deviation (ddof 0) of v. Values
// that do not differ have the deviation 1.
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

// decision returns G of l. Each 1−p is the sum of the other p, as it would be
// lost in rounding where p is all but 1.
func decision(l []float64) float64 {
	top, largest := slices.Max(l), argmax(l)
	var others float64 // Σ e^{l−top} but for the largest
	for c, v := range l {
		if c != largest {
			others += math.Exp(v - top)
		}
	}
	p := l
	if len(l) > DecisionClasses {
		p = slices.Clone(l)
		slices.Sort(p)
		p = p[len(p)-DecisionClasses:]
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
