package detector

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// openTraining opens the features that the detector was trained on: those in named,
// or else those that it names where they are found unchanged. Then it is no error if
// there are none, but a note.
func openTraining(ctx context.Context, d *Detector, named []string) (_ *TrainingData, note string, err error) {
	data, err := d.openTraining(ctx, named, nil)
	if err == nil || ctx.Err() != nil || len(named) > 0 {
		return data, "", err
	}
	if about, ok := errors.AsType[*options.Error](err); ok {
		err = about.Err
	}
	return nil, "the training features are missing (‹Features›), so that no training images are shown: " + err.Error(), nil
}

// reference returns that of the detector. Older ones have none; then it is that of
// the calibration rows among the training features, if these give the calibration
// scores, or of a score of one part the calibration scores themselves. It is nil
// where nothing is known.
func (e *Explainer) reference(ctx context.Context) (*Reference, error) {
	d := e.detector
	switch {
	case d.Reference != nil:
		return d.Reference, nil
	case len(d.Folds) == 0 && len(d.PartNames()) == 1 && len(d.CalibrationScores) > 0:
		return &Reference{Of: "calibration", Parts: [][]float64{d.CalibrationScores}}, nil
	case e.bank == nil || len(d.Folds) > 0 || len(d.Source.Layers) > 0:
		return nil, nil
	}
	rows := d.Splits["calibration"]
	var x []float32
	for _, row := range features.Every(rows, ReferenceImages) {
		x = append(x, e.data.Row(row)...)
	}
	if len(x) == 0 {
		return nil, nil
	}
	verdicts, err := d.VerdictsContext(ctx, x)
	if err != nil {
		return nil, err
	}
	for _, v := range verdicts {
		const rounding = 1e-6
		at, _ := slices.BinarySearch(d.CalibrationScores, v.Score-rounding*(1+math.Abs(v.Score)))
		if at == len(d.CalibrationScores) || d.CalibrationScores[at] > v.Score+rounding*(1+math.Abs(v.Score)) {
			return nil, nil // other rows, by now
		}
	}
	return d.NewReference(ctx, "calibration", x)
}
