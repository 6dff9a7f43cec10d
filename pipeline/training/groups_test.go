package training

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// grouped writes a feature set of two classes with rows of 20 features: so many
// different ones, each several times over, the i-th copy multiplied by 1 + i·scale.
// The path of a row names its number and its copy.
func grouped(t *testing.T, seed uint64, rows, copies int, scale float64) string {
	t.Helper()
	const d = 20
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(seed, 11))
	unique := make([][]float32, rows)
	for i := range unique {
		unique[i] = pipetest.RandomArray(rng, d, 1+float64(i%2), 1)
	}
	var x []float32
	var y []int64
	var paths strings.Builder
	for c := range copies {
		for i, row := range unique {
			for _, v := range row {
				x = append(x, v*float32(1+float64(c)*scale))
			}
			y = append(y, int64(i%2))
			fmt.Fprintf(&paths, "{\"path\":\"%d/video%d_%d.png\"}\n", i%2, i, c)
		}
	}
	for _, err := range []error{
		npy.WriteFile(filepath.Join(dir, "features.npy"), x, len(y), d), npy.WriteFile(filepath.Join(dir, "labels.npy"), y, len(y)),
		os.WriteFile(filepath.Join(dir, "images.jsonl"), []byte(paths.String()), 0o666),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestTrainKeepsGroupsTogether: copies, near copies, and rows that the pattern puts
// together.
func TestTrainKeepsGroupsTogether(t *testing.T) {
	t.Parallel()
	const rows, copies = 400, 3
	for name, tt := range map[string]struct {
		scale   float64
		pattern string
		warns   string
	}{
		"identical":        {0, "", "1200 of 1200 images have features that are identical"},
		"nearly identical": {1e-6, "", "1200 of 1200 images"},
		"by path":          {0.05, "video([0-9]+)_", ""},
		"by all of it":     {0.05, "video[0-9]+", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := grouped(t, 1, rows, copies, tt.scale)
			if name == "by path" || name == "by all of it" {
				dir = noisy(t, dir)
			}
			o := quick(dir)
			o.GroupBy = tt.pattern
			d, result, err := Train(context.Background(), o)
			if err != nil {
				t.Fatal(err)
			}
			set := map[int]string{}
			for part, list := range d.Splits {
				for _, r := range list {
					set[r] = strings.Replace(part, "left_out", "calibration", 1)
				}
			}
			for r := range rows * copies {
				if set[r] != set[r%rows] {
					t.Fatalf("row %d is for %q, and row %d of its group for %q", r, set[r], r%rows, set[r%rows])
				}
			}
			if n := len(d.CalibrationScores); n != 40 || n != len(d.Splits["calibration"]) || len(d.Splits["left_out"]) != 2*n || result.Rows.LeftOut != 2*n {
				t.Errorf("%d calibration scores of %d rows, %d left out", n, len(d.Splits["calibration"]), len(d.Splits["left_out"]))
			}
			if d.Training.Split != "groups" || d.Training.GroupBy != tt.pattern {
				t.Errorf("split %q by %q", d.Training.Split, d.Training.GroupBy)
			}
			if warnings := strings.Join(result.Warnings, "\n"); !strings.Contains(warnings, tt.warns) || tt.warns == "" && warnings != "" {
				t.Errorf("warnings %q, want %q", warnings, tt.warns)
			}
		})
	}
	for pattern, says := range map[string]string{"(": "GroupBy", "photo": "matches no path, such as 0/video0_0.png"} {
		o := quick(grouped(t, 1, 20, 1, 0))
		o.GroupBy = pattern
		if _, _, err := Train(context.Background(), o); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("pattern %s: %v, want %q", pattern, err, says)
		}
	}
}

// noisy adds noise to the rows of a feature set, so that none is like another.
func noisy(t *testing.T, dir string) string {
	t.Helper()
	file := filepath.Join(dir, "features.npy")
	x, shape, err := npy.Read[float32](file)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(4, 4))
	for i := range x {
		x[i] += float32(0.3 * rng.NormFloat64())
	}
	if err := npy.WriteFile(file, x, shape...); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestCopiesKeepThePromise: rows that are there three times. Without groups more
// than twice as many new rows were flagged as promised; `scripts/run promise`
// measures it more exactly.
func TestCopiesKeepThePromise(t *testing.T) {
	t.Parallel()
	const seeds, fresh = 12, 500
	flagged := 0
	for seed := range uint64(seeds) {
		o := quick(grouped(t, seed, 400, 3, 1e-7))
		o.Seeds = []uint64{seed}
		d, _, err := Train(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(seed, 12))
		for i := range fresh {
			if pipetest.Verdicts(t, d, pipetest.RandomArray(rng, 20, 1+float64(i%2), 1))[0].OOD {
				flagged++
			}
		}
	}
	// 40 calibration scores: Beta(2, 39) has the mean 0.049 and the deviation 0.033.
	if share := float64(flagged) / (seeds * fresh); share > 0.049+3*0.033/3.4 || share < 0.02 {
		t.Errorf("%.3f of new rows are flagged, promised 0.05", share)
	}
}

// TestOldCheckpointKeepsItsSplit: what a program began that split by rows goes on
// with these rows.
func TestOldCheckpointKeepsItsSplit(t *testing.T) {
	t.Parallel()
	o := quick(grouped(t, 1, 60, 2, 0))
	o.Checkpoint = filepath.Join(t.TempDir(), "checkpoint")
	ctx := context.Background()
	data, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	data.groups = nil // as it was
	old, err := data.resplit(0)
	if err != nil {
		t.Fatal(err)
	}
	id, err := old.identify(ctx)
	if err != nil || id[splitName] != "" {
		t.Fatalf("%v, split %q", err, id[splitName])
	}
	kept := &checkpoint{path: o.Checkpoint, run: id}
	if err := kept.write(); err != nil {
		t.Fatal(err)
	}
	now, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer now.Close()
	if slices.Equal(now.split.Train, old.split.Train) {
		t.Fatal("both split alike")
	}
	if _, err := now.openCheckpoint(ctx); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(now.split.Train, old.split.Train) || !slices.Equal(now.validation.Index, old.validation.Index) || now.rule() != "" {
		t.Error("the rows are split anew")
	}
}

// TestPerClass: classes with too few calibration images are named.
func TestPerClass(t *testing.T) {
	t.Parallel()
	o := quick(pipetest.Clouds(t, 1, 300, []int64{0, 1, 0}, [2]float64{0, 0}, [2]float64{4, 0}, [2]float64{0, 1}))
	o.PerClass, o.Calibration.Fraction = true, 0.15
	for target, few := range map[float64]bool{0.95: false, 0.98: true} {
		o.TargetTPR = target
		d, result, err := Train(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if d.ByClass == nil || len(d.ByClass[0]) == 0 || (len(d.ByClass[1]) == 0) != few {
			t.Errorf("target %g: calibration scores %d", target, len(d.ByClass))
		}
		if got := strings.Contains(strings.Join(result.Warnings, "\n"), "1 of 2 classes have fewer than the 49 calibration images that a threshold of their own needs"); got != few {
			t.Errorf("target %g: warnings %q", target, result.Warnings)
		}
		if !few && d.ThresholdOf(0) == d.ThresholdOf(1) {
			t.Error("the classes share a threshold")
		}
	}
}

// TestFewGroups: features of few values are said to be that; groups by name are not.
func TestFewGroups(t *testing.T) {
	t.Parallel()
	for copies, want := range map[int]bool{2: false, 10: true} {
		o := quick(grouped(t, 3, 60, copies, 0))
		o.GroupBy = `video(\d)`
		data, err := Open(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(strings.Join(data.Warnings, " "), "60 groups of identical"); got != want {
			t.Errorf("%d copies: warnings %q", copies, data.Warnings)
		}
		data.Close()
	}
}

// TestGroupPerClass: where all images of a class are one group, none can calibrate.
func TestGroupPerClass(t *testing.T) {
	t.Parallel()
	for _, calibration := range []Share{{}, {Folds: 3}, {Auto: true}} {
		o := quick(grouped(t, 3, 40, 2, 0.05))
		o.GroupBy, o.Calibration = "^([^/]+)/", calibration
		if _, _, err := Train(context.Background(), o); options.Name(err) != "GroupBy" {
			t.Errorf("calibration %s: %v", calibration, err)
		}
	}
}
