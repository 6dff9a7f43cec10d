package training

import (
	"context"

	"mlrbfn/dataset"
	"mlrbfn/pipeline/detector"
)

// reference returns what the parts of the score give the calibration images or,
// where none were set aside, the validation images; nil without either. The rows of
// raw are not conditioned.
func (t *Data) reference(ctx context.Context, raw *Data, d *detector.Detector) (*detector.Reference, error) {
	if len(t.sample) > 0 && len(d.Folds) == 0 {
		return d.NewReference(ctx, "calibration", t.sample)
	}
	from := t.Table
	if t.Held != nil {
		from = t.Held
	}
	return d.NewReference(ctx, "validation", from.Gather(dataset.Every(raw.validation.Index, detector.ReferenceImages)))
}
