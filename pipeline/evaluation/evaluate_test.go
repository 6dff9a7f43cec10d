package evaluation

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// TestEvaluateFigures checks results.csv against the scores that are written
// beside it.
func TestEvaluateFigures(t *testing.T) {
	t.Parallel()
	train := quick(pipetest.Clouds(t, 1, 100, pipetest.TwoLabels, pipetest.Two...))
	train.Seeds = []uint64{0, 1}
	out := t.TempDir()
	opts := Options{
		Train: train, ID: pipetest.Clouds(t, 2, 30, pipetest.TwoLabels, pipetest.Two...), Out: out,
		OOD: []OODSet{
			{metrics.Near, "between", pipetest.Clouds(t, 3, 20, nil, [2]float64{2, 0})},
			{metrics.Near, "beside", pipetest.Clouds(t, 4, 25, nil, [2]float64{0, 2})},
			{metrics.Far, "away", pipetest.Clouds(t, 5, 30, nil, [2]float64{30, 30})},
		},
	}
	left := map[string]string{}
	opts.Warn = func(text string) {
		if method, why, found := strings.Cut(text, " is left out: "); found {
			left[method] = why
		}
	}
	figures, err := Evaluate(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	methods := methodsOf(figures)
	for _, m := range detector.ScoreNames {
		if slices.Contains(methods, m) == (left[m] != "") {
			t.Errorf("%s: not either measured or left out: %q", m, left[m])
		}
	}
	if len(left) != 1 || !strings.Contains(left["temperature"], "classified correctly") { // the classes are far apart
		t.Errorf("left out: %v", left)
	}
	find := func(method, seed, group, dataset string) metrics.Measurement {
		i := slices.IndexFunc(figures, func(f metrics.Measurement) bool {
			return f.Method == method && f.Seed == seed && f.Group == group && f.Dataset == dataset
		})
		if i < 0 {
			t.Fatalf("no row %s %s %s %s", method, seed, group, dataset)
		}
		return figures[i]
	}
	for _, method := range methods {
		var nearMeans []float64
		for _, seed := range []string{"0", "1"} {
			read := func(name string) []float64 {
				s, _, err := npy.Read[float64](filepath.Join(out, "scores", method, seed, name+".npy"))
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			id := read("id")
			var sum float64
			for _, set := range []string{"between", "beside"} {
				f := find(method, seed, metrics.Near, set)
				if want := metrics.AUROC(id, read(set)); f.AUROC != want || f.NID != 60 || f.NOOD != len(read(set)) {
					t.Errorf("%s: %+v, want AUROC %g", method, f, want)
				}
				sum += f.AUROC
			}
			mean := find(method, seed, metrics.Near, "mean")
			if mean.AUROC != sum/2 || mean.NOOD != 45 {
				t.Errorf("%s: the mean of near is %+v, want %g", method, mean, sum/2)
			}
			nearMeans = append(nearMeans, mean.AUROC)
			if f := find(method, seed, metrics.Far, "away"); f.IDAcc < 0.9 || (method == "mlrbfn" || method == "ensemble") && f.AUROC < 0.99 {
				t.Errorf("%s: %+v", method, f)
			}
		}
		mean, half := (nearMeans[0]+nearMeans[1])/2, math.Abs(nearMeans[0]-nearMeans[1])/2
		if got := find(method, "mean", metrics.Near, "mean").AUROC; math.Abs(got-mean) > 1e-15 {
			t.Errorf("%s: mean over seeds %g, want %g", method, got, mean)
		}
		if got := find(method, "std", metrics.Near, "mean").AUROC; math.Abs(got-half) > 1e-15 {
			t.Errorf("%s: deviation over seeds %g, want %g (ddof 0)", method, got, half)
		}
	}

	// A later run with fewer methods leaves nothing of the others behind; what
	// is not its own it does not touch.
	note := filepath.Join(out, "scores", "msp", "note.txt")
	if err := os.WriteFile(note, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	opts.Methods = []string{"mlrbfn", "ensemble(mds,msp)"}
	if figures, err = Evaluate(context.Background(), opts); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(out, "scores", "msp", "*")); err != nil || !slices.Equal(left, []string{note}) {
		t.Errorf("left: %v, %v", left, err)
	}
	// Those of an ensemble are the parts' scores, scaled by the validation
	// rows alone and added.
	if got := find("ensemble(mds,msp)", "0", metrics.Far, "away").AUROC; got < 0.9 {
		t.Errorf("an ensemble's AUROC is %g", got)
	}
	opts.Methods = []string{"mlrbfn", "temperature"}
	if _, err := Evaluate(context.Background(), opts); err == nil || !strings.Contains(err.Error(), "temperature") {
		t.Errorf("a method that cannot be fitted, named: %v", err)
	}
	theirs := t.TempDir()
	if err := os.WriteFile(filepath.Join(theirs, "results.csv"), []byte("a,b\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	elsewhere := opts
	elsewhere.Out = theirs
	if _, err := Evaluate(context.Background(), elsewhere); err == nil {
		t.Error("somebody's results.csv was replaced")
	}
	cancelled, cancel := context.WithCancel(context.Background())
	opts.Methods, opts.Progress = []string{"msp"}, func(what string, done, total int) {
		if strings.Contains(what, "scoring") {
			cancel()
		}
	}
	if _, err := Evaluate(cancelled, opts); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled while scoring: %v", err)
	}
	opts.Methods, opts.Progress = []string{"mlrbfn"}, nil
	if figures, err = Evaluate(context.Background(), opts); err != nil {
		t.Fatal(err)
	}

	read, err := metrics.ReadResults(filepath.Join(out, "results.csv"))
	if err != nil || !slices.Equal(read, figures) {
		t.Errorf("results.csv has %v, %v; want %v", read, err, figures)
	}
}

func TestEvaluateRefuses(t *testing.T) {
	t.Parallel()
	good := pipetest.Clouds(t, 1, 20, pipetest.TwoLabels, pipetest.Two...)
	set := func(name string) []OODSet { return []OODSet{{metrics.Far, name, good}} }
	tests := map[string]Options{
		"unknown method": {Methods: []string{"magic"}, OOD: set("a")},
		"no OOD sets":    {},
		"a name twice":   {OOD: append(set("a"), OODSet{metrics.Near, "a", good})},
		"the name id":    {OOD: set("id")},
		"a path":         {OOD: set("../a")},
		"detector of other classes": {OOD: set("a"), Detector: func() *detector.Detector {
			return pipetest.RandomDetector(rand.New(rand.NewPCG(1, 1)), 2, 1, 1, 2, true)
		}()},
	}
	for name, opts := range tests {
		opts.Train, opts.ID, opts.Out = quick(good), good, t.TempDir()
		if _, err := Evaluate(context.Background(), opts); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestEvaluateSaysThatItTestsOnTrainingImages: a copy of them under another name.
func TestEvaluateSaysThatItTestsOnTrainingImages(t *testing.T) {
	t.Parallel()
	for seed, leaks := range map[uint64]bool{1: true, 2: false} {
		train := quick(pipetest.Clouds(t, 1, 100, pipetest.TwoLabels, pipetest.Two...))
		var found []Leak
		_, err := Evaluate(context.Background(), Options{
			Train: train, ID: pipetest.Clouds(t, seed, 100, pipetest.TwoLabels, pipetest.Two...), Out: t.TempDir(), Methods: []string{"knn"},
			OOD:    []OODSet{{metrics.Far, "away", pipetest.Clouds(t, 3, 5, nil, [2]float64{9, 9})}},
			Leaked: func(leaks []Leak) { found = leaks },
		})
		if err != nil {
			t.Fatal(err)
		}
		want := []Leak(nil)
		if leaks {
			want = []Leak{{"train", "id", 200, 200, 200, 200}}
		}
		if !slices.Equal(found, want) {
			t.Errorf("leaks %v, want %v", found, want)
		}
	}
}

// TestEvaluateComparesAllPairsOfSets: images of the validation set, of two sets of
// OOD images and of the training set of the detector are found again. A detector's word
// for where that set lies does not count without its content.
func TestEvaluateComparesAllPairsOfSets(t *testing.T) {
	t.Parallel()
	clouds := func(seed uint64, n int) string {
		return pipetest.Clouds(t, seed, n, pipetest.TwoLabels, pipetest.Two...)
	}
	d, _, err := training.Train(t.Context(), quick(clouds(5, 100)))
	if err != nil {
		t.Fatal(err)
	}
	train := quick(clouds(1, 100))
	train.Validation.Features = clouds(2, 50)
	var found []Leak
	var warned string
	opts := Options{
		Train: train, ID: clouds(2, 50), Out: t.TempDir(), Methods: []string{"head"}, Detector: d,
		OOD:    []OODSet{{metrics.Near, "a", clouds(3, 20)}, {metrics.Far, "b", clouds(3, 20)}, {metrics.Far, "c", clouds(5, 100)}},
		Leaked: func(leaks []Leak) { found = leaks }, Warn: func(text string) { warned += text },
	}
	want := []Leak{{"validation", "id", 100, 100, 100, 100}, {"a", "b", 40, 40, 40, 40}, {"c", "detector", 200, 200, 200, 200}}
	for _, content := range []string{d.Training.Sets[0].Content, "other"} {
		d.Training.Sets[0].Content, opts.Out = content, t.TempDir()
		if _, err = Evaluate(t.Context(), opts); err != nil {
			t.Fatal(err)
		}
		if content == "other" {
			want = want[:2]
		}
		if !slices.Equal(found, want) || strings.Contains(warned, "not compared") != (content == "other") {
			t.Errorf("leaks %v, want %v; warned %q", found, want, warned)
		}
	}
}

// quick are options that train in a moment.
func quick(dirs ...string) training.Options {
	o := training.Options{Features: dirs}
	pipetest.Small(&o.Head, &o.Train)
	return o
}
