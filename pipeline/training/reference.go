package training

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"

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

// trainingSets identifies the sets that are trained on.
func (t *Data) trainingSets() []detector.TrainingSet {
	var all []detector.TrainingSet
	for i, set := range t.Sets {
		path, err := filepath.Abs(t.Dirs[i])
		if err != nil { // the working directory is gone
			path = t.Dirs[i]
		}
		sum := sha256.Sum256(detector.SetRows(set.Features(), set.N, set.D))
		all = append(all, detector.TrainingSet{Path: path, Rows: set.N, SHA256: hex.EncodeToString(sum[:])})
	}
	return all
}
