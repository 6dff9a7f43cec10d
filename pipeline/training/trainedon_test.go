package training

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// TestOpenTraining: a detector finds the features that it was trained on, moved or
// not, and takes no others for them.
func TestOpenTraining(t *testing.T) {
	t.Parallel()
	one := pipetest.Clouds(t, 1, 60, []int64{0, -1, 2}, [2]float64{0, 0}, [2]float64{9, 9}, [2]float64{4, 0})
	two := pipetest.Clouds(t, 2, 30, pipetest.TwoLabels, pipetest.Two...)
	held, calibration := pipetest.Clouds(t, 3, 20, pipetest.TwoLabels, pipetest.Two...), pipetest.Clouds(t, 4, 20, nil, pipetest.Two...)
	issues := filepath.Join(t.TempDir(), "issues.csv")
	if err := os.WriteFile(issues, []byte("path,row,kind,score,label,suggested,other\n,0,label,1,0,2,\n,181,outlier,1,1,,\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	o := quick(one, two)
	o.Validation.Features, o.Calibration.Features, o.Exclude, o.Relabel = held, calibration, issues, issues
	made, _, err := Train(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "d.safetensors")
	if err := made.Save(path); err != nil {
		t.Fatal(err)
	}
	d, err := detector.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	sets := func(use string, dirs []string, want ...string) {
		t.Helper()
		found, err := d.OpenSets(t.Context(), use, dirs)
		if err != nil {
			t.Error(err)
			return
		}
		var got []string
		for _, s := range found {
			got = append(got, s.Dir)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", use, got, want)
		}
	}
	sets(detector.ForTraining, nil, one, two)
	sets(detector.ForValidation, nil, held)
	sets(detector.ForCalibration, nil, calibration)
	sets(detector.ForTraining, []string{two, held, one}, one, two)

	data, err := d.OpenTraining(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	// Labels: row 0 was given another, row 181 was left out, every third of the first
	// 180 never had one.
	if len(data.Labels) != 240 || data.Labels[0] != 2 || data.Labels[1] != -1 || data.Labels[2] != 2 || data.Labels[181] != -1 || data.Labels[183] != 1 ||
		data.Unverified || len(data.Train) != made.Training.Rows.Train || len(data.Train) != 240-60-1 {
		t.Errorf("%d labels, %d of rows to train on", len(data.Labels), len(data.Train))
	}
	if set, at := data.At(181); set.Dir != two || at != 1 || !slices.Equal(data.Row(181), set.Row(1)) {
		t.Errorf("row 181 is row %d of %s", at, set.Dir)
	}
	if err := data.Close(); err != nil {
		t.Fatal(err)
	}

	// Moved beside the detector's file, where it is looked for, and elsewhere.
	moved := filepath.Join(filepath.Dir(path), filepath.Base(one))
	if err := os.Rename(one, moved); err != nil {
		t.Fatal(err)
	}
	sets(detector.ForTraining, nil, moved, two)
	far := filepath.Join(t.TempDir(), "far")
	if err := os.Rename(moved, far); err != nil {
		t.Fatal(err)
	}
	if _, err := d.OpenTraining(t.Context(), nil); !errors.Is(err, detector.ErrTrainingSets) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("features that are gone: %v", err)
	}
	sets(detector.ForTraining, []string{far, two}, far, two)

	// Another label, the same number of rows: not what was trained on.
	labels := filepath.Join(two, "labels.npy")
	text, err := os.ReadFile(labels)
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)-8] ^= 1
	if err := os.WriteFile(labels, text, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := d.OpenTraining(t.Context(), []string{far, two}); !errors.Is(err, detector.ErrTrainingSets) {
		t.Errorf("features with another label: %v", err)
	}

	// A file from before the record: the user names the sets, and sizes are compared.
	d.Training.Sets, d.Relabelled = nil, nil
	if _, err := d.OpenTraining(t.Context(), []string{two}); !errors.Is(err, detector.ErrTrainingSets) {
		t.Errorf("an old detector with half of its features: %v", err)
	}
	o = quick(held)
	if d, _, err = Train(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	d.Training.Sets = nil
	if data, err = d.OpenTraining(t.Context(), nil); err != nil || !data.Unverified || len(data.Train) != d.Training.Rows.Train {
		t.Errorf("an old detector: %v", err)
	} else if err := data.Close(); err != nil {
		t.Error(err)
	}
}
