package pipeline

import (
	"fmt"
	"image"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// patchesIn opens a feature set and returns the model of patches that it has, and the rows of
// the images that this was fitted on.
func patchesIn(t *testing.T, dir string) (p *extractor.Patches, fitted map[int]bool) {
	t.Helper()
	s, err := features.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	file, err := s.Patches()
	if err == nil {
		p, err = extractor.ReadPatches(file)
	}
	images, imagesErr := s.Images()
	if err != nil || imagesErr != nil {
		t.Fatal(err, imagesErr)
	}
	fitted = map[int]bool{}
	for row, img := range images {
		if p.Has(img.SHA256) {
			fitted[row] = true
		}
	}
	return p, fitted
}

// TestPatchesKeepThePromise: a folder of good parts without subfolders is enough. Which images
// a model of patches is fitted on does not depend on what is in the others, as a permutation
// of these shows, and none of the former validates or calibrates, also not in folds.
func TestPatchesKeepThePromise(t *testing.T) {
	testenv.Runtime(t)
	const n = 80
	dir := t.TempDir()
	good, set := filepath.Join(dir, "good"), filepath.Join(dir, "set")
	for i := range n {
		striped(t, filepath.Join(good, fmt.Sprintf("%02d.png", i)), 0, uint64(i), image.Rectangle{})
	}
	opts := ExtractOptions{
		Model: "../extractor/testdata/exports/optimum-patches", Images: good, Out: set,
		Options: extractor.Options{PatchNodes: []string{"last_hidden_state"}},
	}
	extract := func(opts ExtractOptions) {
		t.Helper()
		if _, err := Extract(t.Context(), opts); err != nil {
			t.Fatal(err)
		}
	}
	extract(opts)
	p, fitted := patchesIn(t, set)
	if len(fitted) != leastFitted {
		t.Fatalf("%d images are in the fit, want %d", len(fitted), leastFitted)
	}

	o := quick(set)
	o.Calibration.Fraction = 0.3
	var d *Detector
	for seed := range uint64(5) {
		o.Seeds = []uint64{seed}
		var err error
		if d, _, err = Train(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"validation", "calibration"} {
			if rows := d.Splits[part]; len(rows) == 0 || slices.ContainsFunc(rows, func(row int) bool { return fitted[row] }) {
				t.Errorf("seed %d: %s has the rows %v, and the fit %v", seed, part, rows, fitted)
			}
		}
		if c := len(d.Splits["calibration"]); c < 0.3*n-1 || c > 0.3*n+1 {
			t.Errorf("%d images calibrate, want 0.3 of %d", c, n)
		}
	}
	folds := o
	folds.Calibration = Share{Folds: 4}
	if crossed, _, err := Train(t.Context(), folds); err != nil || len(crossed.CalibrationScores) != n-len(fitted) {
		t.Errorf("%d images calibrate in folds, want those %d that are in no fit: %v", len(crossed.CalibrationScores), n-len(fitted), err)
	}

	// What is in the images of no fit changes places.
	other := filepath.Join(dir, "other", "good")
	perm := rand.New(rand.NewPCG(1, 1)).Perm(n)
	perm = slices.DeleteFunc(perm, func(row int) bool { return fitted[row] })
	next := 0
	for row := range n {
		from := row
		if !fitted[row] {
			from, next = perm[next], next+1
		}
		if err := os.MkdirAll(other, 0o777); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(good, fmt.Sprintf("%02d.png", from)))
		if err == nil {
			err = os.WriteFile(filepath.Join(other, fmt.Sprintf("%02d.png", row)), data, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	opts.Images, opts.Out = other, filepath.Join(dir, "permuted")
	extract(opts)
	if q, same := patchesIn(t, opts.Out); q.String() != p.String() || len(same) != len(fitted) {
		t.Errorf("after a permutation of the others the model of patches is %v, was %v", q, p)
	}

	judgePatches(t, d, dir)

	// Images that come later, and other sets, are described by the same model.
	striped(t, filepath.Join(good, "later.png"), 0, 500, image.Rectangle{})
	opts.Images, opts.Out = good, set
	extract(opts)
	if q, _ := patchesIn(t, set); q.String() != p.String() {
		t.Error("one more image changes the model of patches")
	}
	opts.Out, opts.Shard = filepath.Join(dir, "shard"), features.Shard{Index: 1, Count: 2}
	if _, err := Extract(t.Context(), opts); options.Name(err) != "PatchNodes" {
		t.Errorf("a shard without a model of patches: %v", err)
	}
	opts.PatchNodes = []string{set}
	extract(opts)
	if q, _ := patchesIn(t, opts.Out); q.String() != p.String() {
		t.Error("a shard has another model of patches than the set that it names")
	}
}

// TestPatchesFalseAlarms: over 200 draws, ten of each of twenty folders, no more good parts are
// flagged than is promised.
func TestPatchesFalseAlarms(t *testing.T) {
	if testing.Short() {
		t.Skip("it trains 200 times")
	}
	testenv.Runtime(t)
	const folders, draws, good, fresh, promised = 20, 10, 120, 100, 0.05
	flagged := 0.
	for folder := range uint64(folders) {
		dir := t.TempDir()
		for i := range uint64(good + fresh) {
			to := "good"
			if i >= good {
				to = "fresh"
			}
			striped(t, filepath.Join(dir, to, fmt.Sprintf("%03d.png", i)), 0, 1000*folder+i, image.Rectangle{})
		}
		extract := func(of, patches string) string {
			t.Helper()
			opts := ExtractOptions{
				Model: "../extractor/testdata/exports/optimum-patches", Images: filepath.Join(dir, of), Out: filepath.Join(dir, of+".features"),
				Options: extractor.Options{PatchNodes: []string{patches}},
			}
			if _, err := Extract(t.Context(), opts); err != nil {
				t.Fatal(err)
			}
			return opts.Out
		}
		o := quick(extract("good", "last_hidden_state"))
		o.TargetTPR, o.Calibration.Fraction = 1-promised, 0.2
		s, err := features.Open(t.Context(), extract("fresh", o.Features[0]))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for draw := range uint64(draws) {
			o.Seeds = []uint64{draw}
			d, _, err := Train(t.Context(), o)
			if err == nil {
				err = s.With(d.Source.Layers)
			}
			if err != nil || !slices.Contains(d.PartNames(), detector.PatchesPart) {
				t.Fatal(d.PartNames(), err)
			}
			for _, v := range pipetest.Verdicts(t, d, s.Features()) {
				if v.OOD {
					flagged += 1. / (folders * draws * fresh)
				}
			}
		}
	}
	t.Logf("%.2f%% of new good parts are flagged in the mean of %d draws", 100*flagged, folders*draws)
	// Thrice the standard error of the images that all draws of a folder have in common.
	if of := math.Sqrt(promised * (1 - promised) / folders * (1./fresh + 1./(good-leastFitted))); flagged > promised+3*of {
		t.Errorf("%.2f%% are flagged, and %g%% are promised", 100*flagged, 100*promised)
	}
}

// judgePatches: a detector with a model of patches judges as the rows of features say, also
// from its file, and has the map of a flagged image from the same pass.
func judgePatches(t *testing.T, d *Detector, dir string) {
	file := filepath.Join(dir, "d.safetensors")
	if err := d.Save(file); err != nil {
		t.Fatal(err)
	}
	judge, err := OpenJudge(t.Context(), file, extractor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer judge.Close()
	d = judge.Detector()
	if !slices.Contains(d.PartNames(), detector.PatchesPart) || d.Classes[0] != "good" {
		t.Fatalf("parts %v, classes %v", d.PartNames(), d.Classes)
	}
	e, err := NewExplainer(t.Context(), d, ExplainOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	bad := filepath.Join(dir, "bad.png")
	striped(t, bad, 0, 900, image.Rect(8, 4, 12, 8)) // the third of four places, in the second row
	answers, err := judge.Explain(t.Context(), e, true, File(bad), File(filepath.Join(dir, "good", "03.png")))
	if err != nil {
		t.Fatal(err)
	}
	m := answers[0].Explanation.Where
	if !answers[0].OOD || m == nil || m.Width != 4 || m.Height != 4 || slices.Index(m.Values, slices.Max(m.Values)) != 6 {
		t.Errorf("the bad part is flagged %v, with the map %+v", answers[0].OOD, m)
	}
	s, err := features.Open(t.Context(), filepath.Join(dir, "set"))
	if err == nil {
		err = s.With(d.Source.Layers)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if want := pipetest.Verdicts(t, d, s.Row(3))[0]; answers[1].Verdict != want {
		t.Errorf("the image has the verdict %+v, its row %+v", answers[1].Verdict, want)
	}
	if near := answers[0].Explanation.Nearest; len(near) == 0 || near[0].Class != "good" {
		t.Errorf("nearest are %v", near)
	}
	for _, with := range []bool{true, false} {
		if err := Export(t.Context(), ExportOptions{Detector: d, WithBackbone: with, Out: filepath.Join(dir, "d.onnx")}); err != nil {
			t.Error(err)
		}
	}
}
