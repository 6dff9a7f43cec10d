package docs_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// The graph that set-up converted is the one whose sum the repository states.
func TestEfficientNetLite0IsTheStatedFile(t *testing.T) {
	dir := testenv.Backbone(t)
	stated, err := os.ReadFile(filepath.Join(dir, "model.onnx.sha256"))
	if err != nil {
		t.Fatal(err)
	}
	graph, err := os.ReadFile(filepath.Join(dir, "model.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(graph)
	if got, want := hex.EncodeToString(sum[:])+"  model.onnx", strings.TrimSpace(string(stated)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A cat is a cat: the photograph `chelsea` of scikit-image gets one of
// ImageNet's three house cats, and a cup of espresso is one.
func TestEfficientNetLite0KnowsACat(t *testing.T) {
	photos := filepath.Join(testenv.Root(t), ".setup", "photos")
	logits := run(t, []string{filepath.Join(photos, "chelsea.png"), filepath.Join(photos, "coffee.png")})
	for i, want := range [][]int{
		{281, 282, 285}, // tabby, tiger cat, Egyptian cat
		{967},           // espresso
	} {
		best := slices.Index(logits[i], slices.Max(logits[i]))
		if !slices.Contains(want, best) {
			t.Errorf("image %d is of class %d, want one of %v", i, best, want)
		}
	}
}

// run returns the logits that the default backbone gives for image files.
func run(t *testing.T, files []string) [][]float32 {
	t.Helper()
	dir := testenv.Backbone(t)
	if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	model, err := extractor.OpenModel(t.Context(), dir, extractor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := model.Close(); err != nil {
			t.Error(err)
		}
	})
	items, logits := make([]images.Item, len(files)), make([][]float32, len(files))
	for i, file := range files {
		items[i] = images.Item{Path: filepath.ToSlash(file), File: file, Label: -1}
	}
	_, err = model.Extract(t.Context(), images.Of(items...), extractor.Options{}, func(r extractor.Row) error {
		logits[r.Index] = slices.Clone(r.Logits)
		return r.Err
	})
	if err != nil {
		t.Fatal(err)
	}
	return logits
}
