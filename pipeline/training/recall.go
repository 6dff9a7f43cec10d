package training

import (
	"context"
	"fmt"
	"slices"

	"mlrbfn/dataset"
	"mlrbfn/pipeline/detector"
)

// recalls counts how often the detector is right on the validation rows of each
// class that has any. The data are not conditioned.
func (t *Data) recalls(ctx context.Context, d *detector.Detector) ([]ClassRecall, error) {
	from := t.Table
	if t.Held != nil {
		from = t.Held
	}
	own := *d
	own.Scoring, own.Folds = nil, nil // the class is the heads'
	all := make([]ClassRecall, len(t.Classes))
	for part := range slices.Chunk(t.validation.Index, 16*dataset.BlockRows) {
		verdicts, err := own.VerdictsContext(ctx, from.Gather(part))
		if err != nil {
			return nil, err
		}
		for i, row := range part {
			y := t.validation.Labels[row]
			all[y].Images++
			if int64(verdicts[i].Label) == y {
				all[y].Right++
			}
		}
	}
	for i := range all {
		all[i].Class = t.Classes[i]
	}
	return slices.DeleteFunc(all, func(c ClassRecall) bool { return c.Images == 0 }), nil
}

// judgeAccuracy adds what the recalls say of the accuracy. Without validation rows
// or with one class there is none.
func (r *Result) judgeAccuracy(classes int) {
	if classes == 1 || len(r.ValClasses) == 0 {
		r.ValAccuracy, r.ValClasses = nil, nil
		return
	}
	images, most, balanced := 0, 0, 0.
	for _, c := range r.ValClasses {
		images += c.Images
		most = max(most, c.Images)
		balanced += c.Recall() / float64(len(r.ValClasses))
	}
	r.ValBalancedAccuracy = &balanced
	if common := float64(most) / float64(images); common < 1 && *r.ValAccuracy <= common {
		r.Warnings = append(r.Warnings, fmt.Sprintf(
			"the head has learned nothing: it is right on %.4g of the validation images, and %.4g are of one class; try another learning rate (Train.LR), more epochs (Train.Epochs) or another conditioning (Conditioning)",
			*r.ValAccuracy, common))
	}
}

// tooFew says what to do about too few calibration images.
func (t *Data) tooFew(n int) string {
	target := t.Options.TargetTPR
	need := detector.ScoresNeeded(target)
	text := fmt.Sprintf("%d calibration images are too few to accept %g of the in-distribution images: no image will be flagged; %d would do", n, target, need)
	// Rounded up, with room for what classes of few images cannot give.
	share := float64(need+len(t.Classes)/2+1) / float64(t.split.Groups)
	switch {
	case t.Options.Calibration.Folds > 0:
		return text + ": accept fewer (TargetTPR)"
	case t.Options.Calibration.Features != "":
		return text + ": name a feature set of more (Calibration)"
	case share+t.Options.Validation.fraction() < 0.8:
		return text + fmt.Sprintf(": set aside %.2g of the images (Calibration), or name a feature set of others", share+0.005)
	}
	return text + ": with cross-conformal calibration each image trains and calibrates (Calibration cross:10); or name a feature set of other images (Calibration), or accept fewer (TargetTPR)"
}
