package training

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// fitScoring fits the score to judge by; a nil Scoring is the heads' own. The data
// are not conditioned.
func (t *Data) fitScoring(ctx context.Context, own *detector.Detector) (*Joined, error) {
	switch t.Options.Score {
	case detector.HeadScore:
		return &Joined{}, nil
	case detector.JoinedScore:
		return t.join(ctx, own, !t.Options.NoHoldOut)
	}
	parts, _, err := detector.ScoreParts(t.Options.Score)
	if err != nil {
		return nil, err
	}
	c := &Classifier{}
	if slices.ContainsFunc(parts, func(p string) bool { return p != detector.HeadPart && !posthoc.Headless(p) }) {
		if c, err = t.FitLinear(ctx, t.Options.Seeds[0]); err != nil {
			return nil, err
		}
	}
	s, err := t.fitOn(ctx, t.Options.Score, c, own, t.Options.Memory)
	if err != nil {
		return nil, err
	}
	if c.Network != nil {
		s.Classifier = c.Network[0]
	}
	for _, p := range s.Parts {
		posthoc.Detach(p.Score)
	}
	return &Joined{Scoring: s}, nil
}

// fitOn fits a score on the rows that heads are trained on and puts the parts of
// an ensemble on one scale by the validation rows. The data are not conditioned.
func (t *Data) fitOn(ctx context.Context, name string, c *Classifier, own *detector.Detector, memory int64) (*detector.Scoring, error) {
	f := Fitting{Network: c.Network, Memory: memory, Train: c.Data(t.Table, t.split.Train, t.Labels, len(t.Classes))}
	return f.Scoring(ctx, name, t.scale(c, own))
}

// scale returns the function that puts the parts of an ensemble on one scale: the scores of
// the validation rows. The data are not conditioned.
func (t *Data) scale(c *Classifier, own *detector.Detector) Scaler {
	return func(ctx context.Context, p detector.Part) (head.Scale, error) {
		rows := features.Every(t.validation.Index, scaleRows)
		if len(rows) == 0 {
			return head.Scale{}, errNoScale
		}
		b := posthoc.Batch{Features: t.judging().Gather(rows)}
		if p.Score == nil {
			return head.ScaleOf(p.Own(own.Own(b.Features))), ctx.Err()
		}
		scores := make([]float64, len(rows))
		b.Features = c.Features(b.Features)
		if !posthoc.Headless(p.Name) {
			b.Logits = c.Logits(t.judging(), rows)
		}
		err := p.Score.Score(ctx, scores, b)
		return head.ScaleOf(scores), err
	}
}

// scaleRows is how many rows are enough for a mean and a deviation.
const scaleRows = 10000

// Scaler finds the scale of a part from in-distribution rows that it was not
// fitted on.
type Scaler func(context.Context, detector.Part) (head.Scale, error)

// Fitting holds the rows and the network that post-hoc scores are fitted on.
type Fitting struct {
	Train, Val *posthoc.Data // Val may be nil
	Network    posthoc.MLP   // of the classifier; nil where its weights are not known
	Memory     int64
}

// Scoring fits what a name stands for. The parts of an ensemble are put on one
// scale; a score alone stays as it is.
func (f Fitting) Scoring(ctx context.Context, name string, scale Scaler) (*detector.Scoring, error) {
	names, ensemble, err := detector.ScoreParts(name)
	if err != nil {
		return nil, err
	}
	s := &detector.Scoring{Name: name}
	for _, part := range names {
		p := detector.Part{Name: part, Scale: detector.Unscaled}
		if part != detector.HeadPart {
			if p.Score, err = f.fit(ctx, part); err != nil {
				return nil, err
			}
		}
		if ensemble {
			if p.Scale, err = scale(ctx, p); err == nil && !p.Scale.Valid() {
				err = errors.New("it is not finite and has no scale")
			}
			if err != nil {
				return nil, fmt.Errorf("score %s of the validation images: %w", part, err)
			}
			if part == detector.HeadPart {
				p.Scale.Deviation /= detector.OwnWeight
			}
		}
		s.Parts = append(s.Parts, p)
	}
	return s, nil
}

// fit fits a post-hoc score. One that needs a linear head and cannot have it on
// the features, as the classifier has hidden layers, reads what the last layer
// reads.
func (f Fitting) fit(ctx context.Context, name string) (posthoc.Scorer, error) {
	in := posthoc.Input{Train: f.Train, Val: f.Val, Memory: f.Memory}
	switch len(f.Network) {
	case 0:
		return posthoc.Fit(ctx, name, in)
	case 1:
		in.LastLayer = f.Network[0]
		return posthoc.Fit(ctx, name, in)
	}
	in.Network = f.Network
	s, err := posthoc.Fit(ctx, name, in)
	if !errors.Is(err, posthoc.ErrMissing) {
		return s, err
	}
	in.Train, in.Val, in.LastLayer = f.hidden(f.Train), f.hidden(f.Val), f.Network[len(f.Network)-1]
	if s, err = posthoc.Fit(ctx, name, in); err != nil {
		return nil, err
	}
	return &onHidden{s, f.Network}, nil
}

// hidden returns the same rows with the features that the last layer reads.
func (f Fitting) hidden(data *posthoc.Data) *posthoc.Data {
	if data == nil {
		return nil
	}
	return &posthoc.Data{
		N: data.N, D: f.Network[len(f.Network)-1].In, Classes: data.Classes, Labels: data.Labels, Logits: data.Logits,
		Features: func(from, to int) []float32 { return lastHidden(f.Network, data.Features(from, to)) },
	}
}

// onHidden is a score of what the last layer of a network reads.
type onHidden struct {
	score   posthoc.Scorer
	network posthoc.MLP
}

// Score implements posthoc.Scorer.
func (s *onHidden) Score(ctx context.Context, dst []float64, b posthoc.Batch) error {
	b.Features = lastHidden(s.network, b.Features)
	return s.score.Score(ctx, dst, b)
}

func lastHidden(network posthoc.MLP, x []float32) []float32 {
	return kernels.Converted[float32](network.Hidden(kernels.Converted[float64](x)))
}

// CheckMemory reports that a score, or a part of an ensemble, cannot be fitted on
// d features in c classes for want of memory. It is asked before anything is
// trained.
func CheckMemory(name string, d, c int, memory int64) error {
	parts, _, err := detector.ScoreParts(name)
	if err != nil {
		return err
	}
	for _, part := range parts {
		if part == detector.HeadPart {
			continue
		}
		if err := posthoc.CheckMemory(part, d, c, memory); err != nil {
			return err
		}
	}
	return nil
}

const (
	farRows   = 500 // made-up rows
	farAway   = 4.  // standard deviations of each feature that are added at random
	leastSeen = 0.5 // share of them that a score must flag without a word
)

// warnOfFar notes that a score that was chosen flags few rows that are unlike all training
// rows: some of these plus noise of four times the deviation of each feature. Scores that read
// nothing but logits take such rows for clear cases. They need a guard, as the default score has.
func (t *Data) warnOfFar(ctx context.Context, r *Result, d *detector.Detector) error {
	if t.Options.Score == detector.JoinedScore || t.Options.Score == detector.HeadScore || math.IsInf(d.Threshold, -1) {
		return nil
	}
	rows := features.Every(t.Rows.Labelled().Index, farRows)
	x := slices.Clone(t.Table.Gather(rows)) // which may be the rows themselves
	rng := rand.New(rand.NewPCG(t.Options.Seeds[0], 0x666172))
	for j := range t.D {
		var sum, squares float64
		for i := range rows {
			v := float64(x[i*t.D+j])
			sum, squares = sum+v, squares+v*v
		}
		n := float64(len(rows))
		deviation := math.Sqrt(max(0, squares/n-sum/n*sum/n))
		for i := range rows {
			x[i*t.D+j] += float32(farAway * deviation * rng.NormFloat64())
		}
	}
	verdicts, err := d.Verdicts(ctx, x)
	if err != nil {
		return err
	}
	flagged := 0
	for _, v := range verdicts {
		if v.OOD {
			flagged++
		}
	}
	if share := float64(flagged) / float64(len(verdicts)); share < leastSeen {
		r.Warnings = append(r.Warnings, fmt.Sprintf(
			"the score %s has no guard against far images: of made-up images that are unlike all training images it flags %.0f%%; the default score has one, and evaluate with a set of far images says what is true of yours", t.Options.Score, 100*share))
	}
	return nil
}
