package detector

import (
	"math"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/mlrbfn/mlrbfn/internal/options"
)

// Rank returns which of n scores, counted from the lowest, is the threshold that
// keeps the share tpr; 0 where n is too small to promise it.
func Rank(n int, tpr float64) int {
	// A share like 1−0.9 falls just short of the number that it stands for.
	return int(math.Floor((1-tpr)*float64(n+1) + 1e-9))
}

// ScoresNeeded returns how many calibration scores a threshold needs that keeps
// the share tpr.
func ScoresNeeded(tpr float64) int { return int(math.Ceil(1/(1-tpr)-1e-9)) - 1 }

// SetMaxFalseAlarms sets the threshold so that at most the share of the
// in-distribution images is flagged, by the calibration scores that the detector
// has. It needs no training; where the scores are too few it is an error, and the
// detector stays as it was.
func (d *Detector) SetMaxFalseAlarms(share float64) error {
	if !(share > 0 && share < 1) {
		return options.Errorf("MaxFalseAlarms", "%g does not lie between 0 and 1", share)
	}
	tpr := 1 - share
	if n := len(d.CalibrationScores); Rank(n, tpr) < 1 {
		return options.Errorf("MaxFalseAlarms", "%g: the detector has %d calibration images, too few to promise that (%d would do)", share, n, ScoresNeeded(tpr))
	}
	d.Threshold, d.TargetTPR = Threshold(d.CalibrationScores, tpr), tpr
	d.setThresholds()
	return nil
}

// FalseAlarms returns the interval that holds, with a chance of 95%, the share
// of in-distribution images that the threshold flags. Over the choice of the n
// calibration images that share is Beta(k, n+1−k) if its rank among their scores
// is k and no scores tie; its mean is k/(n+1) ≤ 1−TargetTPR. It is nil where
// nothing is flagged, and of folds, whose promise is [CrossBound]. It speaks of images
// like those, and of the share in the long run: among few images chance adds its own.
// With thresholds by class it is the interval of the class with the fewest
// calibration scores, for images that are given that class; those of the others are
// narrower.
func (d *Detector) FalseAlarms() *[2]float64 {
	n := len(d.CalibrationScores)
	if d.thresholds != nil {
		for _, scores := range d.perClass {
			if Rank(len(scores), d.TargetTPR) > 0 {
				n = min(n, len(scores))
			}
		}
	}
	k := Rank(n, d.TargetTPR)
	if k < 1 || k > n || len(d.Folds) > 0 {
		return nil
	}
	low, high := FalseAlarmInterval(k, n)
	return &[2]float64{low, high}
}

// FalseAlarmInterval returns the interval of FalseAlarms for a threshold that is the
// k-th smallest of n calibration scores.
func FalseAlarmInterval(k, n int) (low, high float64) {
	share := distuv.Beta{Alpha: float64(k), Beta: float64(n + 1 - k)}
	return share.Quantile(0.025), share.Quantile(0.975)
}

// Threshold returns the ⌊(1−tpr)(n+1)⌋-th smallest of n scores, ascending: a
// fresh in-distribution image scores below it with a chance of at most 1−tpr.
// It is −Inf where that rank is 0: too few scores to promise it.
func Threshold(ascending []float64, tpr float64) float64 {
	k := Rank(len(ascending), tpr)
	if k < 1 {
		return math.Inf(-1)
	}
	return ascending[min(k, len(ascending))-1]
}
