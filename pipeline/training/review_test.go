package training_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// strays are features of two clouds, with one row in 25 far from both.
func strays(t *testing.T) string {
	centres, labels := slices.Repeat(pipetest.Two, 12), slices.Repeat(pipetest.TwoLabels, 12)
	return pipetest.Clouds(t, 1, 24, append(labels, 0), append(centres, [2]float64{2, 6})...)
}

// stray says of a row of strays whether it is of neither cloud.
func stray(row int) bool { return row%25 == 24 }

// review opens the calibration images of a detector.
func review(t *testing.T, d *detector.Detector) (*detector.Calibration, []detector.CalibrationImage) {
	t.Helper()
	data, err := d.OpenTraining(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := d.OpenCalibration(t.Context(), data, nil)
	if err != nil {
		t.Fatal(err)
	}
	images, err := c.Images(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), data.Close()); err != nil {
			t.Error(err)
		}
	})
	return c, images
}

// TestTrim: without the calibration images that are of no class, the threshold and the
// p-values are those of the others, for one threshold, thresholds by class and images of
// their own; what was not looked at is neither removed nor below the threshold; and the
// file has it, so that a second review shows the others, and a later training is without.
func TestTrim(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*training.Options){
		"one threshold": func(*training.Options) {},
		"by class":      func(o *training.Options) { o.PerClass = true },
		"of its own": func(o *training.Options) {
			o.Features, o.Calibration.Features = []string{pipetest.Clouds(t, 2, 100, pipetest.TwoLabels, pipetest.Two...)}, strays(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := training.Options{Features: []string{strays(t)}, Calibration: training.Share{Fraction: 0.4}, Train: head.TrainOptions{Epochs: 3}, TargetTPR: 0.9, NoHoldOut: true}
			change(&o)
			d, _, err := training.Train(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			c, images := review(t, d)
			if len(images) != len(d.CalibrationScores) || !slices.IsSortedFunc(images, func(a, b detector.CalibrationImage) int { return int(1e6 * (a.PValue - b.PValue)) }) {
				t.Fatalf("%d images, %d scores", len(images), len(d.CalibrationScores))
			}
			before := *d
			var remove []int
			var last int
			var clean []float64
			for at, i := range images {
				if stray(i.Row) {
					remove, last = append(remove, i.Row), at
				} else {
					clean = append(clean, i.Score)
				}
			}
			if len(remove) < 8 || last > len(images)/2 {
				t.Fatalf("%d of %d are of no class, the last is image %d", len(remove), len(images), last)
			}
			for _, bad := range []struct {
				reviewed int
				remove   []int
				says     string
			}{
				{0, nil, "nobody looked at"},
				{last, remove, "none of"},
				{len(images), rowsOf(images)[5:], "too few"},
				{len(images) + 1, nil, "that calibrate"},
			} {
				if err := c.Trim(t.Context(), images, bad.reviewed, bad.remove); err == nil || !strings.Contains(err.Error(), bad.says) {
					t.Errorf("%d reviewed, %d removed: %v", bad.reviewed, len(bad.remove), err)
				}
				if !reflect.DeepEqual(*d, before) {
					t.Fatal("an error changed the detector")
				}
			}
			if err := c.Trim(t.Context(), images, len(images)*3/4, remove); err != nil {
				t.Fatal(err)
			}
			slices.Sort(clean)
			if !slices.Equal(d.CalibrationScores, clean) || d.Threshold != detector.Threshold(clean, 0.9) || d.Threshold <= before.Threshold {
				t.Errorf("threshold %g, before %g", d.Threshold, before.Threshold)
			}
			if r := d.Training.Review; r.Reviewed != len(images)*3/4 || r.Removed != len(remove) {
				t.Errorf("%+v", r)
			}

			file := filepath.Join(t.TempDir(), "d.safetensors")
			if err := d.Save(file); err != nil {
				t.Fatal(err)
			}
			again, err := detector.Load(file)
			if err != nil {
				t.Fatal(err)
			}
			for class := range d.Classes {
				if again.ThresholdOf(class) != d.ThresholdOf(class) || d.ThresholdOf(class) < before.ThresholdOf(class) {
					t.Errorf("class %d: threshold %g, loaded %g, before %g", class, d.ThresholdOf(class), again.ThresholdOf(class), before.ThresholdOf(class))
				}
			}
			if c, images := review(t, again); len(images) != len(clean) || c.Trim(t.Context(), images, len(images), nil) != nil || again.Training.Review.Removed != len(remove) {
				t.Errorf("again: %d images, %+v", len(images), again.Training.Review)
			}
			if o.Calibration.Features != "" {
				return
			}
			for _, row := range remove {
				if again.Relabelled[row] != -1 {
					t.Errorf("row %d would be trained on", row)
				}
			}
			later, _, err := training.OptionsOf(t.Context(), again, nil)
			if err != nil {
				t.Fatal(err)
			}
			if next, _, err := training.Train(t.Context(), later); err != nil || !slices.Equal(next.Splits["calibration"], again.Splits["calibration"]) {
				t.Errorf("trained again: %v", err)
			}
		})
	}
}

func rowsOf(images []detector.CalibrationImage) (rows []int) {
	for _, i := range images {
		rows = append(rows, i.Row)
	}
	return rows
}

// TestReviewList: a list comes back with what is marked, in any order; one that lacks a
// line, or is of other images, is refused.
func TestReviewList(t *testing.T) {
	list := []training.ReviewedImage{{Path: "=a", Row: 7, Label: "x", Class: "y", Score: -1.5, PValue: 0.1}, {Path: "b, c", Row: 2}, {Path: "d", Row: 3}, {Path: "e", Row: 4}}
	file := filepath.Join(t.TempDir(), "list.csv")
	if err := training.WriteReview(file, list[:3]); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if lines[1] != "'=a,7,x,y,-1.5,0.100000," {
		t.Error(lines[1])
	}
	for _, tt := range []struct {
		lines    []string
		reviewed int
		says     string
	}{
		{[]string{lines[0], lines[2] + "x", lines[1], lines[3] + " "}, 3, ""},
		{lines[:1], 0, ""},
		{[]string{lines[0], lines[1], lines[3]}, 0, "line 3 (d)"},
		{[]string{lines[0], lines[1], lines[1]}, 0, "line 3"},
		{[]string{lines[0], strings.Replace(lines[1], "=a", "=b", 1)}, 0, "line 2"},
		{lines[1:], 0, "first line"},
		{nil, 0, "first line"},
	} {
		if err := os.WriteFile(file, []byte(strings.Join(tt.lines, "\n")), 0o666); err != nil {
			t.Fatal(err)
		}
		reviewed, remove, err := training.ReadReview(file, list)
		switch {
		case (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says):
			t.Errorf("%q: %v", tt.lines, err)
		case reviewed != tt.reviewed || reviewed > 0 && !slices.Equal(remove, []int{2}):
			t.Errorf("%q: %d reviewed, %v removed", tt.lines, reviewed, remove)
		}
	}
}
