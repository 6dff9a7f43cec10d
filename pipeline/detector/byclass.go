package detector

import (
	"fmt"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/safetensors"
)

// This file calibrates class by class (Mondrian conformal prediction): an image is
// compared with the calibration images that the detector gives the same class.

// CalibrateByClass gives each class a threshold and p-values of its own, by the
// calibration scores of the images that the detector gives that class. Classes with
// too few of them for TargetTPR share those of all such classes, or where these are
// too few together, of all classes. It returns the classes with too few.
func (d *Detector) CalibrateByClass(scores []float64, labels []int) (few []int) {
	lists := make([][]float64, len(d.Classes)+1)
	for i, s := range scores {
		lists[labels[i]] = append(lists[labels[i]], s)
	}
	for c, list := range lists[:len(d.Classes)] {
		if Rank(len(list), d.TargetTPR) < 1 {
			few = append(few, c)
			lists[len(d.Classes)] = append(lists[len(d.Classes)], list...)
			lists[c] = nil
		}
	}
	for _, list := range lists {
		slices.Sort(list)
	}
	d.setByClass(lists)
	return few
}

// setByClass takes a list of scores per class, and one of the classes that have
// none.
func (d *Detector) setByClass(lists [][]float64) {
	others := lists[len(d.Classes)]
	if Rank(len(others), d.TargetTPR) < 1 {
		others = d.CalibrationScores
	}
	d.ByClass = lists
	d.perClass = make([][]float64, len(d.Classes))
	for c := range d.perClass {
		if d.perClass[c] = lists[c]; len(lists[c]) == 0 {
			d.perClass[c] = others
		}
	}
	d.setThresholds()
}

// setThresholds sets the thresholds of the classes for TargetTPR.
func (d *Detector) setThresholds() {
	if d.perClass == nil {
		return
	}
	d.thresholds = make([]float64, len(d.perClass))
	for c, scores := range d.perClass {
		if d.thresholds[c] = Threshold(scores, d.TargetTPR); Rank(len(scores), d.TargetTPR) < 1 {
			d.thresholds[c] = d.Threshold
		}
	}
}

// SetThreshold sets one threshold of the score for all classes, in place of what folds
// decide.
func (d *Detector) SetThreshold(score float64) {
	d.Threshold, d.thresholds, d.Folds = score, nil, nil
}

const (
	byClassScores = "calibration.by_class.scores"
	byClassCounts = "calibration.by_class.counts"
)

// byClassTensors are the calibration scores by class, one after the other, and how
// many each class has; the last count is of the classes that have none.
func (d *Detector) byClassTensors() []safetensors.Tensor {
	if d.ByClass == nil {
		return nil
	}
	counts := make([]int64, len(d.ByClass))
	for c, list := range d.ByClass {
		counts[c] = int64(len(list))
	}
	all := slices.Concat(d.ByClass...)
	return []safetensors.Tensor{
		{Name: byClassScores, Shape: []int{len(all)}, Data: append([]float64{}, all...)},
		{Name: byClassCounts, Shape: []int{len(counts)}, Data: counts},
	}
}

func (d *Detector) readByClass(r *safetensors.Reader) error {
	scores, _, found := safetensors.Optional[float64](r, byClassScores)
	if !found {
		return r.Err
	}
	counts, _ := safetensors.Values[int64](r, byClassCounts)
	if r.Err != nil {
		return r.Err
	}
	lists := make([][]float64, len(counts))
	for c, n := range counts {
		if n < 0 || n > int64(len(scores)) {
			return fmt.Errorf("its calibration scores by class have the count %d and are %d", n, len(scores))
		}
		lists[c], scores = scores[:n:n], scores[n:]
		if err := checkCalibration(lists[c]); err != nil {
			return fmt.Errorf("its calibration scores by class %w", err)
		}
	}
	if len(lists) != len(d.Classes)+1 || len(scores) > 0 {
		return fmt.Errorf("its calibration scores by class are of %d classes, and %d are named", len(lists)-1, len(d.Classes))
	}
	d.setByClass(lists)
	return nil
}
