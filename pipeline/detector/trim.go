package detector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// This file sets the threshold anew where a person has looked at the calibration images
// that score lowest, and found some that are of no class (Label-Trim: Bashari, Sesia and
// Romano, Robust conformal outlier detection under contaminated reference data, 2025,
// arXiv 2502.04807).
//
// Of the n1 images that remain, let n' be of the classes, and let k = ⌊α(n1 + 1)⌋ be the
// rank of the threshold. If all images below it were looked at, it is the k-th smallest
// score of the n', or lower, and a new image of the classes is flagged with a probability
// of at most
//
//	k / (n' + 1) ≤ α (n1 + 1) / (n' + 1),
//
// which is α where nothing that does not belong is left. Before, n stands for n1, and
// what does not belong and lies below pulls the threshold down: outliers are missed.

// CalibrationReview is what a person said about calibration images, as detector files
// have it.
type CalibrationReview struct {
	Reviewed int `json:"reviewed"` // images that were looked at: those with the lowest p-values
	Removed  int `json:"removed"`  // of these, because they are of no class
}

// Calibration gives the calibration images of a detector.
type Calibration struct {
	Sets []*features.Set // that Rows are of, as if they were one; open until Close
	Rows []int           // all calibration rows, and of a set of its own rows that do not calibrate too

	detector *Detector
	data     *TrainingData
	dirs     []string
	own      bool
}

// CalibrationImage is a calibration image with its verdict. Its p-value counts its own
// score among the others.
type CalibrationImage struct {
	Row int
	Verdict
}

// ErrNoCalibration is wrapped by the error of a detector without calibration images of its own.
var ErrNoCalibration = errors.New("the detector has no calibration images that nothing else was done with")

// OpenCalibration opens the calibration images of the detector: rows of data, of which it
// was trained, or of a feature set of its own, which is in dirs or where it was. A
// detector with folds has none that it was not trained on, and one that was trained with
// Calibration None has none at all: both are errors.
func (d *Detector) OpenCalibration(ctx context.Context, data *TrainingData, dirs []string) (*Calibration, error) {
	c := &Calibration{Sets: data.Sets, Rows: d.Splits["calibration"], detector: d, data: data, dirs: dirs}
	switch {
	case len(d.Folds) > 0:
		return nil, fmt.Errorf("%w: those of its folds are trained on, too; train again without those that do not belong", ErrNoCalibration)
	case len(d.CalibrationScores) == 0:
		return nil, ErrNoCalibration
	case len(c.Rows) > 0:
		return c, nil
	}
	sets, err := d.OpenSets(ctx, ForCalibration, dirs)
	if err != nil {
		return nil, err
	}
	if len(sets) == 0 {
		return nil, fmt.Errorf("the detector's file does not say which images calibrate: %w", ErrTrainingSets)
	}
	c.Sets, c.own = sets, true
	for row := range sets[0].N {
		c.Rows = append(c.Rows, row)
	}
	return c, nil
}

// Close closes the set of its own, if there is one; the data stay open.
func (c *Calibration) Close() error {
	if c.own {
		return closeSets(c.Sets)
	}
	return nil
}

// Row returns the features of a row.
func (c *Calibration) Row(row int) []float32 {
	if c.own {
		return c.Sets[0].Row(row)
	}
	return c.data.Row(row)
}

// Some returns how many images to look at, so that a sixth of them may be removed: all that
// the threshold is not below, and some more.
func (c *Calibration) Some() int {
	n := len(c.detector.CalibrationScores)
	return min(n, 24+Rank(n, c.detector.TargetTPR)*6/5)
}

// Images returns the images that calibrate, those with the lowest p-values first. The
// error wraps ErrTrainingSets where the rows do not give the calibration scores.
func (c *Calibration) Images(ctx context.Context) ([]CalibrationImage, error) {
	all := make([]CalibrationImage, 0, len(c.Rows))
	err := c.detector.EachVerdict(ctx, c.Row, c.Rows, func(row int, v Verdict) {
		all = append(all, CalibrationImage{row, v})
	})
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b CalibrationImage) int { return cmp.Compare(a.Score, b.Score) })
	// Of a set of its own only one image of each group calibrates: those with the scores.
	at, images := 0, all[:0]
	for _, score := range c.detector.CalibrationScores {
		rounding := 1e-4 * (1 + math.Abs(score)) // another processor
		for at < len(all) && all[at].Score < score-rounding {
			at++
		}
		if at == len(all) || all[at].Score > score+rounding {
			return nil, fmt.Errorf("no image has the calibration score %g: %w", score, ErrTrainingSets)
		}
		image := all[at]
		image.Score, image.PValue = score, pValue(c.detector.ScoresOf(image.Label), score)
		images, at = append(images, image), at+1
	}
	slices.SortStableFunc(images, func(a, b CalibrationImage) int { return cmp.Compare(a.PValue, b.PValue) })
	return images, nil
}

// Trim sets the threshold and the p-values of the detector anew, without the images whose
// rows are in remove, as a person says who looked at the first reviewed of images, which
// Images returned. An error leaves the detector as it was: a row that was not looked at, too few
// images that remain, or images below the new threshold that were not looked at, which may be
// of no class too.
func (c *Calibration) Trim(ctx context.Context, images []CalibrationImage, reviewed int, remove []int) error {
	d := *c.detector
	if reviewed < 0 || reviewed > len(images) {
		return options.Errorf("Reviewed", "%d images were looked at, of %d that calibrate", reviewed, len(images))
	}
	removed := map[int]bool{}
	for _, row := range remove {
		if !slices.ContainsFunc(images[:reviewed], func(i CalibrationImage) bool { return i.Row == row }) {
			return options.Errorf("Remove", "row %d is none of the %d calibration images that were looked at", row, reviewed)
		}
		removed[row] = true
	}
	var scores []float64
	var labels []int
	remain := []int{}
	for _, image := range images {
		if !removed[image.Row] {
			remain, scores, labels = append(remain, image.Row), append(scores, image.Score), append(labels, image.Label)
		}
	}
	if Rank(len(scores), d.TargetTPR) < 1 {
		return options.Errorf("Remove", "%d calibration images would remain, too few to flag at most %.4g%% of in-distribution images (%d would do)", len(scores), 100*(1-d.TargetTPR), ScoresNeeded(d.TargetTPR))
	}
	d.CalibrationScores = slices.Sorted(slices.Values(scores))
	d.Threshold = Threshold(d.CalibrationScores, d.TargetTPR)
	if d.ByClass != nil {
		d.CalibrateByClass(scores, labels)
	}
	unseen := 0
	for _, image := range images[reviewed:] {
		if image.Score <= d.ThresholdOf(image.Label) {
			unseen++
		}
	}
	if unseen > 0 {
		return options.Errorf("Reviewed", "with %d of %d images removed, the new threshold is not below %d that nobody looked at, and these may not belong either: look at %d or more", len(removed), reviewed, unseen, reviewed+unseen)
	}
	if err := c.retell(ctx, &d, remain, removed, reviewed); err != nil {
		return err
	}
	*c.detector = d
	return nil
}

// retell brings up to date what d says of its calibration images, and of what it flags.
func (c *Calibration) retell(ctx context.Context, d *Detector, remain []int, removed map[int]bool, reviewed int) (err error) {
	slices.Sort(remain)
	before := CalibrationReview{}
	if d.Training.Review != nil {
		before = *d.Training.Review
	}
	d.Training.Review = &CalibrationReview{Reviewed: before.Removed + reviewed, Removed: before.Removed + len(removed)}
	d.Training.Rows.Calibration = len(remain)
	if !c.own {
		d.Training.Rows.Unlabelled += len(removed)
		d.Training.ClassCalibration = slices.Clone(d.Training.ClassCalibration)
		d.Splits, d.Relabelled = maps.Clone(d.Splits), maps.Clone(d.Relabelled)
		if d.Relabelled == nil {
			d.Relabelled = map[int]int{}
		}
		d.Splits["calibration"] = remain
		for row := range removed { // nothing shall train on them either
			d.Relabelled[row] = -1
			if d.Training.ClassCalibration != nil {
				d.Training.ClassCalibration[c.data.Labels[row]]--
			}
		}
	}
	if d.Reference != nil && d.Reference.Of == ForCalibration {
		var x []float32
		for _, row := range features.Every(remain, ReferenceImages) {
			x = append(x, c.Row(row)...)
		}
		if d.Reference, err = d.NewReference(ctx, ForCalibration, x); err != nil {
			return err
		}
	}
	return c.flag(ctx, d)
}

// mostFlagged is how many validation images are judged, at most, as in training.
const mostFlagged = 10_000

// flag counts the flagged validation images anew.
func (c *Calibration) flag(ctx context.Context, d *Detector) error {
	if d.Validation == nil {
		return nil
	}
	from, rows, labels := c.data.Row, d.Splits["validation"], c.data.Labels
	if len(rows) == 0 {
		sets, err := d.OpenSets(ctx, ForValidation, c.dirs)
		if err != nil || len(sets) == 0 {
			return err
		}
		defer closeSets(sets)
		if labels, err = features.Relabel(sets[0], d.Classes); err != nil {
			return err
		}
		from = sets[0].Row
		for row, y := range labels {
			if y >= 0 {
				rows = append(rows, row)
			}
		}
	}
	v := *d.Validation
	v.Flagged = make([]FlaggedImages, len(d.Classes))
	d.Validation = &v
	return d.EachVerdict(ctx, from, features.Every(rows, mostFlagged), func(row int, verdict Verdict) { v.Flag(int(labels[row]), verdict) })
}
