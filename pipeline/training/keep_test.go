package training

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// again saves and loads a detector.
func again(t *testing.T, d *detector.Detector) *detector.Detector {
	t.Helper()
	path := filepath.Join(t.TempDir(), "d.safetensors")
	if err := d.Save(path); err != nil {
		t.Fatal(err)
	}
	d, err := detector.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestOptionsOf: a detector's file says how to train a bit-identical one, whatever
// the options were.
func TestOptionsOf(t *testing.T) {
	twins := nearTwins(t, 4, 60)
	two, held := pipetest.Clouds(t, 1, 100, pipetest.TwoLabels, pipetest.Two...), pipetest.Clouds(t, 2, 40, pipetest.TwoLabels, pipetest.Two...)
	issues := filepath.Join(t.TempDir(), "issues.csv")
	if err := os.WriteFile(issues, []byte("path,row,kind,score,label,suggested,other\n,0,label,1,0,1,\n,5,outlier,1,1,,\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		set    string
		change func(*Options)
	}{
		"by default": {twins, func(*Options) {}},
		"paper": {two, func(o *Options) {
			o.Head, o.Seeds = head.Paper{Layers: 2, Centroids: 8, Projection: 4, NoRatio: true, Norm: 3}, []uint64{4, 2}
		}},
		"own sets":     {two, func(o *Options) { o.Validation.Features, o.Calibration.Fraction = held, 0.3 }},
		"folds":        {two, func(o *Options) { o.Calibration.Folds, o.Score = 3, "head" }},
		"per class":    {twins, func(o *Options) { o.PerClass, o.TargetTPR, o.NoHoldOut, o.Linear.C = true, 0.8, true, 0.5 }},
		"other score":  {twins, func(o *Options) { o.Score, o.Validation.Fraction = "ensemble(vim,mds)", 0.2 }},
		"issues":       {two, func(o *Options) { o.Exclude, o.Relabel = issues, issues }},
		"conditioning": {twins, func(o *Options) { o.Conditioning.Kind, o.Conditioning.Shrinkage, o.Train.Balance = "whiten", 0.3, true }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := quick(tt.set)
			tt.change(&o)
			d, _, err := Train(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			want := saved(t, d)
			o, notes, err := OptionsOf(t.Context(), again(t, d), nil)
			if err != nil || len(notes) > 0 {
				t.Fatalf("%v, notes %q", err, notes)
			}
			if d, _, err = Train(t.Context(), o); err != nil || !bytes.Equal(saved(t, d), want) {
				t.Errorf("trained again, it is another detector (%v)", err)
			}
		})
	}
}

// TestKeep: what a detector set aside stays so when images are added, copies of its
// images follow them, and the others are divided.
func TestKeep(t *testing.T) {
	t.Parallel()
	const d = 2
	first := pipetest.Clouds(t, 1, 100, pipetest.TwoLabels, pipetest.Two...)
	old, _, err := Train(t.Context(), quick(first))
	if err != nil {
		t.Fatal(err)
	}
	old = again(t, old)
	// A class more, with copies of a validation row, of a calibration row and of one that
	// was trained on.
	x, _, err := npy.Read[float32](filepath.Join(first, "features.npy"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := old.OpenTraining(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	train := data.Train
	if err := data.Close(); err != nil {
		t.Fatal(err)
	}
	more := pipetest.Clouds(t, 2, 40, []int64{2}, [2]float64{2, 5})
	added, _, err := npy.Read[float32](filepath.Join(more, "features.npy"))
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range []int{old.Splits["validation"][3], old.Splits["calibration"][3], train[3]} {
		copy(added[i*d:], x[row*d:(row+1)*d])
	}
	if err := npy.WriteFile(filepath.Join(more, "features.npy"), added, 40, d); err != nil {
		t.Fatal(err)
	}

	o, _, err := OptionsOf(t.Context(), old, nil)
	if err != nil {
		t.Fatal(err)
	}
	o.Features = append(o.Features, more)
	d2, result, err := Train(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(d2.Classes, []string{"0", "1", "2"}) || result.Rows.Train+result.Rows.Validation+result.Rows.Calibration+result.Rows.LeftOut != 240 {
		t.Errorf("classes %q, rows %+v", d2.Classes, result.Rows)
	}
	for name, want := range map[string][]int{
		"validation":  append(slices.Clone(old.Splits["validation"]), 200),
		"calibration": old.Splits["calibration"],
		"left_out":    {201},
	} {
		got := d2.Splits[name]
		for _, row := range want {
			if !slices.Contains(got, row) {
				t.Errorf("%s: row %d is missing", name, row)
			}
		}
		if slices.Contains(got, 202) || slices.ContainsFunc(got, func(row int) bool { return row < 200 && !slices.Contains(want, row) }) {
			t.Errorf("%s: rows %v", name, got)
		}
		if n := len(got) - len(want); name != "left_out" && (n < 2 || n > 5) {
			t.Errorf("%s: %d of 37 new rows", name, n)
		}
	}

	// The order of the sets is that of the rows.
	o.Features = []string{more, first}
	if _, _, err := Train(t.Context(), o); !errors.Is(err, detector.ErrTrainingSets) {
		t.Errorf("sets in another order: %v", err)
	}
}
