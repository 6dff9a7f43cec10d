package training

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// judgedRows is how many rows are judged at a time.
const judgedRows = 16 * features.BlockRows

// mostFlagged is how many validation rows are judged, at most, to count the flagged
// ones.
const mostFlagged = 10000

// validate counts what the detector says of the validation rows; nil without any and
// with one class. The data are not conditioned.
func (t *Data) validate(ctx context.Context, d *detector.Detector) (*detector.Validation, error) {
	if len(t.Classes) == 1 || len(t.validation.Index) == 0 {
		return nil, nil
	}
	own := *d
	own.Scoring, own.Folds = nil, nil // the class is the heads'
	v := &detector.Validation{Flagged: make([]detector.FlaggedImages, len(t.Classes))}
	err := t.eachValidation(ctx, &own, t.validation.Index, v.Give)
	if err != nil {
		return nil, err
	}
	return v, t.eachValidation(ctx, d, features.Every(t.validation.Index, mostFlagged), v.Flag)
}

// eachValidation judges validation rows.
func (t *Data) eachValidation(ctx context.Context, d *detector.Detector, rows []int, do func(label int, v detector.Verdict)) error {
	for part := range slices.Chunk(rows, judgedRows) {
		verdicts, err := d.Verdicts(ctx, rowsFor(d, t.judging(), part))
		if err != nil {
			return err
		}
		for i, row := range part {
			do(int(t.validation.Labels[row]), verdicts[i])
		}
	}
	return nil
}

// recalls lists the classes that have validation rows.
func (t *Data) recalls(v *detector.Validation) (all []ClassRecall) {
	if v == nil {
		return nil
	}
	for c, name := range t.Classes {
		if right, images := v.Right(c); images > 0 {
			all = append(all, ClassRecall{Class: name, Images: images, Right: right})
		}
	}
	return all
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
			"the head has learned nothing: it is right on %.4g of the validation images, and %.4g are of one class; try another learning rate (‹Train.LR›), more epochs (‹Train.Epochs›) or another conditioning (‹Conditioning›)",
			*r.ValAccuracy, common))
	}
}

// tooFew says what to do about too few calibration images.
func (t *Data) tooFew(n int) string {
	target := t.Options.TargetTPR
	need := detector.ScoresNeeded(target)
	text := fmt.Sprintf("too few calibration images (%d) to accept %g of the in-distribution images: no image will be flagged; %d would do", n, target, need)
	// Rounded up, with room for what classes of few images cannot give.
	share := float64(need+len(t.Classes)/2+1) / float64(t.split.Groups)
	switch {
	case t.Options.Calibration.Folds > 0:
		return text + ": accept fewer (‹TargetTPR›)"
	case t.Options.Calibration.Features != "":
		return text + ": name a feature set of more (‹Calibration›)"
	case share+t.Options.Validation.fraction() < 0.8:
		return text + fmt.Sprintf(": set aside %.2g of the images (‹Calibration›), or let each image train and calibrate, which takes ten times longer (‹Calibration cross:10›), or name a feature set of others", share+0.005)
	}
	return text + ": with cross-conformal calibration each image trains and calibrates (‹Calibration cross:10›); or name a feature set of other images (‹Calibration›), or accept fewer (‹TargetTPR›)"
}

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
	var some []float32
	for _, i := range features.Every(lists.UpTo(len(rows)/d), n) {
		some = append(some, rows[i*d:(i+1)*d]...)
	}
	return some
}

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
	names := lists.Map(few[:min(len(few), 5)], func(c int) string { return t.Classes[c] })
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
