package models_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mlrbfn/extractor"
	"mlrbfn/internal/npy"
	"mlrbfn/internal/testenv"
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

// Features and logits of the golden images agree with those that Python's
// onnxruntime gives after Pillow's preprocessing. PNG files are held to the
// figure for lossless images; JPEG and WebP decoders differ by a few levels.
func TestEfficientNetLite0AgreesWithGolden(t *testing.T) {
	golden := testenv.Shared(t, "oracle", "golden", "features")
	data, err := os.ReadFile(filepath.Join(golden, "images.json"))
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	if err := json.Unmarshal(data, &paths); err != nil {
		t.Fatal(err)
	}
	files := make([]string, len(paths))
	for i, p := range paths {
		files[i] = testenv.Shared(t, filepath.FromSlash(p))
	}
	features, logits := run(t, files)
	for _, c := range []struct {
		golden string
		got    [][]float32
	}{
		{"efficientnet-lite0.npy", features},
		{"efficientnet-lite0-logits.npy", logits},
	} {
		want, shape, err := npy.Read[float32](filepath.Join(golden, c.golden))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(shape, []int{len(paths), len(c.got[0])}) {
			t.Fatalf("%s has the shape %v; we have %d × %d", c.golden, shape, len(paths), len(c.got[0]))
		}
		lowest := 1.0
		for i, row := range c.got {
			atLeast := 0.999
			if filepath.Ext(paths[i]) == ".png" {
				atLeast = 0.9999
			}
			cos := cosine(row, want[i*len(row):(i+1)*len(row)])
			if !(cos >= atLeast) {
				t.Errorf("%s, %s: cosine %.6f, want at least %v", c.golden, paths[i], cos, atLeast)
			}
			lowest = min(lowest, cos)
		}
		t.Logf("%s: lowest cosine %.6f", c.golden, lowest)
	}
}

// A cat is a cat: the photograph `chelsea` of scikit-image gets one of
// ImageNet's three house cats, and a cup of espresso is one.
func TestEfficientNetLite0KnowsACat(t *testing.T) {
	photos := filepath.Join(testenv.Root(t), ".setup", "photos")
	_, logits := run(t, []string{filepath.Join(photos, "chelsea.png"), filepath.Join(photos, "coffee.png")})
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

// run returns what the default backbone gives for image files.
func run(t *testing.T, files []string) (features, logits [][]float32) {
	t.Helper()
	dir := testenv.Backbone(t)
	if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	model, err := extractor.OpenModel(dir, extractor.ModelOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := model.Close(); err != nil {
			t.Error(err)
		}
	})
	items := make([]extractor.Item, len(files))
	for i, file := range files {
		items[i] = extractor.Item{Path: filepath.ToSlash(file), File: file, Label: -1}
	}
	features, logits = make([][]float32, len(files)), make([][]float32, len(files))
	_, err = model.Extract(context.Background(), items, extractor.ExtractOptions{}, func(r extractor.Result) error {
		features[r.Index], logits[r.Index] = slices.Clone(r.Features), slices.Clone(r.Logits)
		return r.Err
	})
	if err != nil {
		t.Fatal(err)
	}
	return features, logits
}

// cosine returns the cosine between two vectors.
func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	return ab / math.Sqrt(aa*bb)
}
