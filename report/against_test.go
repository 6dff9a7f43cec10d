package report_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/report"
)

// writeEarlier writes a report with its results and scores, as an evaluation does.
func writeEarlier(t *testing.T, r *evaluation.Evaluation) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := r.Save(dir); err != nil {
		t.Fatal(err)
	}
	for _, run := range r.Runs {
		for _, set := range append([]images.Set{{Name: "id"}}, r.OOD...) {
			scores, err := run.Scores(set.Name)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "scores", run.Method, run.Seed, set.Name+".npy")
			if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := npy.WriteFile(file, scores, len(scores)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// TestAgainst compares a report with one of other scores for four images.
func TestAgainst(t *testing.T) {
	t.Parallel()
	r := synthetic(t, 2, 2, 1, 100, 30)
	r.ID.Images = "the test images"
	const method = "msp"
	old := r.Runs[1].Scores
	moved := func(dataset string) ([]float64, error) {
		scores, err := old(dataset)
		scores = slices.Clone(scores)
		// The ranks of others do not move across a threshold: where one of the images
		// of the classes falls below it, another rises.
		order := make([]int, len(scores))
		for i := range order {
			order[i] = i
		}
		slices.SortFunc(order, func(a, b int) int {
			if scores[a] < scores[b] {
				return -1
			}
			return 1
		})
		switch dataset {
		case "id":
			scores[order[0]], scores[order[99]] = scores[order[99]], scores[order[0]]
		case "cifar100":
			scores[order[0]] = 100
		case "tin":
			scores[order[29]] = -100
			scores[order[28]] = -100
		}
		return scores, err
	}
	earlier := writeEarlier(t, r)
	var err error
	if r.Against, err = evaluation.ReadEarlier(earlier); err != nil {
		t.Fatal(err)
	}
	_, same, _ := strings.Cut(write(t, t.TempDir(), r), `id="against"`)
	same, _, _ = strings.Cut(same, "</section>")
	if strings.Contains(same, "<details") || !strings.Contains(same, earlier) {
		t.Errorf("of the same report images changed sides: %.2000s", same)
	}
	r.Runs[1].Scores = moved
	page := write(t, t.TempDir(), r)
	_, section, _ := strings.Cut(page, `id="against"`)
	section, _, _ = strings.Cut(section, "</section>")
	for _, want := range []string{
		"<summary>" + method + "</summary>", "newly flagged (1)", "newly accepted (1)", "newly missed (1)", "newly caught (2)",
		`0.0% → 99.0%`, `99.0% → 0.0%`, "→ 100.0%",
	} {
		if !strings.Contains(section, want) {
			t.Errorf("the comparison lacks %q", want)
		}
	}
	if strings.Contains(section, "mlrbfn</summary>") {
		t.Error("a method whose scores are the same has images that changed sides")
	}
	if n := strings.Count(section, "does not record"); n != 1 { // the OOD sets do not
		t.Errorf("the page says %d times that a report does not record its images", n)
	}

	// Thresholds of detectors count: one that flags nothing, and one that flags all.
	all, nothing := 1e9, -1e9
	r.Runs[1].Threshold = &nothing
	byThreshold := writeEarlier(t, r)
	if r.Against, err = evaluation.ReadEarlier(byThreshold); err != nil {
		t.Fatal(err)
	}
	r.Runs[1].Threshold = &all
	page = write(t, t.TempDir(), r)
	for _, want := range []string{"newly flagged (100)", "newly caught (", "that of its detector (" + method + ")"} {
		if !strings.Contains(page, want) {
			t.Errorf("by the thresholds of detectors the comparison lacks %q", want)
		}
	}
	r.Runs[1].Threshold, r.Against = nil, nil
	if r.Against, err = evaluation.ReadEarlier(earlier); err != nil {
		t.Fatal(err)
	}

	for what, change := range map[string]func(r *evaluation.Evaluation){
		"cifar100 had 30 images and has 29": func(r *evaluation.Evaluation) { r.OOD[0].N = 29 },
		"id has other images":               func(r *evaluation.Evaluation) { r.ID.Images = "others" },
		"tin is only in it":                 func(r *evaluation.Evaluation) { r.OOD = r.OOD[:1] },
		"texture is not in it":              func(r *evaluation.Evaluation) { r.OOD[1].Name = "texture" },
		"cifar100 was a near set":           func(r *evaluation.Evaluation) { r.OOD[0].Group = metrics.Far },
	} {
		other := *r
		other.OOD = slices.Clone(r.OOD)
		change(&other)
		if err := r.Against.Check(other.ID, other.OOD); !errors.Is(err, evaluation.ErrOtherImages) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// A report of an earlier version has no sets.json; its results say how many images.
	if err := os.Remove(filepath.Join(earlier, "sets.json")); err != nil {
		t.Fatal(err)
	}
	if r.Against, err = evaluation.ReadEarlier(earlier); err != nil {
		t.Fatal(err)
	}
	if page := write(t, t.TempDir(), r); !strings.Contains(page, "newly flagged (1)") {
		t.Error("a report without sets.json is not compared")
	}
	r.OOD[0].N = 29
	if err := r.Against.Check(r.ID, r.OOD); !errors.Is(err, evaluation.ErrOtherImages) {
		t.Errorf("a report without sets.json, of other numbers: %v", err)
	}
	r.OOD[0].N = 30
	if err := os.Remove(filepath.Join(earlier, "scores", method, "0", "tin.npy")); err != nil {
		t.Fatal(err)
	}
	if err := report.Write(t.TempDir(), r); err == nil || !strings.Contains(err.Error(), "tin.npy") {
		t.Errorf("without some scores: %v", err)
	}
	if _, err := evaluation.ReadEarlier(t.TempDir()); err == nil {
		t.Error("an empty folder is an earlier report")
	}
}
