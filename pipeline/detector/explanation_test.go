package detector_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// clouds writes a feature set as another program would: n rows of d numbers around
// each of the classes' centres.
func clouds(t *testing.T, seed uint64, n, d, classes int) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "clouds")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 3))
	var x []float32
	var y []int64
	for i := range n * classes {
		for j := range d {
			v := 0.3 * rng.NormFloat64()
			if j == i%classes {
				v += 2
			}
			x = append(x, float32(v))
		}
		y = append(y, int64(i%classes))
	}
	if err := errors.Join(npy.WriteFile(filepath.Join(dir, "features.npy"), x, n*classes, d), npy.WriteFile(filepath.Join(dir, "labels.npy"), y, len(y))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// mixedRows are rows near the centres, every third far from them.
func mixedRows(n, d int) []float32 { return pipetest.RandomRows(rand.New(rand.NewPCG(8, 9)), n, d) }

func train(t *testing.T, dir string, change func(*training.Options)) *detector.Detector {
	t.Helper()
	o := training.Options{Features: []string{dir}}
	pipetest.Small(&o.Head, &o.Train)
	o.Calibration.Fraction, o.Validation.Fraction = 0.2, 0.2
	if change != nil {
		change(&o)
	}
	d, _, err := training.Train(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func explainer(t *testing.T, d *detector.Detector, opts detector.ExplainOptions) *detector.Explainer {
	t.Helper()
	e, err := detector.NewExplainer(t.Context(), d, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func explain(t *testing.T, e *detector.Explainer, x []float32) ([]detector.Explanation, []detector.Verdict) {
	t.Helper()
	verdicts := pipetest.Verdicts(t, e.Detector(), x)
	all, err := e.Explain(t.Context(), x, verdicts)
	if err != nil {
		t.Fatal(err)
	}
	return all, verdicts
}

// TestEveryKind: of every kind of detector, saved and loaded, the parts add up to the
// score of the verdict, deviations are those from the calibration images, and an image
// is explained alone as with others.
func TestEveryKind(t *testing.T) {
	t.Parallel()
	const d = 8
	dir, one := clouds(t, 1, 80, d, 3), clouds(t, 2, 150, d, 1)
	x := mixedRows(30, d)
	for name, tt := range map[string]struct {
		dir    string
		change func(*training.Options)
		parts  []string
	}{
		"joined":       {parts: nil},
		"fixed":        {change: func(o *training.Options) { o.NoHoldOut = true }, parts: []string{"density", "decision", "gen", "fdbd-s"}},
		"the head's":   {change: func(o *training.Options) { o.Score = detector.HeadScore }, parts: []string{"density", "decision"}},
		"three heads":  {change: func(o *training.Options) { o.Score, o.Seeds = detector.HeadScore, []uint64{0, 1, 2} }, parts: []string{"density", "decision"}},
		"paper":        {change: func(o *training.Options) { o.Head = pipetest.SmallPaper }, parts: []string{"head"}},
		"a single one": {change: func(o *training.Options) { o.Score = "knn" }, parts: []string{"knn"}},
		"ensemble":     {change: func(o *training.Options) { o.Score = "ensemble" }, parts: []string{"mlrbfn", "gen", "fdbd", "mds++"}},
		"relation":     {change: func(o *training.Options) { o.Score = "ensemble(relation,vim)" }, parts: []string{"relation", "vim"}},
		"folds":        {change: func(o *training.Options) { o.Calibration = training.Share{Folds: 3} }},
		"one class":    {dir: one, parts: []string{"density", "decision"}},
		"by class":     {change: func(o *training.Options) { o.PerClass, o.TargetTPR = true, 0.8 }},
		"uncalibrated": {change: func(o *training.Options) { o.Calibration = training.Share{None: true} }},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.dir == "" {
				tt.dir = dir
			}
			trained := train(t, tt.dir, tt.change)
			file := filepath.Join(t.TempDir(), "detector")
			if err := trained.Save(file); err != nil {
				t.Fatal(err)
			}
			det, err := detector.Load(file)
			if err != nil {
				t.Fatal(err)
			}
			e := explainer(t, det, detector.ExplainOptions{Nearest: 2})
			if len(e.Notes()) > 0 {
				t.Errorf("notes %q", e.Notes())
			}
			if tt.parts != nil && !slices.Equal(det.PartNames(), tt.parts) {
				t.Errorf("parts %q, want %q", det.PartNames(), tt.parts)
			}
			all, verdicts := explain(t, e, x)
			flagged := 0
			for i, got := range all {
				var sum float64
				for j, p := range got.Parts {
					sum += p.Adds
					scale := head.ScaleOf(det.Reference.Parts[j])
					if want := (p.Adds - scale.Mean) / scale.Deviation; p.Deviations != want || p.Name != det.PartNames()[j] || p.Meaning == "" {
						t.Errorf("row %d: part %+v, want %g deviations", i, p, want)
					}
				}
				if score := verdicts[i].Score; math.Abs(sum-score) > 1e-9*(1+math.Abs(score)) {
					t.Errorf("row %d: the parts sum up to %.15g and the score is %.15g", i, sum, score)
				}
				if verdicts[i].OOD {
					flagged++
				}
				if len(got.Nearest) != 2 || verdicts[i].OOD != strings.HasPrefix(got.Why, "Flagged: ") || strings.Contains(got.Why, "%!") {
					t.Errorf("row %d: %+v of %+v", i, got, verdicts[i])
				}
				alone, err := e.Explain(t.Context(), x[i*d:(i+1)*d], verdicts[i:i+1])
				if err != nil || alone[0].Why != got.Why || alone[0].Nearest[0].Row != got.Nearest[0].Row || alone[0].Nearest[1].Distance != got.Nearest[1].Distance {
					t.Errorf("row %d alone: %+v, %v, want %+v", i, alone, err, got)
				}
			}
			if (flagged == 0) != math.IsInf(det.Threshold, -1) {
				t.Errorf("%d rows are flagged with the threshold %g", flagged, det.Threshold)
			}
		})
	}
}

// TestReference: a detector without a reference gets that of its calibration rows
// from the training features, and only if they still give the calibration scores.
func TestReference(t *testing.T) {
	t.Parallel()
	dir := clouds(t, 1, 80, 8, 3)
	d := train(t, dir, nil)
	want := d.Reference
	d.Reference = nil
	e := explainer(t, d, detector.ExplainOptions{})
	for j, part := range e.Reference().Parts {
		for i, v := range part {
			if math.Abs(v-want.Parts[j][i]) > 1e-9 {
				t.Fatalf("part %d: %v, want %v", j, part, want.Parts[j])
			}
		}
	}
	if e.Reference().Of != "calibration" || len(e.Notes()) > 0 {
		t.Errorf("of %q, notes %q", e.Reference().Of, e.Notes())
	}
	// The same rows in another order: they are named, so taken, but not believed.
	d.Training.Sets = nil
	other := explainer(t, d, detector.ExplainOptions{Features: []string{clouds(t, 7, 80, 8, 3)}})
	if other.Reference() != nil || len(other.Notes()) != 1 || !strings.Contains(other.Notes()[0], "older version") {
		t.Errorf("%v, notes %q", other.Reference(), other.Notes())
	}
	all, verdicts := explain(t, other, mixedRows(9, 8))
	for i, got := range all {
		if !math.IsNaN(got.Parts[0].Deviations) || got.Parts[0].Meaning == "" || verdicts[i].OOD != strings.HasPrefix(got.Why, "Flagged: ") || strings.Contains(got.Why, "NaN") {
			t.Errorf("row %d: %+v", i, got)
		}
	}
	// One part alone is compared with the calibration scores.
	single := train(t, dir, func(o *training.Options) { o.Head = pipetest.SmallPaper })
	single.Reference = nil
	if e := explainer(t, single, detector.ExplainOptions{}); !slices.Equal(e.Reference().Parts[0], single.CalibrationScores) {
		t.Errorf("%v, want %v", e.Reference(), single.CalibrationScores)
	}
}

// TestOlderDetectors: files of all versions are explained, with what they have.
func TestOlderDetectors(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"version1", "version2", "version3", "version4"} {
		d, err := detector.Load(filepath.Join("..", "detector", "testdata", name+".safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		e := explainer(t, d, detector.ExplainOptions{})
		all, verdicts := explain(t, e, mixedRows(9, d.Dim()))
		for i, got := range all {
			var sum float64
			for _, p := range got.Parts {
				if sum += p.Adds; math.IsNaN(p.Deviations) != (len(got.Parts) > 1) || p.Meaning == "" {
					t.Errorf("%s: %+v", name, p)
				}
			}
			if score := verdicts[i].Score; math.Abs(sum-score) > 1e-9*(1+math.Abs(score)) || got.Nearest != nil || verdicts[i].OOD != strings.HasPrefix(got.Why, "Flagged: ") {
				t.Errorf("%s: row %d: %+v, the score is %g", name, i, got, score)
			}
		}
		if len(e.Notes()) == 0 {
			t.Errorf("%s: no note says that the training features are missing", name)
		}
	}
}

// TestFindsFeatures: a path in a detector is only a hint. Features that moved, changed
// or are another model's are not taken, and it is said.
func TestFindsFeatures(t *testing.T) {
	t.Parallel()
	dir := clouds(t, 1, 40, 6, 3)
	d := train(t, dir, nil)
	place := t.TempDir()
	file := filepath.Join(place, "detector")
	if err := d.Save(file); err != nil {
		t.Fatal(err)
	}
	open := func() *detector.Explainer {
		loaded, err := detector.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		return explainer(t, loaded, detector.ExplainOptions{})
	}
	says := func(e *detector.Explainer, note string) {
		t.Helper()
		if len(e.Sets()) > 0 || len(e.Notes()) != 1 || !strings.Contains(e.Notes()[0], note) || !strings.Contains(e.Notes()[0], "(‹Features›)") {
			t.Errorf("%d sets, notes %q, want %q", len(e.Sets()), e.Notes(), note)
		}
		all, _ := explain(t, e, mixedRows(3, 6))
		for _, got := range all {
			if got.Nearest != nil || got.Why == "" || len(got.Parts) == 0 || math.IsNaN(got.Parts[0].Deviations) {
				t.Errorf("%+v", got)
			}
		}
	}
	if e := open(); len(e.Sets()) != 1 || len(e.Notes()) > 0 {
		t.Errorf("%d sets, notes %q", len(e.Sets()), e.Notes())
	}
	beside := filepath.Join(place, "clouds")
	if err := os.Rename(dir, beside); err != nil {
		t.Fatal(err)
	}
	if e := open(); len(e.Sets()) != 1 || e.Sets()[0].Dir != beside {
		t.Errorf("beside the detector: %d sets, notes %q", len(e.Sets()), e.Notes())
	}
	away := filepath.Join(t.TempDir(), "away")
	if err := os.Rename(beside, away); err != nil {
		t.Fatal(err)
	}
	says(open(), "cannot be found")
	if err := os.Rename(clouds(t, 2, 40, 6, 3), dir); err != nil {
		t.Fatal(err)
	}
	says(open(), "has other images or labels now")
	// A person names where they are now.
	named := explainer(t, d, detector.ExplainOptions{Features: []string{away}})
	if len(named.Sets()) != 1 || len(named.Notes()) > 0 {
		t.Errorf("named: %d sets, notes %q", len(named.Sets()), named.Notes())
	}
	for _, bad := range []string{clouds(t, 3, 40, 5, 3), dir, filepath.Join(place, "gone")} {
		var about *options.Error
		if _, err := detector.NewExplainer(t.Context(), d, detector.ExplainOptions{Features: []string{bad}}); !errors.As(err, &about) || about.Option != "Features" {
			t.Errorf("%s: %v", bad, err)
		}
	}
	// An older detector names folders alone.
	d.Training.Sets, d.Training.Features = nil, nil
	says(explainer(t, d, detector.ExplainOptions{}), "older than the record")
}

// TestNearest: the neighbours are those of a search in float64 through all rows, for
// every kind of map, with copies, several sets, and rows without labels.
func TestNearest(t *testing.T) {
	t.Parallel()
	const d, classes = 9, 4
	first, second := clouds(t, 1, 300, d, classes), clouds(t, 2, 50, d, classes)
	// Rows without labels, and copies of the first rows.
	x, _, err := npy.Read[float32](filepath.Join(second, "features.npy"))
	if err != nil {
		t.Fatal(err)
	}
	copied, _, err := npy.Read[float32](filepath.Join(first, "features.npy"))
	if err != nil {
		t.Fatal(err)
	}
	copy(x, copied[:20*d])
	labels := make([]int64, len(x)/d)
	for i := range labels {
		labels[i] = int64(i%(classes+1)) - 1
	}
	if err := errors.Join(npy.WriteFile(filepath.Join(second, "features.npy"), x, len(labels), d), npy.WriteFile(filepath.Join(second, "labels.npy"), labels, len(labels))); err != nil {
		t.Fatal(err)
	}
	sets := []string{first, second}
	queries := slices.Concat(x[:30*d], mixedRows(50, d), make([]float32, d))
	for name, o := range map[string]training.Options{
		"whitened":           {},
		"without a map":      {Head: pipetest.SmallPaper},
		"standardised":       {Head: head.Paper{Layers: 2, Centroids: 8, Projection: 4}},
		"a window of memory": {},
	} {
		t.Run(name, func(t *testing.T) {
			det := train(t, first, func(opts *training.Options) {
				opts.Features = sets
				if o.Head != nil {
					opts.Head = o.Head
				}
				opts.Conditioning.L2 = name != "without a map"
				opts.Conditioning.Kind = map[string]head.ConditioningKind{"whitened": "whiten", "a window of memory": "whiten", "standardised": "standardise", "without a map": "none"}[name]
			})
			opts := detector.ExplainOptions{Features: sets, Nearest: 7}
			if name == "a window of memory" {
				opts.Memory = 1
			}
			e := explainer(t, det, opts)
			all, _ := explain(t, e, queries)
			for i, got := range all {
				want := bruteForce(e, queries[i*d:(i+1)*d], 7)
				for k, n := range got.Nearest {
					if n.Row != want[k].row || math.Abs(n.Distance-want[k].distance) > 1e-9*(1+n.Distance) {
						t.Errorf("query %d: neighbour %d is row %d at %.12g, want %+v", i, k, n.Row, n.Distance, want[k])
					}
				}
				if len(got.Nearest) != 7 {
					t.Errorf("query %d: %d neighbours", i, len(got.Nearest))
				}
			}
		})
	}
	few := explainer(t, train(t, clouds(t, 5, 10, d, 3), nil), detector.ExplainOptions{Nearest: 50})
	if all, _ := explain(t, few, queries[:d]); len(all[0].Nearest) != 30 {
		t.Errorf("of 30 rows %d are near", len(all[0].Nearest))
	}
	none := explainer(t, few.Detector(), detector.ExplainOptions{Nearest: -1})
	if all, _ := explain(t, none, queries[:d]); all[0].Nearest != nil {
		t.Errorf("%+v", all[0].Nearest)
	}
}

// neighbourRow is a row of the training images and how far it is.
type neighbourRow struct {
	row      int
	distance float64
}

// bruteForce looks at every row.
func bruteForce(e *detector.Explainer, x []float32, k int) []neighbourRow {
	var all []neighbourRow
	z := spaced(e, x)
	row := 0
	for _, set := range e.Sets() {
		for i := range set.N {
			if set.Labels()[i] >= 0 {
				var sum float64
				for j, v := range spaced(e, set.Row(i)) {
					sum += (v - z[j]) * (v - z[j])
				}
				all = append(all, neighbourRow{row, math.Sqrt(sum)})
			}
			row++
		}
	}
	slices.SortStableFunc(all, func(a, b neighbourRow) int {
		switch {
		case a.distance < b.distance:
			return -1
		case a.distance > b.distance:
			return 1
		}
		return 0
	})
	return all[:k]
}

// spaced returns what the head's layers read of a row.
func spaced(e *detector.Explainer, x []float32) []float64 {
	h := e.Detector().Heads[0]
	values := make([]float64, len(x))
	var square float64
	for _, v := range x {
		square += float64(v) * float64(v)
	}
	for j, v := range x {
		values[j] = float64(v)
		if c := h.Conditioning; c != nil && c.L2 && square > 0 {
			values[j] /= math.Sqrt(square)
		}
	}
	c := h.Conditioning
	if c == nil {
		return values
	}
	out := make([]float64, c.Out())
	for j, v := range values {
		v -= float64(c.Mean[j])
		if c.Scale != nil {
			out[j] = v * float64(c.Scale[j])
			continue
		}
		for i := range out {
			out[i] += v * float64(c.Matrix[j*c.Out()+i])
		}
	}
	if detector.SpaceOf(h) != nil {
		out = out[:detector.SpaceOf(h).Out()]
	}
	return out
}
