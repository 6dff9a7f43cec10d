package drift

import "mlrbfn/pipeline/detector"

// CalibrationOf returns what a stream should be like whose images a detector judges.
// A detector has scores by class if it was calibrated by class. Of one that was
// calibrated by cross-validation (folds) the scores only settle the cells, as other
// detectors gave them.
func CalibrationOf(d *detector.Detector) Calibration {
	c := Calibration{Classes: d.Classes, Scores: d.CalibrationScores}
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
