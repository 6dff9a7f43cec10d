package pipeline

import (
	"context"
	"encoding/csv"
	"errors"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"mlrbfn/extractor"
	"mlrbfn/internal/npy"
	"mlrbfn/metrics"
)

// clouds writes a feature set as a stranger would, without features.json: n
// points in the plane around each of the centres, labelled by their order; nil
// labels leave labels.npy out, a −1 among them says no label.
func clouds(t *testing.T, seed uint64, n int, labels []int64, centres ...[2]float64) string {
	t.Helper()
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(seed, 7))
	var x []float32
	var y []int64
	for i := range n * len(centres) {
		c := i % len(centres)
		x = append(x, float32(centres[c][0]+0.3*rng.NormFloat64()), float32(centres[c][1]+0.3*rng.NormFloat64()))
		if labels != nil {
			y = append(y, labels[c])
		}
	}
	if err := npy.WriteFile(filepath.Join(dir, "features.npy"), x, len(x)/2, 2); err != nil {
		t.Fatal(err)
	}
	if labels != nil {
		if err := npy.WriteFile(filepath.Join(dir, "labels.npy"), y, len(y)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// quick are options that train in a moment.
func quick(dirs ...string) TrainOptions {
	o := TrainOptions{Features: dirs}
	o.Head.Layers, o.Head.Centroids, o.Head.Projection = 2, 8, 4
	o.Train.Epochs, o.Train.LR, o.Train.Batch = 20, 0.02, 32
	return o
}

var (
	twoLabels = []int64{0, 1}
	two       = [][2]float64{{0, 0}, {4, 0}}
)

func TestTrainSharesOutTheRows(t *testing.T) {
	main, extra := clouds(t, 1, 100, twoLabels, two...), clouds(t, 2, 20, twoLabels, two...)
	unlabelled := clouds(t, 3, 60, nil, two...)
	mixed := clouds(t, 4, 50, []int64{0, 1, -1}, [2]float64{0, 0}, [2]float64{4, 0}, [2]float64{9, 9})
	with := func(dirs []string, change func(*TrainOptions)) TrainOptions {
		o := quick(dirs...)
		change(&o)
		return o
	}
	none := Share{None: true}
	tests := map[string]struct {
		opts     TrainOptions
		want     RowCount
		warns    string
		noThresh bool
	}{
		"by default": {opts: quick(main), want: RowCount{160, 20, 20, 0}},
		"fractions": {
			opts: with([]string{main}, func(o *TrainOptions) { o.Validation.Fraction, o.Calibration.Fraction = 0.25, 0.4 }),
			want: RowCount{70, 50, 80, 0},
		},
		"nothing set aside": {
			opts: with([]string{main}, func(o *TrainOptions) { o.Validation, o.Calibration = none, none }),
			want: RowCount{200, 0, 0, 0}, warns: "too few", noThresh: true,
		},
		"sets of their own": {
			opts: with([]string{main}, func(o *TrainOptions) { o.Validation.Features, o.Calibration.Features = extra, unlabelled }),
			want: RowCount{200, 40, 120, 0},
		},
		"calibration images that are copies": {
			opts: with([]string{main}, func(o *TrainOptions) { o.Calibration.Features = clouds(t, 1, 100, twoLabels, two...) }),
			want: RowCount{180, 20, 200, 0}, warns: "200 of 200 calibration images",
		},
		"validation images that calibrate again": {
			opts: with([]string{main}, func(o *TrainOptions) {
				o.Validation.Features, o.Calibration.Features = extra, clouds(t, 2, 20, twoLabels, two...)
			}),
			want: RowCount{200, 40, 40, 0}, warns: "40 of 40 calibration images",
		},
		"two sets": {opts: quick(main, extra), want: RowCount{192, 24, 24, 0}},
		"rows without a label": {
			opts: quick(mixed), want: RowCount{80, 10, 10, 50}, warns: "without a label", noThresh: true,
		},
		"a target that few images reach": {
			opts: with([]string{main}, func(o *TrainOptions) { o.TargetTPR = 0.8; o.Calibration.Fraction = 0.02 }),
			want: RowCount{176, 20, 4, 0},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d, result, err := Train(context.Background(), tt.opts)
			if err != nil {
				t.Fatal(err)
			}
			if result.Rows != tt.want || d.Training.Rows != tt.want || len(d.Scores) != tt.want.Calibration {
				t.Errorf("rows %+v, want %+v", result.Rows, tt.want)
			}
			if warnings := strings.Join(result.Warnings, "\n"); tt.warns == "" && warnings != "" || !strings.Contains(warnings, tt.warns) {
				t.Errorf("warnings %q, want %q", warnings, tt.warns)
			}
			if (result.Threshold == nil) != tt.noThresh || math.IsInf(d.Threshold, -1) != tt.noThresh {
				t.Errorf("threshold %v, %g", result.Threshold, d.Threshold)
			}
			if (result.ValAccuracy == nil) != (tt.want.Validation == 0) {
				t.Errorf("validation accuracy %v", result.ValAccuracy)
			}
			// It learned, and what is far from both clouds is of neither.
			v := d.Verdicts([]float32{0, 0, 4, 0, 2, 8})
			if v[0].Class != "0" || v[1].Class != "1" || v[2].Score >= min(v[0].Score, v[1].Score) {
				t.Errorf("verdicts %+v", v)
			}
			if !tt.noThresh && (v[0].OOD || v[1].OOD || !v[2].OOD) {
				t.Errorf("verdicts %+v at threshold %g", v, d.Threshold)
			}
		})
	}
}

// TestTrainSaysThatItLearnedNothing: of features that are all the same no head
// can tell three classes apart; of one class there is nothing to tell.
func TestTrainSaysThatItLearnedNothing(t *testing.T) {
	same := [2]float64{1e12, 1e12} // where the noise is lost in float32
	for _, labels := range [][]int64{{0}, {0, 1, 2}} {
		o := quick(clouds(t, 1, 40, labels, slices.Repeat([][2]float64{same}, len(labels))...))
		_, result, err := Train(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(strings.Join(result.Warnings, "\n"), "learned nothing"); got != (len(labels) > 1) {
			t.Errorf("%d classes: warnings %q", len(labels), result.Warnings)
		}
	}
}

func TestTrainRefuses(t *testing.T) {
	good, unlabelled := clouds(t, 1, 20, twoLabels, two...), clouds(t, 1, 20, nil, two...)
	nan := clouds(t, 1, 20, twoLabels, two...)
	if err := npy.WriteFile(filepath.Join(nan, "features.npy"), append(make([]float32, 79), float32(math.NaN())), 40, 2); err != nil {
		t.Fatal(err)
	}
	wide := t.TempDir()
	if err := npy.WriteFile(filepath.Join(wide, "features.npy"), make([]float32, 30), 10, 3); err != nil {
		t.Fatal(err)
	}
	third := clouds(t, 1, 20, []int64{0, 2}, two...)
	absent := filepath.Join(t.TempDir(), "absent")
	tests := map[string]struct {
		opts TrainOptions
		says string
	}{
		"no features":          {quick(), "no features"},
		"absent":               {quick(absent), absent},
		"no labels":            {quick(unlabelled), "no labels"},
		"not finite":           {quick(good, nan), "row 39"},
		"other dimension":      {quick(good, wide), wide},
		"validation class":     {func() TrainOptions { o := quick(good); o.Validation.Features = third; return o }(), `"2"`},
		"validation unlabeled": {func() TrainOptions { o := quick(good); o.Validation.Features = unlabelled; return o }(), "no labels"},
		"calibration absent":   {func() TrainOptions { o := quick(good); o.Calibration.Features = absent; return o }(), absent},
		"nothing left":         {func() TrainOptions { o := quick(good); o.Validation.Fraction = 0.95; return o }(), "nothing is left"},
		"target":               {func() TrainOptions { o := quick(good); o.TargetTPR = 1; return o }(), "target"},
		"norm":                 {func() TrainOptions { o := quick(good); o.Head.Norm = 0.3; return o }(), "norm"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if _, _, err := Train(context.Background(), tt.opts); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want %q", err, tt.says)
			}
		})
	}
}

// TestEvaluateFigures checks results.csv against the scores that are written
// beside it.
func TestEvaluateFigures(t *testing.T) {
	train := quick(clouds(t, 1, 100, twoLabels, two...))
	train.Seeds, train.Calibration.None, train.Linear = []uint64{0, 1}, true, train.Train
	out := t.TempDir()
	opts := EvaluateOptions{
		Train: train, ID: clouds(t, 2, 30, twoLabels, two...), Out: out,
		OOD: []OODSet{
			{Near, "between", clouds(t, 3, 20, nil, [2]float64{2, 0})},
			{Near, "beside", clouds(t, 4, 25, nil, [2]float64{0, 2})},
			{Far, "away", clouds(t, 5, 30, nil, [2]float64{30, 30})},
		},
	}
	left := map[string]string{}
	opts.Warn = func(text string) {
		method, why, _ := strings.Cut(text, " is left out: ")
		left[method] = why
	}
	figures, err := Evaluate(context.Background(), opts)
	if err != nil {
		t.Fatal(err)
	}
	methods, _ := overview(figures)
	for _, m := range Methods {
		if slices.Contains(methods, m) == (left[m] != "") {
			t.Errorf("%s: not either measured or left out: %q", m, left[m])
		}
	}
	if len(left) != 1 || !strings.Contains(left["temperature"], "classified right") { // the classes are far apart
		t.Errorf("left out: %v", left)
	}
	find := func(method, seed, group, dataset string) Figures {
		i := slices.IndexFunc(figures, func(f Figures) bool {
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
				f := find(method, seed, Near, set)
				if want := metrics.AUROC(id, read(set)); f.AUROC != want || f.NID != 60 || f.NOOD != len(read(set)) {
					t.Errorf("%s: %+v, want AUROC %g", method, f, want)
				}
				sum += f.AUROC
			}
			mean := find(method, seed, Near, "mean")
			if mean.AUROC != sum/2 || mean.NOOD != 45 {
				t.Errorf("%s: the mean of near is %+v, want %g", method, mean, sum/2)
			}
			nearMeans = append(nearMeans, mean.AUROC)
			if f := find(method, seed, Far, "away"); f.IDAcc < 0.9 || (method == "mlrbfn" || method == "ensemble") && f.AUROC < 0.99 {
				t.Errorf("%s: %+v", method, f)
			}
		}
		mean, half := (nearMeans[0]+nearMeans[1])/2, math.Abs(nearMeans[0]-nearMeans[1])/2
		if got := find(method, "mean", Near, "mean").AUROC; math.Abs(got-mean) > 1e-15 {
			t.Errorf("%s: mean over seeds %g, want %g", method, got, mean)
		}
		if got := find(method, "std", Near, "mean").AUROC; math.Abs(got-half) > 1e-15 {
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
	if got := find("ensemble(mds,msp)", "0", Far, "away").AUROC; got < 0.9 {
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

	file, err := os.Open(filepath.Join(out, "results.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	records, err := csv.NewReader(file).ReadAll()
	if err != nil || len(records) != len(figures)+1 || !slices.Equal(records[0], resultColumns) {
		t.Fatalf("%d rows, %v", len(records), err)
	}
	for i, f := range figures {
		if got, err := strconv.ParseFloat(records[i+1][6], 64); err != nil || got != f.AUROC {
			t.Errorf("row %d: %v", i, records[i+1])
		}
	}
}

func TestEvaluateRefuses(t *testing.T) {
	good := clouds(t, 1, 20, twoLabels, two...)
	set := func(name string) []OODSet { return []OODSet{{Far, name, good}} }
	tests := map[string]EvaluateOptions{
		"unknown method": {Methods: []string{"magic"}, OOD: set("a")},
		"no strangers":   {},
		"a name twice":   {OOD: append(set("a"), OODSet{Near, "a", good})},
		"the name id":    {OOD: set("id")},
		"a path":         {OOD: set("../a")},
		"detector of other classes": {OOD: set("a"), Detector: func() *Detector {
			d := detectorOf(1)
			d.Heads[0].Layers[0].In = 2
			return d
		}()},
	}
	for name, opts := range tests {
		opts.Train, opts.ID, opts.Out = quick(good), good, t.TempDir()
		if _, err := Evaluate(context.Background(), opts); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestListPaths(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a/2.png", "a/1.png", "top.png", "notes.txt", "empty/readme.txt"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, nil, 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.ToSlash(filepath.Join(dir, name)) }
	tests := map[string]struct {
		paths []string
		want  []string
		err   error
	}{
		"a folder":               {paths: []string{"."}, want: []string{"a/1.png", "a/2.png", "top.png"}},
		"files as named":         {paths: []string{"top.png", "notes.txt"}, want: []string{"top.png", "notes.txt"}},
		"in the order of naming": {paths: []string{"top.png", "a"}, want: []string{"top.png", "a/1.png", "a/2.png"}},
		"an absent one of two":   {paths: []string{"gone.png", "top.png"}, want: []string{"gone.png", "top.png"}},
		"absent":                 {paths: []string{"gone.png", "gone"}, err: fs.ErrNotExist},
		"nothing in it":          {paths: []string{"empty"}, err: extractor.ErrNoImages},
		"nothing in one of two":  {paths: []string{"empty", "top.png"}, want: []string{"top.png"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var paths, want, got []string
			for _, p := range tt.paths {
				paths = append(paths, in(p))
			}
			for _, p := range tt.want {
				want = append(want, in(p))
			}
			items, err := listPaths(t.Context(), paths, "", true)
			for _, item := range items {
				got = append(got, pathOf(item))
			}
			if !errors.Is(err, tt.err) || tt.err == nil && !slices.Equal(got, want) {
				t.Errorf("got %v, %v; want %v, %v", got, err, want, tt.err)
			}
		})
	}
}

func TestLogAdd(t *testing.T) {
	inf := math.Inf(-1)
	for _, tt := range [][3]float64{{0, 0, math.Ln2}, {-1000, -1000, -1000 + math.Ln2}, {inf, -3, -3}, {-3, inf, -3}, {inf, inf, inf}} {
		if got := logAdd(tt[0], tt[1]); got != tt[2] {
			t.Errorf("log(e^%g + e^%g) = %g, want %g", tt[0], tt[1], got, tt[2])
		}
	}
}

// TestEvaluateSaysThatItTestsOnTrainingImages: a copy of them under another name.
func TestEvaluateSaysThatItTestsOnTrainingImages(t *testing.T) {
	for seed, leaks := range map[uint64]bool{1: true, 2: false} {
		train := quick(clouds(t, 1, 100, twoLabels, two...))
		train.Calibration.None = true
		var warnings []string
		_, err := Evaluate(context.Background(), EvaluateOptions{
			Train: train, ID: clouds(t, seed, 100, twoLabels, two...), Out: t.TempDir(), Methods: []string{"knn"},
			OOD:  []OODSet{{Far, "away", clouds(t, 3, 5, nil, [2]float64{9, 9})}},
			Warn: func(text string) { warnings = append(warnings, text) },
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.ContainsFunc(warnings, func(w string) bool { return strings.HasPrefix(w, "200 of 200") }); got != leaks {
			t.Errorf("leaks %v: warnings %q", leaks, warnings)
		}
	}
}
