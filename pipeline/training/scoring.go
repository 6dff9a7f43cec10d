package training

import (
	"context"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
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
