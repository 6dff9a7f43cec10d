package evaluation

import "github.com/mlrbfn/mlrbfn/pipeline/detector"

// ExpectedVerdicts are the intervals that plain figures of n images lie in with a chance of 95%
// if the images are like the calibration images. They are for looking: of twenty, one
// lies outside.
type ExpectedVerdicts struct {
	Flagged    *[2]float64           `json:"flagged_interval"`      // share of flagged images; nil where it is not known
	MeanPValue *[2]float64           `json:"mean_p_value_interval"` // likewise
	Classes    map[string][2]float64 `json:"class_intervals"`       // share of each class; nil where the calibration images have no labels
}

// ExpectVerdicts returns the intervals for n images. Those of all classes together are not known
// for detectors with several sets of calibration scores: by class, or by folds.
func ExpectVerdicts(d *detector.Detector, n int) (e ExpectedVerdicts) {
	if len(d.Folds) == 0 && d.ByClass == nil && len(d.CalibrationScores) > 0 {
		low, high := MeanPValueInterval(n, len(d.CalibrationScores))
		e.MeanPValue = &[2]float64{low, high}
		if k := detector.Rank(len(d.CalibrationScores), d.TargetTPR); k > 0 {
			low, high = FlaggedInterval(n, len(d.CalibrationScores), k)
			e.Flagged = &[2]float64{low, high}
		}
	}
	total := 0
	for _, of := range d.Training.ClassCalibration {
		total += of
	}
	if total > 0 && len(d.Training.ClassCalibration) == len(d.Classes) {
		e.Classes = make(map[string][2]float64, len(d.Classes))
		for class, of := range d.Training.ClassCalibration {
			low, high := ShareInterval(n, total, of)
			e.Classes[d.Classes[class]] = [2]float64{low, high}
		}
	}
	return e
}

// DriftCalibrationOf returns what a stream should be like whose images a detector judges.
// A detector has scores by class if it was calibrated by class. Of one that was
// calibrated by cross-validation (folds) the scores only settle the cells, as other
// detectors gave them.
func DriftCalibrationOf(d *detector.Detector) DriftCalibration {
	c := DriftCalibration{Classes: d.Classes, Scores: d.CalibrationScores}
	if len(d.Folds) > 0 {
		c.Grid, c.Scores = d.CalibrationScores, nil
	}
	if d.ByClass != nil {
		c.ByClass = make(map[string][]float64, len(d.Classes))
		for class, scores := range d.ByClass[:len(d.Classes)] {
			c.ByClass[d.Classes[class]] = scores
		}
	}
	return c
}

// FewForDrift reports whether so many calibration images are too few to rely on noticing a
// stream of which a small part is different from its first image on. docs/drift.md has
// measurements.
func FewForDrift(calibration int) bool { return calibration < 1000 }
