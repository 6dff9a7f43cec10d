package posthoc

import (
	"context"
	"fmt"
	"math"
	"slices"
)

// shaping is a score by the energy of a head's logits on features that were
// changed.
type shaping interface{ shaping() (*Linear, shape) }

// shape says how features are changed; equal ones change them in the same way.
type shape struct {
	d          int   // features
	how        Shape // an ASH's, or none or clip
	percentile float64
	low, high  float64 // of clip
}

const (
	none Shape = "none"
	clip Shape = "clip"
)

// shaped is scores with the same shape.
type shaped struct {
	heads []*Linear
	dst   [][]float64
}

// run changes the features of n rows and scores them by all heads.
func (s *shaped) run(ctx context.Context, how shape, n int, b Batch) error {
	return eachFeatures(ctx, s.dst[0][:n], b, how.d, false, func(scores, x []float64, at int) {
		for f := range slices.Chunk(x, how.d) {
			how.change(f)
		}
		for i, head := range s.heads {
			z := make([]float64, len(scores)*head.Out)
			head.Logits(z, x)
			for row := range scores {
				s.dst[i][at+row] = energy(z[row*head.Out:(row+1)*head.Out], 1)
			}
		}
	})
}

func (s shape) change(f []float64) {
	switch s.how {
	case none:
	case clip:
		for j, v := range f {
			f[j] = min(max(v, s.low), s.high)
		}
	default:
		s.prune(f)
	}
}

// Clip is the energy of a linear head on features clipped to [Low, High]:
// log Σ_c exp(W clip(f) + b)_c. Reads features. With Low = −Inf it is ReAct,
// with both VRA.
//
// Source: Sun et al., 2021, ReAct (OpenOOD: ReactPostprocessor); Xu et al.,
// 2023, VRA (VRAPostprocessor, which raises low values to the lower limit where
// the paper sets them to 0).
type Clip struct {
	Head      *Linear
	Low, High float64
}

// FitReAct clips above the percentile of all features of the data; 0 means 90.
func FitReAct(ctx context.Context, data *Data, head *Linear, percentile float64) (*Clip, error) {
	s, err := fitClip(ctx, data, head, orDefault(percentile, 90))
	if err != nil {
		return nil, err
	}
	s.Low = math.Inf(-1)
	return s, nil
}

// FitVRA clips to the two percentiles of all features of the data; 0 means 60
// and 95.
func FitVRA(ctx context.Context, data *Data, head *Linear, low, high float64) (*Clip, error) {
	return fitClip(ctx, data, head, orDefault(low, 60), orDefault(high, 95))
}

// fitClip puts the first percentile into Low and the last into High.
func fitClip(ctx context.Context, data *Data, head *Linear, percentiles ...float64) (*Clip, error) {
	if err := data.fits(head); err != nil {
		return nil, err
	}
	q := make([]float64, len(percentiles))
	for i, p := range percentiles {
		if !(p >= 0 && p <= 100) {
			return nil, fmt.Errorf("percentile %g: it lies in [0, 100]", p)
		}
		q[i] = p / 100
	}
	at, err := data.quantiles(ctx, q...)
	if err != nil {
		return nil, err
	}
	return &Clip{Head: head, Low: at[0], High: at[len(at)-1]}, nil
}

func orDefault(v, byDefault float64) float64 {
	if v == 0 {
		return byDefault
	}
	return v
}

// Score implements [Score].
func (s *Clip) Score(ctx context.Context, dst []float64, b Batch) error {
	return alone(ctx, s, dst, b)
}

func (s *Clip) shaping() (*Linear, shape) {
	return s.Head, shape{d: s.Head.In, how: clip, low: s.Low, high: s.High}
}

// Shape says what [ASH] does to features f, of which it looks at the k largest.
type Shape string

const (
	ASHB  Shape = "ash-b" // the k largest become Σf/k, the rest 0
	ASHP  Shape = "ash-p" // the rest become 0
	ASHS  Shape = "ash-s" // the rest become 0, the k largest grow by exp(Σf/Σ of them)
	Scale Shape = "scale" // all grow by that factor
)

// ASH is the energy of a linear head on features f of which the small ones are
// pruned: log Σ_c exp(Wf̃ + b)_c. Reads features. Of D features the
// k = D − round(D·percentile/100) largest (half to even, at least 1) are those
// that Shape names.
//
// ASHS and Scale expect features that are not negative, as ReLU gives them.
// Where the k largest do not add up to more than 0, as those of features of
// zeros, their factor is 1 (OpenOOD: NaN).
//
// Source: Djurisic et al., 2023, ASH (OpenOOD: ASHPostprocessor, which runs
// ASHB); Xu et al., 2024, SCALE (ScalePostprocessor).
type ASH struct {
	Head       *Linear
	Shape      Shape   // "" means ASHP
	Percentile float64 // 0 means OpenOOD's default: 85 of Scale, else 90
}

// Score implements [Score].
func (s ASH) Score(ctx context.Context, dst []float64, b Batch) error { return alone(ctx, s, dst, b) }

func (s ASH) shaping() (*Linear, shape) {
	percentile := 90.
	if s.Shape == Scale {
		percentile = 85
	}
	return s.Head, shape{d: s.Head.In, how: s.Shape, percentile: orDefault(s.Percentile, percentile)}
}

// prune does to features what ASH says.
func (s shape) prune(f []float64) {
	k := max(s.d-int(math.RoundToEven(float64(s.d)*s.percentile/100)), 1)
	room, done := scratch(s.d)
	defer done()
	copy(room, f)
	least := kthLargest(room, k)
	var sum, kept float64
	ties := k // how many features equal to the least are among the k largest
	for _, v := range f {
		sum += v
		if v > least {
			kept += v
			ties--
		}
	}
	kept += float64(ties) * least
	factor := 1.
	if kept > 0 && (s.how == ASHS || s.how == Scale) {
		factor = math.Exp(min(sum/kept, maxExp))
	}
	for j, v := range f {
		keep := v > least
		if v == least && ties > 0 {
			keep = true
			ties--
		}
		switch {
		case s.how == Scale || keep && s.how != ASHB:
			f[j] *= factor
		case keep:
			f[j] = sum / float64(k)
		default:
			f[j] = 0
		}
	}
}

// maxExp keeps exp and what it is multiplied with in float64's range.
const maxExp = 300

// DICE is the energy of a linear head of which the weights that contribute most
// on the training features are kept, the rest set to 0. Reads features.
//
// Source: Sun and Li, 2022 (OpenOOD: DICEPostprocessor).
type DICE struct {
	Head *Linear // with the weights that are left
}

// FitDICE keeps w_cd where mean(f)_d·w_cd is above its percentile (linearly
// interpolated) over all c and d; 0 means 90.
func FitDICE(ctx context.Context, data *Data, head *Linear, percentile float64) (*DICE, error) {
	mean, err := data.mean(ctx, head)
	if err != nil {
		return nil, err
	}
	percentile = orDefault(percentile, 90)
	if !(percentile >= 0 && percentile <= 100) {
		return nil, fmt.Errorf("percentile %g: it lies in [0, 100]", percentile)
	}
	contributions := make([]float64, len(head.Weights))
	for i, w := range head.Weights {
		contributions[i] = w * mean[i%head.In]
	}
	sorted := slices.Clone(contributions)
	slices.Sort(sorted)
	at := percentile / 100 * float64(len(sorted)-1)
	below := int(at)
	above := min(below+1, len(sorted)-1)
	threshold := sorted[below] + (sorted[above]-sorted[below])*(at-float64(below))
	kept := &Linear{In: head.In, Out: head.Out, Weights: slices.Clone(head.Weights), Bias: head.Bias}
	for i, v := range contributions {
		if !(v > threshold) {
			kept.Weights[i] = 0
		}
	}
	return &DICE{kept}, nil
}

// Score implements [Score].
func (s *DICE) Score(ctx context.Context, dst []float64, b Batch) error {
	return alone(ctx, s, dst, b)
}

func (s *DICE) shaping() (*Linear, shape) { return s.Head, shape{d: s.Head.In, how: none} }
