package training

import (
	"bytes"
	"context"
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
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// nearTwins writes n rows of each of so many classes: classes 0 and 1 lie close to
// each other, the others far apart.
func nearTwins(t *testing.T, classes, n int) string {
	t.Helper()
	const d = 8
	rng := rand.New(rand.NewPCG(3, 5))
	var x []float32
	var y []int64
	for c := range classes {
		centre := make([]float64, d)
		centre[max(c, 1)%d] = 9
		if c == 0 {
			centre[0] = 2
		}
		for range n {
			for _, v := range centre {
				x = append(x, float32(v+1+rng.NormFloat64()))
			}
			y = append(y, int64(c))
		}
	}
	dir := t.TempDir()
	if err := errors.Join(npy.WriteFile(filepath.Join(dir, "features.npy"), x, len(y), d), npy.WriteFile(filepath.Join(dir, "labels.npy"), y, len(y))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestHoldOut: a new class is harder to notice if it is like a known one, and the
// detector is the same on one core.
func TestHoldOut(t *testing.T) {
	o := quick(nearTwins(t, 5, 100))
	var files [][]byte
	for _, cores := range []int{runtime.GOMAXPROCS(0), 1} {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
		d, result, err := Train(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		a := result.Assessment
		if d.ScoreName() != detector.JoinedScore || d.Assessment != a || len(a.Classes) != 5 || result.NoAssessment != "" {
			t.Fatalf("score %s, assessment %+v", d.ScoreName(), a)
		}
		zero, three := a.Classes["0"], a.Classes["3"]
		if zero.TakenFor != "1" || a.Classes["1"].TakenFor != "0" || zero.AUROC > 0.95 || three.AUROC < 0.99 || three.Caught < 0.9 || zero.Images != 90 {
			t.Errorf("assessment %+v", a)
		}
		// Nearly all of class 3 is caught at few false alarms; the curves rise.
		if at5, ok := three.CaughtAt(a, 0.05); !ok || at5 != three.Caught || !slices.IsSorted(three.Curve) || !slices.IsSorted(a.Curve) {
			t.Errorf("class 3 is caught %v of the time at %v false alarms", three.Curve, a.FalseAlarms)
		}
		if at5, ok := a.CaughtAt(0.05); !ok || math.Abs(at5-a.Caught) > 1e-12 {
			t.Errorf("the mean curve has %g, the assessment %g", at5, a.Caught)
		}
		var mean float64
		for _, c := range a.Classes {
			mean += c.AUROC / 5
		}
		if math.Abs(mean-a.AUROC) > 1e-12 {
			t.Errorf("AUROC %g, the mean over the classes is %g", a.AUROC, mean)
		}
		if v := pipetest.Verdicts(t, d, slices.Repeat([]float32{-30}, 8)); !v[0].OOD || v[0].Score > -guardWeight {
			t.Errorf("a row far from all classes: %+v", v[0])
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
	}
	if !bytes.Equal(files[0], files[1]) {
		t.Error("the detector depends on the number of cores")
	}
}

// TestCaught: what is caught is the mean over thresholds, each the k-th lowest of n scores that
// are drawn from the known ones, or where there is none the share itself.
func TestCaught(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	known, left := make([]float64, 4000), make([]float64, 200)
	for i := range known {
		known[i], left[i%200] = rng.NormFloat64(), rng.NormFloat64()-1
	}
	slices.Sort(known)
	slices.Sort(left)
	for _, tt := range []struct {
		share float64
		n     int
	}{{0.05, 0}, {0.05, 20}, {0.05, 200}, {0.2, 24}} {
		const draws = 2000
		want := 0.
		for range draws {
			threshold := known[int(tt.share*float64(len(known)))]
			if tt.n > 0 {
				var scores []float64
				for range tt.n {
					scores = append(scores, known[rng.IntN(len(known))])
				}
				slices.Sort(scores)
				threshold = detector.Threshold(scores, 1-tt.share)
			}
			at, _ := slices.BinarySearch(left, threshold)
			want += float64(at) / 200 / draws
		}
		if got := caught(known, left, []float64{tt.share}, tt.n); math.Abs(got[0]-want) > 0.015 {
			t.Errorf("%g with %d calibration images: %g caught, want %g", tt.share, tt.n, got[0], want)
		}
	}
}

// TestFewCalibrate: where no threshold for 5% will exist, nothing is said of it.
func TestFewCalibrate(t *testing.T) {
	o := quick(nearTwins(t, 4, 45)) // 18 images calibrate
	_, result, err := Train(t.Context(), o)
	if err != nil || result.Assessment == nil {
		t.Fatal(err, result)
	}
	if a := result.Assessment; slices.Contains(a.FalseAlarms, 0.05) || !slices.Contains(a.FalseAlarms, 0.07) || a.Caught != 0 || len(a.Curve) != len(a.FalseAlarms) || result.Threshold != nil {
		t.Errorf("%d images calibrate: %+v", result.Rows.Calibration, a)
	}
	if i := result.Assessment.Interval; i == nil || !(0 <= i[0] && i[0] < result.Assessment.AUROC && result.Assessment.AUROC < i[1] && i[1] <= 1) {
		t.Errorf("interval %v around %g", i, result.Assessment.AUROC)
	}
}

// TestTakeNearest: of four classes one more takes a quarter of what the nearest took, and a
// class that is told surely stays so. What is caught falls by one factor.
func TestTakeNearest(t *testing.T) {
	of := func(aurocs ...float64) *detector.Assessment {
		a := &detector.Assessment{FalseAlarms: []float64{0.05}, Classes: map[string]detector.AssessedClass{}}
		for i, v := range aurocs {
			a.Classes[string(rune('a'+i))] = detector.AssessedClass{AUROC: v, Curve: []float64{v - 0.4}}
		}
		return a
	}
	data := &Data{Table: &features.Table{Classes: []string{"a", "b", "c", "d"}}}
	a := of(0.4, 0.7, 0.7, 1)
	data.takeNearest(a, of(0.6, 0.8, 0.74, 1).Classes, 4)
	data.average(a)
	if c := a.Classes; math.Abs(c["a"].AUROC-0.35) > 1e-9 || math.Abs(c["c"].AUROC-0.69) > 1e-9 || c["d"].AUROC != 1 || c["a"].Caught != 0 || math.Abs(a.Caught-(0.3-0.085/4)) > 1e-9 {
		t.Errorf("%+v", a)
	}
}

// TestFreshParts: each row of a class is in one part, groups stay together, and a class of one
// group is in none.
func TestFreshParts(t *testing.T) {
	data, err := Open(t.Context(), quick(nearTwins(t, 3, 40)))
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	data.groups = make([]int, len(data.Labels))
	for row, y := range data.Labels {
		data.groups[row] = row / 2
		if y == 2 {
			data.groups[row] = 1000
		}
	}
	seen, partOf := map[int]bool{}, map[int]int{}
	for i, part := range data.freshParts(5) {
		for _, row := range part {
			if other, ok := partOf[data.groups[row]]; seen[row] || ok && other != i || data.Labels[row] == 2 {
				t.Errorf("row %d of group %d is in part %d, its group in %d", row, data.groups[row], i, other)
			}
			seen[row], partOf[data.groups[row]] = true, i
		}
	}
	want := 0
	for _, row := range data.train.Index {
		if data.Labels[row] != 2 {
			want++
		}
	}
	if len(seen) != want {
		t.Errorf("%d rows of %d", len(seen), want)
	}
}

// TestHoldOutGroups: with many classes groups of them are left out, and each class
// once.
func TestHoldOutGroups(t *testing.T) {
	o := quick(nearTwins(t, 23, 12))
	_, result, err := Train(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if a := result.Assessment; a == nil || len(a.Classes) != 23 {
		t.Errorf("assessment %+v", a)
	}
}

// TestFixedWeights: what is too little for class hold-out gets fixed weights, and
// the result says so.
func TestFixedWeights(t *testing.T) {
	for name, features := range map[string]string{"two classes": nearTwins(t, 2, 200), "few images": nearTwins(t, 4, 8), "skipped": nearTwins(t, 5, 100)} {
		o := quick(features)
		o.NoHoldOut = name == "skipped"
		d, result, err := Train(t.Context(), o)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d.ScoreName() != detector.JoinedScore || d.Scoring.Guard == nil || len(d.Scoring.Parts) != len(fixedWeights) || result.Assessment != nil {
			t.Errorf("%s: %+v", name, d.Scoring)
		}
		if says := strings.Contains(result.NoAssessment, "fixed weights"); says == o.NoHoldOut {
			t.Errorf("%s: %q", name, result.NoAssessment)
		}
	}
	o := quick(nearTwins(t, 5, 100))
	o.Validation.None = true
	d, result, err := Train(t.Context(), o)
	if err != nil || d.ScoreName() != detector.HeadScore || !strings.Contains(result.NoAssessment, "validation") {
		t.Errorf("without validation images: %v, %q", err, result.NoAssessment)
	}
}

func TestHoldOutStops(t *testing.T) {
	o := quick(nearTwins(t, 3, 50))
	data, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	own, err := data.TrainHead(t.Context(), 0, data.Options.Head, data.Options.Train)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := data.FitJoined(ctx, 0, own); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestFoldsAreNotCorrected: a fold of the calibration has the weights that class hold-out
// gives it, without the correction of an assessment that nobody reads.
func TestFoldsAreNotCorrected(t *testing.T) {
	stages := map[string]int{}
	o := quick(nearTwins(t, 4, 100))
	o.Stage = func(what string, done, _ int) { stages[what] = done }
	data, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	own, err := data.TrainHead(t.Context(), 0, data.Options.Head, data.Options.Train)
	if err != nil {
		t.Fatal(err)
	}
	whole, err := data.FitJoined(t.Context(), 0, own)
	if err != nil {
		t.Fatal(err)
	}
	const nearest = "classes held out with the nearest"
	if n := stages[nearest]; n != 4 {
		t.Errorf("%d folds without the nearest of 4 classes", n)
	}
	data.isFold = true
	delete(stages, nearest)
	fold, err := data.FitJoined(t.Context(), 0, own)
	if err != nil {
		t.Fatal(err)
	}
	if stages[nearest] > 0 {
		t.Error("a fold is corrected")
	}
	for i, p := range whole.Scoring.Parts {
		if fold.Scoring.Parts[i].Name != p.Name || fold.Scoring.Parts[i].Scale != p.Scale {
			t.Errorf("part %s of a fold is another", p.Name)
		}
	}
}

// TestWeigh: the best candidates count most, and the density always.
func TestWeigh(t *testing.T) {
	w := weigh(candidates, map[string]float64{"gen": 0.9, "vim-s": 0.87, "vra-s": 0.8, detector.DensityPart: 0.5}, 10)
	if len(w) != 3 || math.Abs(w["gen"]/w["vim-s"]-math.E) > 1e-9 || math.Abs(w["gen"]+w["vim-s"]-sumWeights) > 1e-9 || w[detector.DensityPart] != always {
		t.Errorf("weights %v", w)
	}
	// With four folds half of the weight is that of fixed weights, with the same sum.
	four := weigh(candidates, map[string]float64{"gen": 0.9, "vim-s": 0.87}, 4)
	sum := 0.
	for _, v := range four {
		sum += v
	}
	if math.Abs(sum-sumWeights-always) > 1e-9 || math.Abs(four["fdbd-s"]-(sumWeights+always)/5/2) > 1e-9 || four["vim-s"] >= w["vim-s"] {
		t.Errorf("weights of four folds %v", four)
	}
}

// Parts that are left out have no weight, with class hold-out and without.
func TestWithoutParts(t *testing.T) {
	for _, fixed := range []bool{false, true} {
		o := quick(nearTwins(t, 4, 60))
		o.NoHoldOut, o.WithoutParts = fixed, []string{detector.DensityPart, detector.DecisionPart, detector.GuardPart}
		d, _, err := Train(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if len(d.Scoring.Parts) == 0 || d.Scoring.Guard != nil {
			t.Errorf("%+v", d.Scoring)
		}
		for _, p := range d.Scoring.Parts {
			if slices.Contains(o.WithoutParts, p.Name) {
				t.Errorf("%s is a part", p.Name)
			}
		}
	}
}
