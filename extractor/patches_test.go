package extractor

import (
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// woven draws crossing threads with noise, and a hole where there is one.
func woven(t *testing.T, dir string, seed uint64, hole image.Rectangle) images.Item {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 0))
	img, phase := image.NewNRGBA(image.Rect(0, 0, 112, 112)), rng.Float64()
	for y := range 112 {
		for x := range 112 {
			v := 120 + 50*math.Sin(float64(x)/3+phase)*math.Cos(float64(y)/3) + 8*rng.NormFloat64()
			img.SetNRGBA(x, y, color.NRGBA{uint8(v), uint8(v), uint8(.8 * v), 255})
		}
	}
	draw.Draw(img, hole, image.NewUniform(color.NRGBA{10, 10, 40, 255}), image.Point{}, draw.Src)
	file := filepath.Join(dir, fmt.Sprint(seed, hole.Dx(), ".png"))
	testenv.SavePNG(t, file, img)
	return images.Item{Path: filepath.Base(file), File: file, Label: -1}
}

// TestPatches: a model of patches is the same for any number of workers and from its file, is
// described after the embedding, which has the same bits, and finds the hole in an image.
func TestPatches(t *testing.T) {
	t.Parallel()
	testenv.Runtime(t)
	dir, backbone := t.TempDir(), testenv.Backbone(t)
	var some []images.Item
	for i := range 8 {
		some = append(some, woven(t, dir, uint64(i), image.Rectangle{}))
	}
	open := func(opts Options) *Model {
		m, err := OpenModel(t.Context(), backbone, opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return m
	}
	plain, unfitted := open(Options{}), open(Options{PatchNodes: []string{AutoLayers}})
	if unfitted.Dim() != plain.Dim() || unfitted.Fingerprint() != plain.Fingerprint() {
		t.Error("values whose patches are to be fitted change the features")
	}
	p, err := unfitted.FitPatches(t.Context(), some, Options{Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	again, err := unfitted.FitPatches(t.Context(), some, Options{Workers: 3})
	if err != nil || again.String() != p.String() || len(p.Images) != len(some) || len(p.Nodes) != len(autoPatches) {
		t.Fatalf("%v of %d images with 3 workers, %v with one: %v", again, len(p.Images), p, err)
	}
	loaded, err := ReadPatches(p.File())
	if err != nil || loaded.Layer() != p.Layer() {
		t.Fatalf("from the file %v, want %v: %v", loaded, p, err)
	}
	m := open(Options{Layers: []string{p.Nodes[0].Name}, Patches: loaded}) // one value for both
	if err := m.ProveLayers(t.Context()); err != nil {
		t.Error(err)
	}
	if layers := m.Layers(); len(layers) != 2 || layers[1] != p.Layer() || m.Fingerprint() == plain.Fingerprint() || m.EmbeddingFingerprint() != plain.Fingerprint() {
		t.Errorf("layers %v", layers)
	}
	hole := image.Rect(70, 20, 84, 34)
	test := []images.Item{some[0], woven(t, dir, 100, image.Rectangle{}), woven(t, dir, 100, hole)}
	rows := make([]Row, len(test))
	if _, err := m.Extract(t.Context(), images.Of(test...), Options{}, func(r Row) error {
		r.Features = slices.Clone(r.Features)
		rows[r.Index] = r
		return r.Err
	}); err != nil {
		t.Fatal(err)
	}
	worstOf := func(r Row) float32 { return r.Features[m.Dim()-2*len(p.Nodes)] }
	if !loaded.Has(rows[0].SHA256) || loaded.Has(rows[1].SHA256) {
		t.Error("images of the fit and others are not told apart")
	}
	if worstOf(rows[2]) < worstOf(rows[1])+.5 {
		t.Errorf("the worst patches of an image with a hole are %g, without %g", worstOf(rows[2]), worstOf(rows[1]))
	}
	seen := rows[2].Map
	at := slices.Index(seen.Values, slices.Max(seen.Values))
	x := seen.Area[0] + (float64(at%seen.Width)+.5)/float64(seen.Width)*(seen.Area[2]-seen.Area[0])
	y := seen.Area[1] + (float64(at/seen.Width)+.5)/float64(seen.Height)*(seen.Area[3]-seen.Area[1])
	if pixel := image.Pt(int(112*x), int(112*y)); !pixel.In(hole.Inset(-6)) || !(seen.Values[at] > .5) {
		t.Errorf("the strangest place, %g beyond what is usual, is at %v, and the hole %v", seen.Values[at], pixel, hole)
	}
}

// TestPatchesOfLayouts: of tokens and of maps, in float16 and 8 bits too, the session computes
// the distances that the values themselves give.
func TestPatchesOfLayouts(t *testing.T) {
	t.Parallel()
	testenv.Runtime(t)
	dir := t.TempDir()
	var some []images.Item
	for i := range 4 {
		some = append(some, woven(t, dir, uint64(i), image.Rect(10*i, 20, 20*i, 50)))
	}
	for model, node := range map[string]string{
		"optimum-patches": "last_hidden_state", "optimum-class": "last_hidden_state", "optimum-registers": "last_hidden_state",
		"optimum-resnet": "last_hidden_state", "half": "cells", "nhwc-int8": "nchw_DequantizeLinear_Output",
	} {
		t.Run(model, func(t *testing.T) {
			extract := func(opts Options) (m *Model, rows []Row) {
				m = openTest(t, filepath.Join(exports, model), opts)
				rows = make([]Row, len(some))
				if _, err := m.Extract(t.Context(), images.Of(some...), Options{}, func(r Row) error {
					r.Features = slices.Clone(r.Features)
					rows[r.Index] = r
					return r.Err
				}); err != nil {
					t.Fatal(err)
				}
				return m, rows
			}
			m, values := extract(Options{PatchNodes: []string{node}})
			p, err := m.FitPatches(t.Context(), some, Options{})
			if err != nil {
				t.Fatal(err)
			}
			for _, shape := range [][]int64{p.Nodes[0].Shape, nil} { // older models do not say it
				p.Nodes[0].Shape = shape
				_, rows := extract(Options{Patches: p})
				for i, r := range rows {
					far := p.Nodes[0].distances(values[i].patches[0])
					most, mean := worst(far)
					got := r.Features[len(r.Features)-2:]
					if math.Abs(float64(got[0])-math.Log(most)) > 1e-4 || math.Abs(float64(got[1])-math.Log(mean)) > 1e-4 || len(r.Map.Values) != len(far) {
						t.Errorf("image %d: %v of %d places, want %g and %g of %d", i, got, len(r.Map.Values), math.Log(most), math.Log(mean), len(far))
					}
					for at, v := range far {
						if want := v/p.Nodes[0].Usual - 1; math.Abs(float64(r.Map.Values[at]-want)) > 1e-3*(1+math.Abs(float64(want))) {
							t.Fatalf("image %d: %g at place %d, want %g", i, r.Map.Values[at], at, want)
						}
					}
				}
			}
		})
	}
}

// TestPatchDistances: distances, the worst of them and places are those that loops give.
func TestPatchDistances(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	normal := func(n int) (x []float32) {
		for range n {
			x = append(x, float32(rng.NormFloat64()))
		}
		return x
	}
	p, err := newPatched([]int64{3, 5, 40}, 224, 224)
	if err != nil || p.width != 40 || p.height != 5 || p.channelsLast {
		t.Fatalf("%+v, %v", p, err)
	}
	out := normal(3 * 200)
	x := p.rows(out)
	node := &PatchNode{Mean: normal(3), Whiten: normal(9)}
	far := node.distances(x)
	for at, got := range far {
		want := 0.
		for r := range 3 {
			z := 0.
			for c := range 3 {
				z += float64(node.Whiten[3*r+c]) * float64(out[200*c+at]-node.Mean[c])
			}
			want += z * z
		}
		if math.Abs(float64(got)-want) > 1e-4*(1+want) {
			t.Fatalf("patch %d is %g away, want %g", at, got, want)
		}
	}
	most, mean := worst(far)
	sorted := slices.Sorted(slices.Values(far))
	if want := float64(sorted[199]+sorted[198]) / 2; math.Abs(most-want) > 1e-5*want || !(mean < most) {
		t.Errorf("worst %g, want %g; mean %g", most, want, mean)
	}
	for _, row := range [][]int64{{7}, {3, 2, 2}, {19, 4, 4, 1}, {12, 8}, {3000, 8, 8}} {
		if p, err := newPatched(row, 224, 224); err == nil {
			t.Errorf("%v is taken for %d places of %d values", row, p.places(), p.channels)
		}
	}
	for _, test := range []struct {
		row                 []int64
		width, height, skip int
	}{{[]int64{197, 8}, 14, 14, 1}, {[]int64{201, 8}, 14, 14, 5}, {[]int64{196, 8}, 14, 14, 0}, {[]int64{9, 9, 4}, 9, 9, 0}} {
		if p, err := newPatched(test.row, 224, 224); err != nil || p.width != test.width || p.height != test.height || p.skip != test.skip {
			t.Errorf("%v: %+v, %v", test.row, p, err)
		}
	}
}

func TestPatchesRefused(t *testing.T) {
	t.Parallel()
	testenv.Runtime(t)
	image := floats("image", -1, 3, 6, 8)
	model := testModel(t, 6, 8, graph([]TensorInfo{image}, []TensorInfo{floats("features", -1, 144)},
		node("Relu", "image", "block.1"), node("Flatten", "block.1", "flat"), node("Relu", "flat", "features")))
	for name, want := range map[string]string{"block.2": "near names: block.1", "flat": "dimensions", "block.1,block.1": "twice", "auto": "blocks", "a,b,c,d": "at most 3"} {
		_, err := OpenModel(t.Context(), model, Options{PatchNodes: strings.Split(name, ",")})
		if err == nil || !strings.Contains(err.Error(), want) || options.Name(err) != "PatchNodes" {
			t.Errorf("patches %s: %v, want %q", name, err, want)
		}
	}
	p, err := newPatches([]PatchNode{{Name: "block.1", Mean: make([]float32, 4), Whiten: make([]float32, 16), Usual: 1}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, shape := range [][]int64{nil, {4, 6, 8}, {3, 5, 8}} { // as the model of patches has it
		p.Nodes[0].Shape = shape
		if _, err := OpenModel(t.Context(), model, Options{Patches: p}); err == nil || !strings.Contains(err.Error(), "another graph") {
			t.Errorf("a model of patches of another graph, %v: %v", shape, err)
		}
	}
	broken, err := newPatches([]PatchNode{{Name: "block.1", Mean: make([]float32, 4), Whiten: make([]float32, 9), Usual: 1}}, nil)
	if err == nil {
		_, err = ReadPatches(broken.File())
	}
	if err == nil {
		t.Error("tensors that do not fit are read")
	}
}

// FuzzReadPatches: what is read has tensors that fit, and is described without a panic.
func FuzzReadPatches(f *testing.F) {
	p, err := newPatches([]PatchNode{{Name: "block.1", Mean: []float32{1, 2}, Whiten: []float32{1, 0, 0, 1}, Usual: 1}}, []int64{1, 2})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p.File())
	f.Add(p.File()[:len(p.File())-1])
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ReadPatches(data)
		if err != nil {
			return
		}
		if !slices.IsSorted(p.Images) || p.Layer().D != 2*len(p.Nodes) {
			t.Error("what was read does not fit together")
		}
		for _, n := range p.Nodes {
			if far := n.distances(make([]float32, 3*len(n.Mean))); len(far) != 3 {
				t.Errorf("%d distances", len(far))
			}
		}
	})
}
