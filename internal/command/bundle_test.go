package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// TestBundle: a folder has all that judging needs, and nothing else is written
// over.
func TestBundle(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	made, moved := filepath.Join(dir, "made"), filepath.Join(dir, "moved")
	train := shortTraining("--features", w.features, "--out", made, "--bundle", "--epochs", "2", "--calibration", "0.5", "--quiet")
	call(t, 0, train...)
	call(t, 0, train...) // the same model again
	if err := os.Rename(made, moved); err != nil {
		t.Fatal(err)
	}
	d, err := pipeline.LoadDetector(moved)
	if err != nil {
		t.Fatal(err)
	}
	// Without the hint the model at the old place cannot be what is found.
	found, err := extractor.ModelReference{SHA256: d.Source.SHA256, Beside: moved}.Find(t.Context())
	if err != nil || !strings.HasPrefix(found, filepath.Join(moved, "model")) {
		t.Fatalf("the model is at %s, %v", found, err)
	}
	picture(t, filepath.Join(dir, "new", "0.png"), 0, 100)
	old, _ := call(t, 0, "detect", "--detector", filepath.Join(moved, detector.BundleFile), "--model", d.Source.Model, "--json", "--quiet", filepath.Join(dir, "new"))
	for _, model := range []string{"", filepath.Join(moved, "model")} {
		args := []string{"detect", "--detector", moved, "--json", "--quiet", filepath.Join(dir, "new")}
		if model != "" {
			args = append(args, "--model", model)
		}
		if out, _ := call(t, 0, args...); out != old {
			t.Errorf("the bundle says %s, the detector %s", out, old)
		}
	}
	call(t, 0, "export", "--detector", moved, "--out", filepath.Join(dir, "d.onnx"))
	call(t, 0, "evaluate", "--detector", moved, "--id", w.features)

	write(t, filepath.Join(made, "model", filepath.Base(found)), "another model")
	fails(t, "is another file", train...)
	fails(t, detector.BundleFile, "detect", "--detector", dir, "--quiet", dir)
}
