package training

import (
	"context"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// This file takes over from Options.Keep what would be chosen again with nearly the
// same result where few images were added: the kind of conditioning with its
// shrinkage, the penalties of linear classifiers, and the weights of the parts of the
// joined score. Most of the time of a training goes into these choices.

// mostAdded is how many rows, and classes, may be added, as a share of those that
// there were, for choices to be taken over.
const mostAdded = 0.5

// reuses reports whether choices are taken over.
func (t *Data) reuses() bool {
	old := t.Options.Keep
	if old == nil || t.kept == nil || t.kept.rows == len(t.Labels) || t.Options.Calibration.Folds > 0 || t.Options.Score != detector.JoinedScore || t.Options.NoHoldOut || len(t.Options.WithoutParts) > 0 {
		return false
	}
	if old.Scoring == nil || old.Scoring.Name != detector.JoinedScore || old.Assessment == nil || len(old.Assessment.Curve) == 0 || len(old.CalibrationScores) == 0 {
		return false
	}
	if len(old.Source.Layers) > 0 && !slices.Equal(old.Source.Layers, t.layers) {
		return false
	}
	if t.outliers != nil || slices.Contains(old.PartNames(), detector.OutliersPart) {
		return false // the other parts do not say whether it still helps
	}
	if c := old.Heads[0].Conditioning; c != nil && c.Kind != head.None && len(c.Matrix) > 0 && c.In() != c.Out() {
		return false // it was fitted in little memory
	}
	few := func(now, before int) bool { return float64(now-before) <= mostAdded*float64(before) }
	return few(len(t.Labels), t.kept.rows) && few(len(t.Classes), len(old.Classes))
}

// keptWeights returns the weights of the parts of Options.Keep: its file has each
// deviation on the validation rows divided by the weight. It returns nil if the rows do
// not have the mean that the file has.
func (t *Data) keptWeights(ctx context.Context) (map[string]float64, error) {
	old := t.Options.Keep
	x := t.keptValidation(scaleRows)
	said, b := old.Own(x), old.BatchFor(old.Scoring, x)
	weights := map[string]float64{}
	for _, p := range old.Scoring.Parts {
		scores, err := p.Scores(ctx, b, said)
		if err != nil {
			return nil, err
		}
		scale := head.ScaleOf(scores)
		if !(math.Abs(scale.Mean-p.Scale.Mean) <= 0.1*scale.Deviation) {
			return nil, nil
		}
		weights[p.Name] = scale.Deviation / p.Scale.Deviation
	}
	return weights, ctx.Err()
}

// keptValidation returns at most so many of the rows that Options.Keep was validated on.
func (t *Data) keptValidation(most int) []float32 {
	if t.Held != nil {
		return t.someValidation(t.Options.Keep, most)
	}
	return rowsFor(t.Options.Keep, t.Table, features.Every(t.Options.Keep.Splits["validation"], most))
}

// mostAgain is how many known classes are held out again.
const mostAgain = 2

// reassess returns the assessment of Options.Keep with what the images that were added
// change. A new class was unknown to that detector, whose verdicts on its images assess
// it. The known classes that most of these images were given are left out again, and so
// are known classes that have more images now. The other classes keep their values.
func (h *holdOut) reassess(ctx context.Context, weights map[string]float64) (*detector.Assessment, error) {
	t, old := h.t, h.t.Options.Keep
	a, err := h.newAssessment(ctx)
	if err != nil {
		return nil, err
	}
	a.FalseAlarms = slices.DeleteFunc(a.FalseAlarms, func(s float64) bool { return !slices.Contains(old.Assessment.FalseAlarms, s) })
	for name, c := range old.Assessment.Classes {
		curve := make([]float64, len(a.FalseAlarms))
		for i, share := range a.FalseAlarms {
			curve[i], _ = c.CaughtAt(old.Assessment, share)
		}
		c.Curve = curve
		c.Kept = true
		a.Classes[name] = c
	}
	var again []int
	for class, name := range t.Classes {
		var added []int
		for row := t.kept.rows; row < len(t.Labels); row++ {
			if t.Labels[row] == int64(class) {
				added = append(added, row)
			}
		}
		switch {
		case len(added) == 0:
			continue
		case slices.Contains(old.Classes, name):
			again = append(again, class)
			continue
		}
		verdicts, err := old.Verdicts(ctx, rowsFor(old, t.Table, features.Spread(added, foldRows)))
		if err != nil {
			return nil, err
		}
		scores, taken := make([]float64, len(verdicts)), map[int]int{}
		for i, v := range verdicts {
			scores[i] = v.Score
			taken[slices.Index(t.Classes, v.Class)]++
		}
		c := h.assessed(a, metrics.AUROC(old.CalibrationScores, scores), old.CalibrationScores, scores, taken)
		a.Classes[name] = c
		if nearest := slices.Index(t.Classes, c.TakenFor); !slices.Contains(again, nearest) {
			again = append(again, nearest)
		}
	}
	again = again[:min(len(again), mostAgain)]
	var folds []*fold
	for i, class := range again {
		folds = append(folds, h.newFold(i, class))
	}
	if err := h.fitAll(ctx, "class hold-out", folds); err != nil {
		return nil, err
	}
	each := slices.Repeat([]map[string]float64{weights}, len(folds))
	h.judge(a, folds, folds, each)
	if err := h.correct(ctx, a, folds, each); err != nil {
		return nil, err
	}
	t.average(a)
	return a, nil
}
