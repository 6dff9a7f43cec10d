package training

import (
	"math"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// TestRecalls: a small class that the head never gives is seen in its recall and
// in the balanced accuracy, and hidden in the accuracy.
func TestRecalls(t *testing.T) {
	t.Parallel()
	labels := []int64{0, 0, 0, 0, 0, 0, 0, 0, 0, 1} // the last cloud lies on the first
	clouds := [][2]float64{{0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}, {0, 0}}
	o := quick(pipetest.Clouds(t, 1, 20, labels, clouds...))
	o.Validation.Features, o.Calibration.None, o.Score = pipetest.Clouds(t, 2, 10, labels, clouds...), true, detector.HeadScore
	d, result, err := Train(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(result.ValClasses) != 2 || result.ValClasses[0].Class != "0" || result.ValClasses[0].Images != 90 || result.ValClasses[1].Images != 10 {
		t.Fatalf("recalls %+v", result.ValClasses)
	}
	zero, one := result.ValClasses[0], result.ValClasses[1]
	if accuracy := float64(zero.Right+one.Right) / 100; math.Abs(accuracy-*result.ValAccuracy) > 1e-9 || accuracy < 0.85 {
		t.Errorf("accuracy %g, and %g by class", *result.ValAccuracy, accuracy)
	}
	if balanced := (zero.Recall() + one.Recall()) / 2; math.Abs(*result.ValBalancedAccuracy-balanced) > 1e-9 || balanced > 0.6 {
		t.Errorf("balanced accuracy %g, want %g and no more than chance", *result.ValBalancedAccuracy, balanced)
	}
	if w := strings.Join(result.Warnings, "\n"); !strings.Contains(w, "learned nothing") {
		t.Errorf("warnings %q", w)
	}
	if d.Scoring != nil {
		t.Error("the detector's score was touched")
	}
}

// TestOneClass: of one class there is no accuracy and nothing to warn of.
func TestOneClass(t *testing.T) {
	t.Parallel()
	for scores, want := range map[string]string{"": detector.HeadScore, "knn": "knn", detector.HeadScore: detector.HeadScore, "mds": "mds"} {
		o := quick(pipetest.Clouds(t, 1, 300, []int64{0}, [2]float64{4, 0}))
		o.Score = scores
		d, result, err := Train(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if result.ValAccuracy != nil || result.ValBalancedAccuracy != nil || result.ValClasses != nil {
			t.Errorf("%q: accuracy %v", scores, result.ValAccuracy)
		}
		if len(result.Warnings) > 0 {
			t.Errorf("%q: warnings %q", scores, result.Warnings)
		}
		if d.ScoreName() != want || result.Score != want {
			t.Errorf("%q: the detector judges by %s, %s; want %s", scores, d.ScoreName(), result.Score, want)
		}
		if v := pipetest.Verdicts(t, d, []float32{4, 0, -9, 6}); v[0].OOD || !v[1].OOD {
			t.Errorf("%q: verdicts %+v", scores, v)
		}
	}
}

// TestFewCalibrationImages: the advice, when followed, gives a threshold.
func TestFewCalibrationImages(t *testing.T) {
	t.Parallel()
	o := quick(pipetest.Clouds(t, 1, 30, pipetest.TwoLabels, pipetest.Two...))
	_, result, err := Train(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	w := strings.Join(result.Warnings, "\n")
	if !strings.Contains(w, "19 would do: set aside 0.35 of the images (‹Calibration›)") || !strings.Contains(w, "(‹Calibration cross:10›)") {
		t.Fatalf("warnings %q", w)
	}
	o.Calibration.Fraction = 0.35
	if _, result, err = Train(t.Context(), o); err != nil || result.Threshold == nil {
		t.Errorf("with the advice followed: %+v, %v", result, err)
	}
	o = quick(pipetest.Clouds(t, 1, 10, pipetest.TwoLabels, pipetest.Two...))
	if _, result, err = Train(t.Context(), o); err != nil || !strings.Contains(strings.Join(result.Warnings, "\n"), "other images (‹Calibration›)") {
		t.Errorf("of 20 images: %+v, %v", result, err)
	}
}
