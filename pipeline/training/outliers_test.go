package training

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// outside returns n rows near class 0 of nearTwins and beside it.
func outside(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 7))
	var x []float32
	for range n {
		for j := range 8 {
			x = append(x, float32(1+map[int]float64{0: 3.5, 1: 8, 6: 1}[j]+rng.NormFloat64()))
		}
	}
	return x
}

// writeRows writes rows of 8 features without labels.
func writeRows(t *testing.T, x []float32) string {
	t.Helper()
	dir := t.TempDir()
	if err := npy.WriteFile(filepath.Join(dir, "features.npy"), x, len(x)/8, 8); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestOutliers: known outliers are told better than without them, new ones of their kind
// too; the threshold keeps its rank among calibration scores, the detector is the same on
// one core, and a file keeps it all.
func TestOutliers(t *testing.T) {
	train, known := nearTwins(t, 5, 100), outside(1, 60)
	plain, _, err := Train(t.Context(), quick(train))
	if err != nil {
		t.Fatal(err)
	}
	o := quick(train)
	o.Outliers = []string{writeRows(t, known[:20*8]), writeRows(t, known[20*8:])}
	var files [][]byte
	var d *detector.Detector
	for _, cores := range []int{runtime.GOMAXPROCS(0), 1} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
		var result *Result
		if d, result, err = Train(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		a := result.Assessment.Outliers
		if a == nil || a.Images != 60 || a.Weight == 0 || !(a.Outliers.AUROC > a.Outliers.AUROCWithout+0.02) || !(a.Outliers.Caught >= a.Outliers.CaughtWithout) || !(a.Classes.AUROC >= a.Classes.AUROCWithout-0.01) {
			t.Fatalf("assessed %+v", a)
		}
		if !slices.Contains(d.PartNames(), detector.OutliersPart) || len(d.CalibrationScores) != len(plain.CalibrationScores) || d.Threshold != detector.Threshold(d.CalibrationScores, d.TargetTPR) {
			t.Errorf("parts %v, %d calibration scores, threshold %g", d.PartNames(), len(d.CalibrationScores), d.Threshold)
		}
		path := filepath.Join(t.TempDir(), "d")
		if err := d.Save(path); err != nil {
			t.Fatal(err)
		}
		file, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
		fresh := outside(2, 100)
		loaded, err := detector.Load(path)
		if err != nil || !slices.Equal(pipetest.Verdicts(t, loaded, fresh), pipetest.Verdicts(t, d, fresh)) || !slices.Equal(loaded.Assessment.Curve, d.Assessment.Curve) || *loaded.Assessment.Outliers != *a {
			t.Fatalf("the file has another detector: %v", err)
		}
	}
	if !bytes.Equal(files[0], files[1]) {
		t.Error("the detector depends on the number of cores")
	}
	if !bytes.Contains(files[0], []byte(`\"version\":6`)) {
		t.Error("an older program would read the file")
	}
	auroc := func(d *detector.Detector) float64 {
		var of [2][]float64
		for i, x := range [][]float32{twinRows(9), outside(2, 100)} {
			for _, v := range pipetest.Verdicts(t, d, x) {
				of[i] = append(of[i], v.Score)
			}
		}
		return metrics.AUROC(of[0], of[1])
	}
	if with, without := auroc(d), auroc(plain); !(with > without+0.02) {
		t.Errorf("new outliers of the kind are told with %g, without the known ones with %g", with, without)
	}

	// The file says where the outliers are: another training has them too.
	again, notes, err := OptionsOf(t.Context(), d, nil)
	if err != nil || len(notes) > 0 || !slices.Equal(again.Outliers, o.Outliers) {
		t.Errorf("options %q, %v, %v", again.Outliers, notes, err)
	}
}

// twinRows returns 20 rows of each class of nearTwins, which nothing was trained on.
func twinRows(seed uint64) (x []float32) {
	rng := rand.New(rand.NewPCG(seed, 5))
	for c := range 5 {
		for range 20 {
			for j := range 8 {
				centre := map[bool]float64{true: 9}[j == max(c, 1)]
				if c == 0 && j == 0 {
					centre = 2
				}
				x = append(x, float32(centre+1+rng.NormFloat64()))
			}
		}
	}
	return x
}

// TestOutliersThatHarm: a part that gains nothing is dropped, which is said, and the
// detector judges as without it.
func TestOutliersThatHarm(t *testing.T) {
	train := nearTwins(t, 5, 60)
	plain, _, err := Train(t.Context(), quick(train))
	if err != nil {
		t.Fatal(err)
	}
	o := quick(train)
	o.Outliers = []string{writeRows(t, twinRows(4))} // images of the classes themselves
	d, result, err := Train(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if a := result.Assessment.Outliers; a.Weight != 0 || slices.Contains(d.PartNames(), detector.OutliersPart) || !slices.ContainsFunc(result.Warnings, func(w string) bool { return strings.Contains(w, "no part of the known outliers") }) {
		t.Errorf("assessed %+v, parts %v, warnings %q", a, d.PartNames(), result.Warnings)
	}
	if x := twinRows(5); !slices.Equal(pipetest.Verdicts(t, d, x), pipetest.Verdicts(t, plain, x)) {
		t.Error("verdicts are others")
	}
}

// TestFewClassesOutliers: where classes are too few for class hold-out the part has a fixed
// weight; folds of the calibration have it as well.
func TestFewClassesOutliers(t *testing.T) {
	o := quick(nearTwins(t, 2, 60))
	o.Outliers = []string{writeRows(t, outside(1, 30))}
	o.Calibration.Folds = 2
	d, result, err := Train(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range append(d.Folds, d) {
		if !slices.Contains(of.PartNames(), detector.OutliersPart) {
			t.Errorf("parts %v", of.PartNames())
		}
	}
	if !slices.ContainsFunc(result.Warnings, func(w string) bool { return strings.Contains(w, "fixed weight") }) {
		t.Errorf("warnings %q", result.Warnings)
	}
}

// TestOutlierRows: no image of a class is an outlier, and what cannot be used is refused.
func TestOutlierRows(t *testing.T) {
	train := nearTwins(t, 3, 60)
	set, err := features.Open(t.Context(), train)
	if err != nil {
		t.Fatal(err)
	}
	copied := slices.Clone(set.Block(0, 4))
	if err := set.Close(); err != nil {
		t.Fatal(err)
	}
	o := quick(train)
	o.Outliers = []string{writeRows(t, slices.Concat(outside(1, 12), copied))}
	d, result, err := Train(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if a := d.Assessment.Outliers; a == nil || a.Images != 12 || !slices.ContainsFunc(result.Warnings, func(w string) bool { return strings.HasPrefix(w, "4 of 16 known outliers are left out") }) {
		t.Errorf("assessed %+v, warnings %q", a, result.Warnings)
	}
	// Copies of each other stay together, and are few.
	o.Outliers = []string{writeRows(t, slices.Repeat(outside(1, 1), 30))}
	if d, result, err = Train(t.Context(), o); err != nil || d.Assessment.Outliers != nil || !slices.ContainsFunc(result.Warnings, func(w string) bool { return strings.Contains(w, "1 different ones are left") }) {
		t.Errorf("30 copies of an outlier: %v, %q", err, result.Warnings)
	}

	nan := outside(1, 6)
	nan[3*8] = float32(math.NaN())
	short := t.TempDir()
	if err := npy.WriteFile(filepath.Join(short, "features.npy"), make([]float32, 60), 10, 6); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"few":           {func(o *Options) { o.Outliers = []string{writeRows(t, outside(1, 4))} }, "4 known outliers are too few"},
		"NaN":           {func(o *Options) { o.Outliers = []string{writeRows(t, nan)} }, "NaN"},
		"other length":  {func(o *Options) { o.Outliers = []string{short} }, " has 6: it was made"},
		"missing":       {func(o *Options) { o.Outliers = []string{filepath.Join(short, "none")} }, "none"},
		"training set":  {func(o *Options) { o.Outliers = o.Features }, "given twice"},
		"other score":   {func(o *Options) { o.Score = "msp" }, "another was asked for"},
		"no validation": {func(o *Options) { o.Validation.None = true }, "validation images"},
		"one class":     {func(o *Options) { o.Features = []string{nearTwins(t, 1, 60)} }, "two classes"},
	} {
		t.Run(name, func(t *testing.T) {
			o := quick(train)
			o.Outliers = []string{writeRows(t, outside(1, 12))}
			c.change(&o)
			_, _, err := Train(t.Context(), o)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if about := (*options.Error)(nil); slices.Contains([]string{"few", "other score", "no validation", "one class"}, name) && (!errors.As(err, &about) || about.Option != "Outliers") {
				t.Errorf("%v is not about Outliers", err)
			}
		})
	}
}
