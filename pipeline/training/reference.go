package training

import (
	"context"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// reference returns what the parts of the score give the calibration images or,
// where none were set aside, the validation images; nil without either. The rows of
// raw are not conditioned.
func (t *Data) reference(ctx context.Context, raw *Data, d *detector.Detector) (*detector.Reference, error) {
	rows, of := t.samples(raw, d)
	return d.NewReference(ctx, of, rows)
}

// samples returns the features of some calibration images or, where none were set aside,
// validation images, and which of the two they are.
func (t *Data) samples(raw *Data, d *detector.Detector) (rows []float32, of string) {
	if len(t.sample) > 0 && len(d.Folds) == 0 {
		return t.sample, "calibration"
	}
	return raw.someValidation(detector.ReferenceImages), "validation"
}

// everyRow returns at most n rows of d features, evenly spread over all.
func everyRow(rows []float32, d, n int) []float32 {
	all := make([]int, len(rows)/d)
	for i := range all {
		all[i] = i
	}
	var some []float32
	for _, i := range features.Every(all, n) {
		some = append(some, rows[i*d:(i+1)*d]...)
	}
	return some
}
