package extractor

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// exports holds models as others export them (testdata/generate_exports.py).
const exports = "testdata/exports"

// TestExportsOfOthers compares the features of graphs of many layouts and kinds
// with those of onnx's reference evaluator or Python's onnxruntime; the features
// of quantised graphs with those of the same kind of processor.
func TestExportsOfOthers(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(exports, "expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Model, Output, Pool string
		WantOutput          string `json:"want_output"`
		WantPool            string `json:"want_pool"`
		Tolerance           float64
		Features            [][]float32
		Saturating          [][]float32 `json:"features_saturating"`
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	saturates := productsSaturate(t)
	for _, c := range cases {
		if saturates && c.Saturating != nil {
			c.Features = c.Saturating
		}
		t.Run(c.Model+" "+c.Output+" "+c.Pool, func(t *testing.T) {
			m := openTest(t, filepath.Join(exports, c.Model), Options{Output: c.Output, Pool: c.Pool})
			if m.Output() != c.WantOutput || m.Pool() != c.WantPool {
				t.Errorf("output %s, pool %q; want %s, %q", m.Output(), m.Pool(), c.WantOutput, c.WantPool)
			}
			for i, got := range patterned(t, m, len(c.Features)) {
				if len(got) != len(c.Features[i]) {
					t.Fatalf("%d features, want %d", len(got), len(c.Features[i]))
				}
				for j, want := range c.Features[i] {
					if math.Abs(float64(got[j]-want)) > c.Tolerance*max(1, math.Abs(float64(want))) {
						t.Errorf("feature %d of image %d is %v, want %v", j, i, got[j], want)
					}
				}
			}
		})
	}
}

// productsSaturate tells which of two right answers onnxruntime gives here for a
// quantised graph.
func productsSaturate(t testing.TB) bool {
	t.Helper()
	if err := InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	if Products() == UnknownProducts {
		t.Fatal("onnxruntime does not say whether 8-bit products saturate")
	}
	return Products() == SaturatingProducts
}

// patterned returns the features of n images of the pattern that the script
// makes.
func patterned(t *testing.T, m *Model, n int) [][]float32 {
	t.Helper()
	r, err := m.NewRunner(n)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	area := m.Spec.Height * m.Spec.Width
	var rows [][]float32
	for first := 0; first < n; first += r.Batch() {
		rows = append(rows, make([][]float32, min(r.Batch(), n-first))...)
		for i := first; i < len(rows); i++ {
			for index := range 3 * area {
				at := index
				if m.Layout() == preprocess.NHWC {
					at = index%area*3 + index/area
				}
				r.Input(i - first)[at] = float32((index*31+i*17)%64)/32 - 1
			}
		}
		if err := r.Run(t.Context(), len(rows)-first); err != nil {
			t.Fatal(err)
		}
		for i := first; i < len(rows); i++ {
			rows[i] = append([]float32(nil), r.Features(i-first)...)
		}
	}
	return rows
}

// TestExportInAHubsCache: Hugging Face's cache holds links to files of other
// names, those with weights too.
func TestExportInAHubsCache(t *testing.T) {
	cache := t.TempDir()
	for _, name := range []string{"preprocessor_config.json", "onnx/model.onnx", "onnx/model.onnx_data"} {
		data, err := os.ReadFile(filepath.Join(exports, "external", name))
		if err != nil {
			t.Fatal(err)
		}
		blob, link := filepath.Join(cache, "blobs", "of-"+filepath.Base(name)), filepath.Join(cache, "snapshots", "main", name)
		write(t, blob, string(data))
		write(t, link+".folder", "")
		if err := os.Symlink(blob, link); err != nil {
			t.Skip(err)
		}
		if _, err := os.Stat(link); err != nil {
			t.Skip("no links here, as under Wine")
		}
	}
	linked := openTest(t, filepath.Join(cache, "snapshots", "main"), Options{})
	plain := openTest(t, filepath.Join(exports, "external"), Options{})
	if linked.Fingerprint() != plain.Fingerprint() {
		t.Error("the fingerprint depends on where files are")
	}
	near(t, "features", patterned(t, linked, 1)[0], patterned(t, plain, 1)[0], 1e-3)
}

// TestExportsThatCannotBeUsed: what to do instead is said.
func TestExportsThatCannotBeUsed(t *testing.T) {
	if err := InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	clip := filepath.Join(exports, "transformersjs-clip")
	refuse := func(dir string, opts Options, texts ...string) {
		t.Helper()
		m, err := OpenModel(t.Context(), dir, opts)
		if err == nil {
			m.Close()
		}
		wantError(t, err, texts...)
	}
	refuse(filepath.Join(clip, "onnx", "model.onnx"), Options{}, "input_ids", filepath.Join(clip, "onnx", "vision_model.onnx"), "vision_model_fp16.onnx")
	refuse(filepath.Join(exports, "optimum-patches"), Options{Pool: "cls"}, "16 tokens", "Pool: ")
	refuse(filepath.Join(exports, "optimum-resnet"), Options{Pool: "cls"}, "last_hidden_state", "Pool: ")

	dir := t.TempDir()
	write(t, filepath.Join(dir, "preprocessor_config.json"), processor(16, 16))
	for _, name := range []string{"onnx/vision_model_q4.onnx", "onnx/text_model.onnx"} {
		write(t, filepath.Join(dir, name), "")
	}
	refuse(dir, Options{}, "choose one", filepath.Join(dir, "onnx/vision_model_q4.onnx"))

	// Weights that did not come along.
	graph, err := os.ReadFile(filepath.Join(exports, "external", "onnx", "model.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	dir = testModel(t, 16, 16, graph)
	refuse(dir, Options{}, "model.onnx_data")
}

func TestLeadingTokens(t *testing.T) {
	for _, test := range []struct {
		name                  string
		tokens, height, width int
		leading               int
		known                 bool
	}{
		{"ViT-B/16, CLIP", 197, 224, 224, 1, true},
		{"ViT-B/32", 50, 224, 224, 1, true},
		{"DINOv2 with 14 pixels a patch", 257, 224, 224, 1, true},
		{"DINOv2 with registers", 261, 224, 224, 5, true},
		{"DINOv2 at its own size", 1370, 518, 518, 1, true},
		{"DINOv3, 4 registers", 201, 224, 224, 5, true},
		{"DeiT, distilled", 198, 224, 224, 2, true},
		{"SigLIP, patches alone", 196, 224, 224, 0, true},
		{"SigLIP at 384", 576, 384, 384, 0, true},
		{"SigLIP so400m, a border left out", 729, 384, 384, 0, true},
		{"Swin", 49, 224, 224, 0, true},
		{"DINOv2 on images that patches do not divide", 325, 256, 256, 1, true},
		{"wide images", 1 + 14*28, 224, 448, 1, true},
		{"CIFAR in patches of 4 with registers", 69, 32, 32, 5, true},
		{"queries that are no patches", 100, 224, 224, 0, false},
		{"one token", 1, 224, 224, 0, false},
	} {
		if leading, known := leadingTokens(test.tokens, test.height, test.width); leading != test.leading || known != test.known {
			t.Errorf("%s: %d, %t; want %d, %t", test.name, leading, known, test.leading, test.known)
		}
	}
}
