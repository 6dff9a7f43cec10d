package posthoc

import (
	"context"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/floats"

	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

const standardisedKind = "Standardised"

var _ = declare[Standardised](standardisedKind)

func (s *Standardised) fields(f *fields) {
	f.vector("mean", &s.Mean, -1)
	f.vector("deviation", &s.Deviation, len(s.Mean))
	k, inner, found := kindOf(s.Of)
	if f.find == nil && !found {
		f.err = fmt.Errorf("a %T cannot be stored", s.Of)
		return
	}
	text(f, "kind", &k.name)
	if f.loading() {
		own, err := emptyOf(k.name)
		if f.refuse(err != nil || k.name == standardisedKind, "kind", "a score of the kind %q is not known", k.name); f.err != nil {
			return
		}
		inner, s.Of = own, own
	}
	if f.err == nil {
		f.within("score", inner.fields)
	}
}

// Standardised is another score of standardised features, (f − μ)/σ for each
// feature, with the mean μ and the deviation σ (divisor N) of the training rows. A
// feature that is the same in all training rows is divided by 1. Reads features,
// and logits if the other score does. Scores that mix features, such as ReAct's
// one limit for all of them, gain where features differ in scale.
type Standardised struct {
	Mean, Deviation []float64 // [D]
	Of              Scorer
}

// FitStandardised fits the score called name on standardised features. The
// classifier of the input reads features as they are.
func FitStandardised(ctx context.Context, name string, in Input) (*Standardised, error) {
	s := &Standardised{}
	var err error
	if s.Mean, s.Deviation, err = in.Train.deviations(ctx); err != nil {
		return nil, err
	}
	in.Train, in.Val = s.data(in.Train), s.data(in.Val)
	if h := in.LastLayer; h != nil {
		// W·f + b = (W·σ)·(f − μ)/σ + (b + W·μ)
		own := &Linear{In: h.In, Out: h.Out, Bias: slices.Clone(h.Bias)}
		for c := range h.Out {
			own.Bias[c] += floats.Dot(h.row(c), s.Mean)
			for j, w := range h.row(c) {
				own.Weights = append(own.Weights, w*s.Deviation[j])
			}
		}
		own.Narrow()
		in.LastLayer, in.Network = own, own
	}
	s.Of, err = Fit(ctx, name, in)
	return s, err
}

// deviations returns the mean and the deviation of each feature.
func (data *Data) deviations(ctx context.Context) (mean, deviation []float64, err error) {
	if err := data.need(featureRows); err != nil {
		return nil, nil, err
	}
	m, err := data.means(ctx)
	if err != nil {
		return nil, nil, err
	}
	deviation = make([]float64, data.D)
	err = data.blocks(ctx, func(from, to int) error {
		x := data.Features(from, to)
		// Each core adds up some of the columns, in the order of the rows.
		return parallel.Blocks(ctx, data.D, 64, func(first, last int) {
			for row := range slices.Chunk(x, data.D) {
				for j := first; j < last; j++ {
					v := float64(row[j]) - m.Mean[j]
					deviation[j] += v * v / float64(data.N)
				}
			}
		})
	})
	for j, v := range deviation {
		deviation[j] = math.Sqrt(v)
		if !varies(v, m.Mean[j], data.N) {
			deviation[j] = 1
		}
	}
	return m.Mean, deviation, err
}

// data returns the rows of other data, standardised; nil for nil.
func (s *Standardised) data(other *Data) *Data {
	if other == nil {
		return nil
	}
	return &Data{
		N: other.N, D: other.D, Classes: other.Classes, Labels: other.Labels, Logits: other.Logits,
		Features: func(from, to int) []float32 { return s.of(other.Features(from, to)) },
	}
}

// of returns rows standardised.
func (s *Standardised) of(x []float32) []float32 {
	out, d := make([]float32, len(x)), len(s.Mean)
	for at := 0; at+d <= len(x); at += d {
		for j, v := range x[at : at+d] {
			out[at+j] = float32((float64(v) - s.Mean[j]) / s.Deviation[j])
		}
	}
	return out
}

// Score implements [Scorer].
func (s *Standardised) Score(ctx context.Context, dst []float64, b Batch) error {
	return alone(ctx, s, dst, b)
}

func (s *Standardised) join(t *together, dst []float64, b Batch) error {
	if err := b.dim(len(dst), len(s.Mean)); err != nil {
		return err
	}
	var key any = s
	if len(s.Mean) > 0 {
		key = [2]*float64{&s.Mean[0], &s.Deviation[0]}
	}
	w := workOn[standardising](t, key)
	w.by = s
	if head, vim, how := s.energy(); head != nil {
		w.energies = append(w.energies, energyOf{head, vim, how, dst})
	} else {
		w.scores, w.dst, w.logits = append(w.scores, s.Of), append(w.dst, dst), append(w.logits, b.Logits)
	}
	return nil
}

// energy returns the head of a score that is an energy of changed features, and how
// it changes them; for a ViM also that. The head is nil for another score.
func (s *Standardised) energy() (*Linear, *ViM, shape) {
	switch of := s.Of.(type) {
	case *Clip:
		return of.Head, nil, shape{d: of.Head.In, how: clip, low: of.Low, high: of.High}
	case *ViM:
		return of.Head, of, shape{d: of.Head.In, how: none}
	}
	return nil, nil, shape{}
}

// standardising computes scores that standardise features in the same way: the rows
// are standardised once, and the weights of a head are read once for all energies.
type standardising struct {
	by       *Standardised
	energies []energyOf
	scores   []Scorer // the others
	dst      [][]float64
	logits   [][]float64
}

type energyOf struct {
	head *Linear
	vim  *ViM // nil for a Clip
	how  shape
	dst  []float64
}

func (w *standardising) run(ctx context.Context, n int, b Batch) error {
	b.Features = w.by.of(b.Features)
	for i, s := range w.scores {
		b.Logits = w.logits[i]
		if err := s.Score(ctx, w.dst[i], b); err != nil {
			return err
		}
	}
	for rest := w.energies; len(rest) > 0; {
		var same, others []energyOf
		for _, e := range rest {
			if e.head == rest[0].head {
				same = append(same, e)
			} else {
				others = append(others, e)
			}
		}
		rest = others
		if err := energies(ctx, n, b, same); err != nil {
			return err
		}
	}
	return nil
}

// energies computes energies of one head's logits.
func energies(ctx context.Context, n int, b Batch, all []energyOf) error {
	head := all[0].head
	d, classes := head.In, head.Out
	return eachFeatures(ctx, all[0].dst[:n], b, d, false, func(scores, x []float64, at int) {
		rows := len(scores)
		changed, done := scratch(len(all) * len(x))
		defer done()
		z, done := scratch(len(all) * rows * classes)
		defer done()
		for i, e := range all {
			part := changed[i*len(x) : (i+1)*len(x)]
			copy(part, x)
			e.how.change(part)
		}
		head.Logits(z, changed)
		for i, e := range all {
			for row := range rows {
				e.dst[at+row] = energy(z[(i*rows+row)*classes:][:classes], 1)
			}
			if e.vim != nil {
				length, done := scratch(rows)
				e.vim.Residual.score(length, changed[i*len(x):(i+1)*len(x)])
				for row, v := range length {
					e.dst[at+row] += e.vim.Alpha * v
				}
				done()
			}
		}
	})
}

// Share makes equal arrays of standardised scores the same ones, which ScoreAll then
// reads once. They must not change afterwards.
func Share(scores []Scorer) {
	var known []*Standardised
	for _, score := range scores {
		s, ok := score.(*Standardised)
		if !ok {
			continue
		}
		for _, other := range known {
			if !slices.Equal(s.Mean, other.Mean) || !slices.Equal(s.Deviation, other.Deviation) {
				continue
			}
			s.Mean, s.Deviation = other.Mean, other.Deviation
			head, _, _ := s.energy()
			if same, _, _ := other.energy(); head != nil && same != nil && head != same &&
				head.In == same.In && slices.Equal(head.Weights, same.Weights) && slices.Equal(head.Bias, same.Bias) {
				switch of := s.Of.(type) {
				case *Clip:
					of.Head = same
				case *ViM:
					of.Head = same
				}
			}
		}
		known = append(known, s)
	}
}

// graph rounds features to float32, as of does.
func (s *Standardised) graph(g *graph) onnx.Value {
	x := g.Op("Div", g.centred(g.Features, s.Mean), g.Vector(s.Deviation))
	inner := *g
	inner.Features = g.Cast(g.Cast(x, onnx.Float), onnx.Double)
	v := inner.score(s.Of)
	g.err = inner.err
	return v
}
