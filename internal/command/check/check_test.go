package check

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

func open(t *testing.T, dir string) *extractor.Model {
	t.Helper()
	if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	m, err := extractor.OpenModel(t.Context(), dir, extractor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// sample lists n images of a folder, evenly spaced.
func sample(t *testing.T, folder string, n int) []images.Item {
	t.Helper()
	listing, err := images.List(t.Context(), images.ListOptions{Root: folder})
	if err != nil {
		t.Fatal(err)
	}
	return Sample(listing.Items, n)
}

func run(t *testing.T, m *extractor.Model, opts Options) *Report {
	t.Helper()
	r, err := Run(t.Context(), m, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func warns(r *Report, about string) bool {
	return slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.Contains(w, about) })
}

// TestRealModels: nothing is wrong with them as they are, and a normalisation
// of another family is noticed.
func TestRealModels(t *testing.T) {
	photos, small := testenv.Shared(t, "data", "images", "imagenet_samples"), testenv.Shared(t, "data", "images", "cifar10", "test")
	for name, test := range map[string]struct {
		images string
		n      int
		wrong  int // of Common
	}{
		"vit-tiny-p16":        {photos, 8, 0},
		"mobilenetv2":         {photos, 12, 0},
		"mobilenetv1-nhwc":    {photos, 12, 0},
		"squeezenet11-fp16io": {photos, 8, 4}, // which overflows where the processor computes in half floats
		"densenet100-cifar10": {small, 32, 3},
		"resnet20-cifar10":    {small, 64, 3},
	} {
		t.Run(name, func(t *testing.T) {
			if testing.Short() {
				if name != "resnet20-cifar10" {
					t.Skip("one real model is enough")
				}
				test.n = 16
			}
			m := open(t, testenv.Shared(t, "models", name))
			opts := Options{Images: sample(t, test.images, test.n)}
			r := run(t, m, opts)
			if len(r.Warnings) > 0 {
				t.Errorf("as it is: %q", r.Warnings)
			}
			wrong := Common[test.wrong]
			m.Spec.Scale, m.Spec.Mean, m.Spec.Std = wrong.Scale, wrong.Mean, wrong.Std
			r = run(t, m, opts)
			if !warns(r, "normalisation") {
				t.Errorf("normalised %s: %q", wrong.Name, r.Warnings)
			}
		})
	}
}

func TestBadlyQuantised(t *testing.T) {
	if testing.Short() {
		t.Skip("one real model is enough")
	}
	dir := testenv.Shared(t, "models")
	opts := Options{Images: sample(t, testenv.Shared(t, "data", "images", "imagenet_samples"), 4), Against: open(t, filepath.Join(dir, "vit-tiny-p16"))}
	r := run(t, open(t, filepath.Join(dir, "vit-tiny-p16-int8")), opts)
	if !warns(r, "disagrees") {
		t.Errorf("%+v, %q", r.Against, r.Warnings)
	}
	r = run(t, open(t, filepath.Join(dir, "vit-tiny-p16")), opts)
	if warns(r, "disagrees") || !(r.Against.Cosine.Min > 0.999999) || r.Against.SameNearest < 0.999 {
		t.Errorf("with itself: %+v, %q", r.Against, r.Warnings)
	}
}

// TestSmallModels: what is wrong with a model that is nothing but a mean of
// the colours, and what a report has to be in any case, which is JSON.
func TestSmallModels(t *testing.T) {
	items := sample(t, testenv.Shared(t, "data", "images", "cifar10", "test"), 16)
	for name, test := range map[string]struct {
		last  func(*onnx.Model, onnx.Value) onnx.Value
		about string // the one warning; "" for none
	}{
		"mirrored to the same": {func(m *onnx.Model, v onnx.Value) onnx.Value {
			var weights []float64
			for i := range 48 {
				weights = append(weights, math.Sin(float64(i)))
			}
			return m.Op("MatMul", v, m.Cast(m.Doubles(weights, 3, 16), onnx.Float))
		}, ""},
		"not finite":           {func(m *onnx.Model, v onnx.Value) onnx.Value { return m.Op("Sqrt", m.Op("Sub", v, m.Op("Exp", v))) }, "not finite"},
		"exported in training": {func(m *onnx.Model, v onnx.Value) onnx.Value { return m.Op("Add", v, m.Op("RandomNormalLike", v)) }, "each time"},
	} {
		t.Run(name, func(t *testing.T) {
			graph, err := onnx.New(17, "test", "")
			if err != nil {
				t.Fatal(err)
			}
			mean := graph.Op("Flatten", graph.Op("GlobalAveragePool", graph.Input("x", onnx.Float, onnx.Batch, 3, 32, 32)))
			graph.Output("features", test.last(graph, mean), onnx.Float, onnx.Batch, -1)
			dir := t.TempDir()
			var file bytes.Buffer
			if err := graph.Write(&file); err != nil {
				t.Fatal(err)
			}
			config := `{"input_size": [3, 32, 32], "interpolation": "bicubic", "crop_pct": 1, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}`
			for name, content := range map[string]string{"model.onnx": file.String(), "config.json": config} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			r := run(t, open(t, dir), Options{Images: items})
			if test.about == "" && len(r.Warnings) > 0 || test.about != "" && (len(r.Warnings) != 1 || !warns(r, test.about)) {
				t.Errorf("warnings %q, want about %q", r.Warnings, test.about)
			}
			if _, err := json.Marshal(r); err != nil {
				t.Error(err)
			}
		})
	}
}

// The first of a sample are of all classes, and all of it is when there is no more.
func TestSample(t *testing.T) {
	var items []images.Item
	for i := range 30 {
		label := 0
		if i >= 25 {
			label = i - 24
		}
		items = append(items, images.Item{Label: label, Bytes: int64(i)})
	}
	for _, n := range []int{6, 12, 30, 40} {
		some := Sample(items, n)
		seen, labels := map[int64]bool{}, map[int]bool{}
		for i, item := range some {
			seen[item.Bytes] = true
			if i < 6 {
				labels[item.Label] = true
			}
		}
		if len(some) != min(n, 30) || len(seen) != len(some) || len(labels) != 6 {
			t.Errorf("%d: %d images, %d of them different, the first of %d classes", n, len(some), len(seen), len(labels))
		}
	}
}
