package pipeline

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// TestDiscover: of a folder with two new kinds both are found, in groups of their own; a
// folder without anything new gives next to nothing; copies count once.
func TestDiscover(t *testing.T) {
	train := pipetest.Clouds(t, 1, 200, pipetest.TwoLabels, pipetest.Two...)
	o := quick(train)
	o.Calibration, o.NoHoldOut = Share{Fraction: .3}, true
	d, _, err := Train(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	const each = 60
	known, fresh := pipetest.Clouds(t, 2, each, nil, pipetest.Two...), pipetest.Clouds(t, 3, each, nil, [2]float64{-2, 4}, [2]float64{6, -5})
	opts := DiscoverOptions{Detect: DetectOptions{Detector: d}, Features: []string{known, fresh, known}}
	r, err := Discover(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if r.Images != 6*each || r.Copies != 2*each || r.Calibration != len(d.CalibrationScores) || r.Weight == 0 || r.FDR != DefaultFDR || len(r.Groups) < 2 || len(r.Notes) > 0 {
		t.Errorf("%d images, %d copies, %d calibration images, weight %g, %d groups, %q", r.Images, r.Copies, r.Calibration, r.Weight, len(r.Groups), r.Notes)
	}
	if r.NewAtLeast < 2*each*8/10 || r.NewAtLeast > 2*each {
		t.Errorf("at least %d of %d are new", r.NewAtLeast, 2*each)
	}
	wrong, missed := 0, 0
	for i, f := range r.Found {
		isNew := i >= 2*each && i < 4*each
		switch {
		case f.New && !isNew:
			wrong++
		case !f.New && isNew:
			missed++
		case f.Group >= 0 && (!f.New || isNew && f.Group != r.Found[2*each+i%2].Group):
			t.Errorf("image %d is in group %d", i, f.Group)
		}
		if f.New != (f.QValue <= r.FDR) {
			t.Errorf("image %d: q = %g, new: %t", i, f.QValue, f.New)
		}
		if i >= 4*each && (f.Together != r.Found[i-4*each].Together || f.New != r.Found[i-4*each].New) {
			t.Errorf("image %d is not as its copy", i)
		}
		if want := pipetest.Verdicts(t, d, pipetestRow(t, opts.Features, i))[0]; f.Verdict != want {
			t.Fatalf("image %d: %v, by itself %v", i, f.Verdict, want)
		}
	}
	if missed > 2 || wrong > 2*2*each/5 {
		t.Errorf("%d of the new images are missed, %d known ones are called new", missed, wrong)
	}
	for _, g := range r.Groups[:2] {
		if g.Images < each-4 || len(g.Typical) != mostTypical || !slices.Contains(d.Classes, g.Nearest) || !slices.Equal(r.Found[g.Typical[0]].Features, pipetestRow(t, opts.Features, g.Typical[0])) {
			t.Errorf("%+v", g)
		}
	}
	listed, wrong := 0, 0 // without copies
	for i, f := range r.Found[:4*each] {
		if f.New {
			if listed++; i < 2*each {
				wrong++
			}
		}
	}
	if r.Listed != listed || r.ListedKnown < wrong || r.ListedKnown > 2*wrong+10 {
		t.Errorf("%d are listed, want %d, of which at most %d are known, and %d are", r.Listed, listed, r.ListedKnown, wrong)
	}
	for i, b := range r.Bounds {
		known, found := 0, 0
		for i, f := range r.Found[:4*each] {
			if f.Together <= b.Together {
				if found++; i < 2*each {
					known++
				}
			}
		}
		if found != b.Found || known > b.Known || b.Known > b.Found || i > 0 && (b.Found <= r.Bounds[i-1].Found || b.Together < r.Bounds[i-1].Together) {
			t.Errorf("bounds %v, %v", r.Bounds[i-1:i+1], b)
		}
	}

	opts.Features = []string{known}
	if r, err = Discover(t.Context(), opts); err != nil || r.New > 2*each/10 || r.NewAtLeast > 2*each/20 {
		t.Errorf("nothing is new: %d are, at least %d, %v", r.New, r.NewAtLeast, err)
	}
	set, err := features.Open(t.Context(), fresh)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	opts.Features, opts.Rows = nil, set.Row(0)
	if r, err = Discover(t.Context(), opts); err != nil || len(r.Found) != 1 || r.Found[0].Group != -1 || !r.Found[0].OOD {
		t.Errorf("one image: %+v, %v", r, err)
	}
}

// pipetestRow returns the i-th row of feature sets.
func pipetestRow(t *testing.T, dirs []string, i int) []float32 {
	t.Helper()
	for _, dir := range dirs {
		set, err := features.Open(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		defer set.Close()
		if i < set.N {
			return slices.Clone(set.Row(i))
		}
		i -= set.N
	}
	t.Fatal("no such row")
	return nil
}

// TestDiscoverRefuses: without calibration images of its own no detector promises
// anything, nor do others than it was calibrated on.
func TestDiscoverRefuses(t *testing.T) {
	dir := pipetest.Clouds(t, 1, 60, pipetest.TwoLabels, pipetest.Two...)
	train := func(change func(*TrainOptions)) *Detector {
		o := quick(dir)
		o.NoHoldOut = true
		change(&o)
		d, _, err := Train(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	folder := pipetest.Clouds(t, 2, 40, nil, pipetest.Two...)
	discover := func(d *Detector) (*Discovery, error) {
		return Discover(t.Context(), DiscoverOptions{Detect: DetectOptions{Detector: d}, Features: []string{folder}})
	}
	if _, err := discover(train(func(o *TrainOptions) { o.Calibration.Folds = 3 })); OptionOf(err) != "Detector" {
		t.Errorf("folds: %v", err)
	}
	// One calibration image, and none.
	r, err := discover(train(func(o *TrainOptions) { o.Calibration = Share{Fraction: .01} }))
	if err != nil || r.New > 0 || r.NewAtLeast > 0 || len(r.Notes) == 0 {
		t.Errorf("hardly any calibration images: %+v, %v", r, err)
	}
	r, err = discover(train(func(o *TrainOptions) { o.Calibration = Share{None: true} }))
	if err != nil || r.New > 0 || r.Calibration > 0 || r.Found[0].QValue != 1 || len(r.Notes) == 0 {
		t.Errorf("no calibration images: %+v, %v", r, err)
	}
	// Images of their own validate and calibrate.
	own := pipetest.Clouds(t, 4, 60, pipetest.TwoLabels, pipetest.Two...)
	d := train(func(o *TrainOptions) {
		o.Validation, o.Calibration = Share{Features: pipetest.Clouds(t, 5, 60, pipetest.TwoLabels, pipetest.Two...)}, Share{Features: own}
	})
	if r, err = discover(d); err != nil || r.Calibration != len(d.CalibrationScores) || r.Calibration < 100 || len(r.Notes) > 0 {
		t.Errorf("sets of their own: %+v, %v", r, err)
	}
	if _, err := Discover(t.Context(), DiscoverOptions{Detect: DetectOptions{Detector: d}, Rows: make([]float32, 3)}); OptionOf(err) != "Rows" {
		t.Errorf("a row and a half: %v", err)
	}
	// Features that are gone.
	d = train(func(*TrainOptions) {})
	if err := os.Rename(dir, dir+".moved"); err != nil {
		t.Fatal(err)
	}
	if _, err := discover(d); !errors.Is(err, detector.ErrTrainingSets) || OptionOf(err) != "Training" {
		t.Errorf("features are gone: %v", err)
	}
	r, err = Discover(t.Context(), DiscoverOptions{Detect: DetectOptions{Detector: d}, Features: []string{folder}, Training: []string{dir + ".moved"}})
	if err != nil || r.Images != 80 {
		t.Errorf("%v", err)
	}
	d.CalibrationScores[3] += 1
	if _, err := Discover(t.Context(), DiscoverOptions{Detect: DetectOptions{Detector: d}, Features: []string{folder}, Training: []string{filepath.Clean(dir + ".moved")}}); !errors.Is(err, detector.ErrTrainingSets) {
		t.Errorf("other calibration scores: %v", err)
	}
}

// TestDiscoverGroups: one image of each group counts, drawn by the seed, and says what the
// others are.
func TestDiscoverGroups(t *testing.T) {
	o := quick(pipetest.Clouds(t, 1, 200, pipetest.TwoLabels, pipetest.Two...))
	o.Calibration, o.NoHoldOut = Share{Fraction: .3}, true
	d, _, err := Train(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	const each = 40
	apart := [][2]float64{{-2, 4}, {6, -5}}
	opts := DiscoverOptions{Detect: DetectOptions{Detector: d}, Features: []string{pipetest.Clouds(t, 3, each, nil, apart...), pipetest.Clouds(t, 4, each, nil, apart...)}}
	alone, err := Discover(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	opts.GroupBy = `^row [1-9]\d*$` // rows 1 to 79 of both sets are pairs, and each row 0 is alone
	r, err := Discover(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if alone.Copies != 0 || r.Copies != 2*each-1 || r.New < alone.New/2 {
		t.Errorf("%d and %d count once with another; %d and %d are new", alone.Copies, r.Copies, alone.New, r.New)
	}
	drawn := [2]int{}
	for i := range 2 * each {
		a, b := r.Found[i], r.Found[2*each+i]
		if same := a.Together == b.Together && a.QValue == b.QValue && a.New == b.New && a.Group == b.Group; same != (i > 0) {
			t.Errorf("images %d: %+v, %+v", i, a, b)
		}
		// Together goes by the image that was drawn, and nearly as its own score does.
		if i > 0 && math.Abs(a.Together-a.Score) < math.Abs(a.Together-b.Score) {
			drawn[0]++
		} else {
			drawn[1]++
		}
	}
	if drawn[0] == 0 || drawn[1] == 0 {
		t.Errorf("drawn from the sets: %d", drawn)
	}
	opts.GroupBy = "frame"
	if _, err := Discover(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "GroupBy") {
		t.Error(err)
	}
}

// TestDiscoverLayers: groups are of images whose embeddings are alike, whatever their layers,
// which are longer here and of any direction.
func TestDiscoverLayers(t *testing.T) {
	create := func(seed uint64, n int, names []string, centres ...[2]float64) string {
		return pipetest.Layered(t, seed, 12, func(r *rand.Rand) float64 { return 20 * r.NormFloat64() }, n, names, centres...)
	}
	o := quick(create(1, 400, []string{"one"}, [2]float64{6, 0}))
	o.Calibration = Share{Fraction: .4}
	d, _, err := Train(t.Context(), o)
	if err != nil || len(d.Source.Layers) != 1 {
		t.Fatal(err)
	}
	r, err := Discover(t.Context(), DiscoverOptions{Detect: DetectOptions{Detector: d}, Features: []string{create(2, 120, nil, [2]float64{0, 30}, [2]float64{-30, -9})}})
	if err != nil || len(r.Groups) < 2 {
		t.Fatalf("%d new, groups %+v, %v", r.New, r.Groups, err)
	}
	for i, f := range r.Found {
		if f.Group >= 0 && f.Group != r.Found[i%2].Group {
			t.Errorf("image %d is in group %d", i, f.Group)
		}
	}
}
