package detector_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// TestDetectorsOfAllScores loads a detector of every post-hoc score and of
// ensembles, and compares its verdicts with those of the program that wrote it.
func TestDetectorsOfAllScores(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("testdata", "scores", "verdicts.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all map[string]struct {
		Threshold float64
		Verdicts  []struct { // as the program of that time wrote them
			Class                     string
			OOD                       bool
			Confidence, Score, PValue float64
		}
	}
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	for _, name := range append(posthoc.Names(), "ensemble") {
		if len(all[name].Verdicts) == 0 {
			t.Errorf("no detector in testdata/scores judges by %s: see generate.go there", name)
		}
	}
	// Rows like those that the detectors were trained on, one far away and one of
	// zeros.
	var rows []float32
	if text, err = os.ReadFile(filepath.Join("testdata", "scores", "rows.json")); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &rows); err != nil {
		t.Fatal(err)
	}
	for name, want := range all {
		d, err := detector.Load(filepath.Join("testdata", "scores", name+".safetensors"))
		if err != nil {
			t.Error(err)
			continue
		}
		if d.Threshold != want.Threshold || d.Scoring.Name != name {
			t.Errorf("%s: threshold %v of the score %s, want %v", name, d.Threshold, d.Scoring.Name, want.Threshold)
		}
		got := pipetest.Verdicts(t, d, rows)
		tolerance := 1e-9
		if name == "relation" { // which rounds to float32
			tolerance = 1e-6
		}
		near := func(a, b float64) bool { return math.Abs(a-b) <= tolerance*math.Abs(b) }
		for i, g := range got {
			if w := want.Verdicts[i]; g.Class != w.Class || g.OOD != w.OOD || g.PValue != w.PValue || !near(g.Confidence, w.Confidence) || !near(g.Score, w.Score) {
				t.Errorf("%s: row %d: %+v, want %+v", name, i, g, w)
			}
		}
		judge := d.VerdictFunc()
		block := judge(rows)
		for i, whole := range block {
			if alone := judge(rows[i*d.Dim() : (i+1)*d.Dim()])[0]; alone != whole {
				t.Errorf("%s: row %d: %+v, alone %+v", name, i, whole, alone)
			}
		}
		path := filepath.Join(t.TempDir(), "detector")
		if err := d.Save(path); err != nil {
			t.Error(err)
			continue
		}
		if d, err = detector.Load(path); err != nil {
			t.Error(err)
		} else if again := pipetest.Verdicts(t, d, rows); !slices.Equal(again, got) {
			t.Errorf("%s: %+v, before it was saved again %+v", name, again, got)
		}
	}
}
