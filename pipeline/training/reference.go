package training

import (
	"context"
	"slices"

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

// probe is what the training set says of the features that a detector reads.
func (t *Data) probe(d *detector.Detector) *features.Probe {
	whole := t.Sets[0].Probe
	if whole == nil || len(d.Source.Layers) > 0 || len(t.Sets[0].Layers) == 0 {
		return whole
	}
	own := *whole
	own.Features = nil
	for row := range slices.Chunk(whole.Features, len(whole.Features)/whole.Images) {
		own.Features = append(own.Features, row[:t.D]...)
	}
	return &own
}

// samples returns the features of some calibration images or, where none were set aside,
// validation images, and which of the two they are.
func (t *Data) samples(raw *Data, d *detector.Detector) (rows []float32, of string) {
	if len(t.sample) > 0 && len(d.Folds) == 0 {
		return t.sample, "calibration"
	}
	return raw.someValidation(d, detector.ReferenceImages), "validation"
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
