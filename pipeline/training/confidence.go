package training

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// confidenceRows is how many validation rows the two numbers of fitConfidence are
// fitted on, at most.
const confidenceRows = 50000

// fitConfidence fits, on the validation rows, what makes a probability of the
// heads' confidence. It is nil without any, and for one class. The data are not
// conditioned.
func (t *Data) fitConfidence(ctx context.Context, d *detector.Detector) (*detector.Platt, error) {
	if len(t.Classes) == 1 || len(t.validation.Index) == 0 {
		return nil, nil
	}
	own := *d
	own.Scoring, own.Folds, own.Confidence = nil, nil, nil
	var logPhi []float64
	var right []bool
	err := t.eachValidation(ctx, &own, features.Every(t.validation.Index, confidenceRows), func(y int, v detector.Verdict) {
		logPhi = append(logPhi, math.Log(v.Confidence))
		right = append(right, v.Label == y)
	})
	if err != nil {
		return nil, err
	}
	return detector.FitPlatt(logPhi, right), nil
}

// calibrateByClass sets thresholds by class where the options want them, by the
// verdicts on the calibration rows.
func (t *Data) calibrateByClass(d *detector.Detector) {
	if !t.Options.PerClass || math.IsInf(d.Threshold, -1) {
		return
	}
	var scores []float64
	var labels []int
	for _, v := range t.calibrated {
		scores, labels = append(scores, v.Score), append(labels, v.Label)
	}
	few := d.CalibrateByClass(scores, labels)
	if len(few) == 0 {
		return
	}
	var names []string
	for _, c := range few[:min(len(few), 5)] {
		names = append(names, t.Classes[c])
	}
	if n := len(few) - len(names); n > 0 {
		names = append(names, fmt.Sprintf("%d more", n))
	}
	with := "the threshold of all classes"
	if n := len(d.ByClass[len(d.Classes)]); detector.Rank(n, d.TargetTPR) > 0 {
		with = fmt.Sprintf("one threshold, set by their %d calibration images together", n)
	}
	t.Warnings = append(t.Warnings, fmt.Sprintf("%d of %d classes have fewer than the %d calibration images that a threshold of their own needs, and share %s: %s",
		len(few), len(d.Classes), detector.ScoresNeeded(d.TargetTPR), with, strings.Join(names, ", ")))
}
