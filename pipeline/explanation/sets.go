package explanation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mlrbfn/features"
	"mlrbfn/options"
	"mlrbfn/pipeline/detector"
)

// This file finds the feature sets of the training images. A path in a detector is
// only a hint: what is found there counts only if it has the rows that the detector
// was trained on, or of older detectors, which do not identify these, the same
// fingerprint of model and preprocessing.

// openSets opens the sets that are named or else those that the detector hints at,
// and says what is missing.
func openSets(d *detector.Detector, named []string) (sets []*features.Set, exact bool, notes []string, err error) {
	if len(named) > 0 {
		for _, dir := range named {
			set, err := features.Open(dir)
			if err == nil {
				sets = append(sets, set)
				if err = fits(d, set); err != nil {
					err = fmt.Errorf("%s: %w", dir, err)
				}
			}
			if err != nil {
				return nil, false, nil, errors.Join(options.Errorf("Features", "%w", err), closeAll(sets))
			}
		}
		return sets, sameRows(d, sets), nil, nil
	}
	hints := d.Training.Sets
	if len(hints) == 0 {
		for _, dir := range d.Training.Features {
			hints = append(hints, detector.TrainingSet{Path: dir})
		}
	}
	for i, hint := range hints {
		set, problem := find(d, hint, i)
		if set == nil {
			notes = append(notes, fmt.Sprintf("the training features %s %s, so that no training images of them are shown; name them (Features)", hint.Path, problem))
			continue
		}
		sets = append(sets, set)
	}
	if len(hints) == 0 {
		notes = append(notes, "the detector does not say what features it was trained on, so that no training images are shown; name them (Features)")
	}
	return sets, len(sets) == len(hints) && len(sets) > 0, notes, nil
}

// find opens the set of a hint: where it was at training or beside the detector.
func find(d *detector.Detector, hint detector.TrainingSet, i int) (_ *features.Set, problem string) {
	places := []string{hint.Path}
	if i < len(d.Training.Features) {
		places = append(places, d.Training.Features[i])
	}
	if d.File() != "" {
		places = append(places, filepath.Join(filepath.Dir(d.File()), filepath.Base(hint.Path)))
	}
	problem = "are not found any more"
	for _, dir := range places {
		set, err := features.Open(dir)
		if err != nil {
			if !errors.Is(err, os.ErrNotExist) {
				problem = "cannot be read"
			}
			continue
		}
		switch err := fits(d, set); {
		case err != nil:
			problem = "were made by another model"
		case hint.SHA256 == "" && (set.Fingerprint == "" || d.Source.Fingerprint == ""):
			problem = "cannot be told from others"
		case hint.SHA256 != "" && !identified(set, hint):
			problem = "have changed since"
		default:
			return set, ""
		}
		_ = set.Close() // it was only read
	}
	return nil, problem
}

// fits says why a set's rows cannot be compared with what the detector reads.
func fits(d *detector.Detector, set *features.Set) error {
	if set.D != d.Dim() {
		return fmt.Errorf("it has %d features a row, and the detector reads %d", set.D, d.Dim())
	}
	if own := d.Source.Fingerprint; own != "" && set.Fingerprint != "" && own != set.Fingerprint {
		return fmt.Errorf("it was %w than the detector's features", features.ErrFingerprint)
	}
	return nil
}

// identified tells whether a set has the rows of a hint.
func identified(set *features.Set, hint detector.TrainingSet) bool {
	sum := sha256.Sum256(detector.SetRows(set.Features(), set.N, set.D))
	return set.N == hint.Rows && strings.EqualFold(hex.EncodeToString(sum[:]), hint.SHA256)
}

// sameRows tells whether sets are those that the detector was trained on, in order.
func sameRows(d *detector.Detector, sets []*features.Set) bool {
	if len(d.Training.Sets) != len(sets) {
		return len(d.Training.Sets) == 0 // not known; the reference is checked by its scores
	}
	for i, set := range sets {
		if !identified(set, d.Training.Sets[i]) {
			return false
		}
	}
	return true
}

func closeAll(sets []*features.Set) error {
	var errs []error
	for _, set := range sets {
		errs = append(errs, set.Close())
	}
	return errors.Join(errs...)
}

// reference returns that of the detector. Older ones have none; then it is that of
// the calibration rows among the training features, if these give the calibration
// scores, or of a score of one part the calibration scores themselves. It is nil
// where nothing is known.
func (e *Explainer) reference(ctx context.Context, exact bool) (*detector.Reference, error) {
	d := e.detector
	switch {
	case d.Reference != nil:
		return d.Reference, nil
	case len(d.Folds) == 0 && len(d.PartNames()) == 1 && len(d.Scores) > 0:
		return &detector.Reference{Of: "calibration", Parts: [][]float64{d.Scores}}, nil
	case e.bank == nil || !exact || len(d.Folds) > 0:
		return nil, nil
	}
	rows := d.Splits["calibration"]
	if step := (len(rows) + detector.ReferenceImages - 1) / detector.ReferenceImages; step > 1 {
		some := []int{}
		for i := 0; i < len(rows); i += step {
			some = append(some, rows[i])
		}
		rows = some
	}
	if len(rows) == 0 || slices.Min(rows) < 0 || slices.Max(rows) >= e.bank.n {
		return nil, nil
	}
	var x []float32
	for _, row := range rows {
		x = append(x, e.bank.row(row)...)
	}
	verdicts, err := d.VerdictsContext(ctx, x)
	if err != nil {
		return nil, err
	}
	for _, v := range verdicts {
		const rounding = 1e-6
		at, _ := slices.BinarySearch(d.Scores, v.Score-rounding*(1+math.Abs(v.Score)))
		if at == len(d.Scores) || d.Scores[at] > v.Score+rounding*(1+math.Abs(v.Score)) {
			return nil, nil // other rows, by now
		}
	}
	return d.NewReference(ctx, "calibration", x)
}
