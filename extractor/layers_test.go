package extractor

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// TestLayersLeaveTheEmbedding: with the ends of blocks as outputs the embedding of real
// exports has the same bits, in batches too, and the layers follow it.
func TestLayersLeaveTheEmbedding(t *testing.T) {
	t.Parallel()
	testenv.Runtime(t)
	dirs := []string{testenv.Backbone(t)}
	if !testing.Short() {
		shared := testenv.Shared(t, "models")
		for _, name := range []string{"vit-tiny-p16", "mobilenetv2", "mobilenetv1-nhwc", "densenet100-cifar100", "resnet20-cifar10"} {
			dirs = append(dirs, filepath.Join(shared, name))
		}
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(filepath.Dir(dir))+"/"+filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			plain, err := OpenModel(t.Context(), dir, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer plain.Close()
			m, err := OpenModel(t.Context(), dir, Options{Layers: []string{AutoLayers}})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			layers := m.Layers()
			if len(layers) < 2 || len(layers) > mostLayers || m.Fingerprint() == plain.Fingerprint() || m.EmbeddingFingerprint() != plain.Fingerprint() {
				t.Errorf("layers %v, fingerprints %s and %s of %s", layers, m.Fingerprint(), m.EmbeddingFingerprint(), plain.Fingerprint())
			}
			if err := m.ProveLayers(t.Context()); err != nil {
				t.Error(err)
			}
			var names []string
			for _, l := range layers {
				names = append(names, l.Name)
			}
			named, err := OpenModel(t.Context(), dir, Options{Layers: names})
			if err != nil {
				t.Fatal(err)
			}
			defer named.Close()
			if named.Fingerprint() != m.Fingerprint() || named.Dim() != m.Dim() || m.Dim() <= plain.Dim() {
				t.Errorf("by their names: %d features of fingerprint %s, want %d, %s", named.Dim(), named.Fingerprint(), m.Dim(), m.Fingerprint())
			}
			a, err := m.Probe(t.Context())
			b, errB := named.Probe(t.Context())
			if err = errors.Join(err, errB); err != nil || !slices.Equal(a.Features, b.Features) || slices.ContainsFunc(a.Features, func(v float32) bool { return math.IsNaN(float64(v)) }) {
				t.Errorf("by their names they are others: %v", err)
			}
		})
	}
}

func TestLayersRefused(t *testing.T) {
	t.Parallel()
	testenv.Runtime(t)
	image := floats("image", -1, 3, 6, 8)
	model := testModel(t, 6, 8, graph([]TensorInfo{image}, []TensorInfo{floats("features", -1, 144)},
		node("Relu", "image", "block.1"), node("Flatten", "block.1", "flat"), node("Relu", "flat", "features"),
		node("Shape", "image", "size"), node("Unsqueeze", "block.1", "deep", intsAttribute("axes", 1))))
	for name, want := range map[string]string{"block.2": "near names: block.1", "size": "size", "block.1,block.1": "twice", "auto": "blocks"} {
		_, err := OpenModel(t.Context(), model, Options{Layers: strings.Split(name, ",")})
		if err == nil || !strings.Contains(err.Error(), want) || name != "size" && options.Name(err) != "Layers" {
			t.Errorf("layers %s: %v, want %q", name, err, want)
		}
	}
}

// TestLayerPooling compares pooling with what a loop gives.
func TestLayerPooling(t *testing.T) {
	t.Parallel()
	out := make([]float32, 5*5*6*7)
	for i := range out {
		out[i] = float32(i*i%101) - 50
	}
	for _, test := range []struct {
		row  []int64
		pool string
		want func(d int) float64
		d    int
	}{
		{[]int64{7}, "", func(d int) float64 { return float64(out[d]) }, 7},
		{[]int64{5, 4}, "cls+mean", func(d int) float64 {
			if d < 4 {
				return float64(out[d])
			}
			return meanOf(out, 4+d-4, 4, 4)
		}, 8},
		{[]int64{4, 6}, "mean", func(d int) float64 { return meanOf(out, d, 6, 4) }, 6},
		{[]int64{6, 5, 5}, "mean", func(d int) float64 { return meanOf(out, 25*d, 1, 25) }, 6},
		{[]int64{5, 5, 6}, "mean", func(d int) float64 { return meanOf(out, d, 6, 25) }, 6},
	} {
		p, err := newLayerPooling(test.row, 32, 32)
		if err != nil || p.name != test.pool || p.dim != test.d {
			t.Errorf("%v: %q of %d, %v; want %q of %d", test.row, p.name, p.dim, err, test.pool, test.d)
			continue
		}
		dst := make([]float32, p.dim)
		p.apply(dst, out)
		for d, v := range dst {
			if want := float32(test.want(d)); v != want {
				t.Errorf("%v: value %d is %g, want %g", test.row, d, v, want)
			}
		}
	}
	if _, err := newLayerPooling([]int64{2, 3, 4, 5}, 32, 32); err == nil {
		t.Error("five dimensions are pooled")
	}
}

func meanOf(out []float32, from, step, n int) (sum float64) {
	for i := range n {
		sum += float64(out[from+i*step])
	}
	return sum / float64(n)
}

func TestBlockEnds(t *testing.T) {
	t.Parallel()
	w := func(ops ...string) (waists []onnx.Waist) {
		for _, op := range ops {
			name, joins := strings.CutSuffix(op, "*")
			waists = append(waists, onnx.Waist{Name: op, Op: name, Joins: joins})
		}
		return waists
	}
	for _, test := range []struct {
		waists []onnx.Waist
		want   []string
	}{
		{w("Conv", "Add*", "Relu", "Conv", "Relu", "Add*", "Pool"), []string{"Relu", "Add*"}},
		{w("Conv", "Clip", "Conv", "Conv", "Clip"), []string{"Clip", "Conv"}},
		{w("Mul*", "Conv", "Relu", "Conv", "Relu"), []string{"Relu"}},
		{w("Conv", "QuantizeLinear", "DequantizeLinear", "Conv", "Add*", "QuantizeLinear", "Read", "Conv", "Pool"), []string{"Read"}},
		{w("Conv", "Add*", "LayerNormalization", "Pool"), []string{"LayerNormalization"}},
		{nil, nil},
	} {
		if got := blockEnds(test.waists, append(slices.Clone(fused), "LayerNormalization")); !slices.Equal(got, test.want) {
			t.Errorf("%v: %v, want %v", test.waists, got, test.want)
		}
	}
}

// TestBlockEndsOfExports: blocks of the graphs that timm, transformers and quantisers write
// (testdata/graphs.txt, by generate_graphs.py) end where branches join.
func TestBlockEndsOfExports(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("testdata", "graphs.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range strings.Split(string(text), "# ")[1:] {
		lines := strings.Split(strings.TrimSpace(one), "\n")
		name, want, _ := strings.Cut(lines[0], " ")
		var nodes [][]byte
		for _, line := range lines[1:] {
			parts := strings.Fields(line)
			for _, output := range strings.Split(parts[2], ",") {
				nodes = append(nodes, node(parts[0], parts[1], output))
			}
		}
		together := fused
		if strings.HasSuffix(name, "8bit") {
			together = append(slices.Clone(fused), "LayerNormalization")
		}
		ends := blockEnds(onnx.Waists(graph(nil, nil, nodes...), "x", "y"), together)
		if got := strings.Join(ends, " "); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestMapsArePooled: the mean of a map, which the session takes, follows the embedding for each
// image of a batch.
func TestMapsArePooled(t *testing.T) {
	t.Parallel()
	testenv.Runtime(t)
	model := testModel(t, 6, 8, graph([]TensorInfo{floats("image", -1, 3, 6, 8)}, []TensorInfo{floats("features", -1, 144)},
		node("Relu", "image", "block.1"), node("Flatten", "block.1", "features")))
	m, err := OpenModel(t.Context(), model, Options{Layers: []string{"block.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	r, err := m.NewRunner(2)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i := range 2 {
		for k := range r.Input(i) {
			r.Input(i)[k] = float32((i+2)*k%23) - 11
		}
	}
	if err := r.Run(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		row := r.Features(i)
		for c, got := range row[144:] {
			if want := meanOf(row, 48*c, 1, 48); len(row) != 147 || math.Abs(float64(got)-want) > 1e-5 {
				t.Errorf("image %d, channel %d: %g of %d, want %g", i, c, got, len(row), want)
			}
		}
	}
}
