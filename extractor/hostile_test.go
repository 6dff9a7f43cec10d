//go:build unix

package extractor

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// int64s is a node that makes a constant of one dimension, or a number of none.
func int64s(output string, scalar bool, values ...int64) []byte {
	tensor := varint(2, 7)
	if !scalar {
		tensor = append(tensor, varint(1, uint64(len(values)))...)
	}
	var raw []byte
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint64(raw, uint64(v))
	}
	tensor = append(tensor, field(9, raw)...)
	return constant(output, tensor)
}

// looping is a graph with a loop that runs as often as the nodes before it say, in
// the value steps.
func looping(batch int64, steps ...[]byte) []byte {
	info := func(name, elem string, shape ...int64) []byte { return valueInfo(TensorInfo{name, elem, shape}) }
	body := message(
		node("Identity", "go", "on"), node("Sin", "v", "w"), field(2, []byte("body")),
		field(11, info("step", "int64")), field(11, info("go", "bool")), field(11, info("v", "float32", -1, 3, 6, 8)),
		field(12, info("on", "bool")), field(12, info("w", "float32", -1, 3, 6, 8)))
	loop := message(field(1, []byte("body")), field(6, body), varint(20, 5))
	return graph([]TensorInfo{floats("image", batch, 3, 6, 8)}, []TensorInfo{floats("features", batch, 3, 6, 8)},
		append(steps, constant("first", message(varint(2, 9), field(9, []byte{1}))), node("Loop", "steps,first,image", "features", loop))...)
}

// endless is a graph whose loop has so many steps that it does not end. Their
// number is no constant of the graph, but a product of some.
func endless() []byte {
	return looping(-1, int64s("some", true, 1<<31), node("Mul", "some,some", "steps"))
}

// endlessForBright is a graph whose loop does not end for images with a value above 0.
func endlessForBright(batch int64) []byte {
	return looping(batch, node("ReduceMax", "image", "most", intAttribute("keepdims", 0)), node("Relu", "most", "bright"),
		int64s("many", true, 1<<50), node("Cast", "many", "factor", intAttribute("to", 1)), node("Mul", "bright,factor", "product"),
		node("Cast", "product", "steps", intAttribute("to", 7)))
}

// TestEndlessRuns: an image that a graph never ends with is an error like others.
func TestEndlessRuns(t *testing.T) {
	dir := t.TempDir()
	bright := []int{1, 4}
	var items []images.Item
	for i := range 6 {
		file := filepath.Join(dir, fmt.Sprint(i, ".png"))
		img := image.NewGray(image.Rect(0, 0, 8, 6))
		if slices.Contains(bright, i) {
			img.Pix[0] = 255
		}
		var b bytes.Buffer
		if err := png.Encode(&b, img); err != nil {
			t.Fatal(err)
		}
		write(t, file, b.String())
		items = append(items, images.Item{File: file})
	}
	for name, batch := range map[string]int64{"any": -1, "fixed": 3} {
		m := openTest(t, testModel(t, 6, 8, endlessForBright(batch)), Options{RunTimeout: 20 * time.Millisecond})
		for _, size := range []int{1, 3} {
			t.Run(fmt.Sprint(name, size), func(t *testing.T) {
				stats, err := m.Extract(t.Context(), images.Of(items...), Options{Batch: size, Workers: 1}, func(r Row) error {
					if slices.Contains(bright, r.Index) {
						if !errors.Is(r.Err, ErrRunTimeout) || options.Name(r.Err) != "RunTimeout" {
							t.Errorf("image %d: %v", r.Index, r.Err)
						}
						return nil
					}
					if r.Err != nil || slices.ContainsFunc(r.Features, func(v float32) bool { return v != -1 }) {
						t.Errorf("image %d: %v, %v", r.Index, r.Features, r.Err)
					}
					return nil
				})
				if err != nil || stats != (Stats{6, 2}) {
					t.Errorf("%+v, %v", stats, err)
				}
			})
		}
	}
	if _, err := OpenModel(t.Context(), dir, Options{RunTimeout: -1}); options.Name(err) != "RunTimeout" {
		t.Error(err)
	}
}

// TestHostileGraphs: a graph that is a few hundred bytes long takes neither all
// memory nor all time.
func TestHostileGraphs(t *testing.T) {
	image, half := floats("image", -1, 3, 6, 8), TensorInfo{"image", "float16", []int64{-1, 3, 6, 8}}
	for _, test := range []struct {
		name  string
		graph []byte
		want  error // nil for any
	}{
		{"a fixed batch of 23 GB", graph([]TensorInfo{floats("image", 3e7, 3, 6, 8)}, []TensorInfo{floats("features", 3e7, 3, 6, 8)}, node("Identity", "image", "features")), onnx.ErrTooLarge},
		{"a fixed batch of 10^12", graph([]TensorInfo{floats("image", 1e12, 3, 6, 8)}, []TensorInfo{floats("features", 1e12, 3, 6, 8)}, node("Identity", "image", "features")), onnx.ErrTooLarge},
		{"a fixed batch of 2^62", graph([]TensorInfo{floats("image", 1<<62, 3, 6, 8)}, []TensorInfo{floats("features", 1<<62, 3, 6, 8)}, node("Identity", "image", "features")), onnx.ErrTooLarge},
		{"a float16 output of 2^40 columns", graph([]TensorInfo{half}, []TensorInfo{{"features", "float16", []int64{-1, 1 << 40}}}, node("Flatten", "image", "features")), onnx.ErrTooLarge},
		{"a float16 output of 2^80 columns", graph([]TensorInfo{half}, []TensorInfo{{"features", "float16", []int64{-1, 1 << 40, 1 << 40}}}, node("Flatten", "image", "features")), onnx.ErrTooLarge},
		{"an output of 2^40 columns", graph([]TensorInfo{image}, []TensorInfo{floats("features", -1, 1<<40)}, node("Flatten", "image", "features")), onnx.ErrTooLarge},
		{"an Expand to 2^28", graph([]TensorInfo{image}, []TensorInfo{floats("features", -1, -1)}, int64s("shape", false, 1, 1<<28), int64s("axes", false, 1, 2, 3), node("ReduceMean", "image", "mean", intAttribute("keepdims", 0), intsAttribute("axes", 1)),
			node("Flatten", "image", "flat"), node("ReduceMean", "flat", "one", intsAttribute("axes", 1)), node("Expand", "one,shape", "features")), onnx.ErrTooLarge},
		{"2^30 random values", graph([]TensorInfo{image}, []TensorInfo{floats("features", -1, -1)}, node("RandomNormal", "", "noise", intsAttribute("shape", 1<<30)), node("Add", "image,noise", "features")), onnx.ErrTooLarge},
		{"an Expand to 2^45 that only a run shows", graph([]TensorInfo{image}, []TensorInfo{floats("features", -1, -1)}, int64s("factor", false, 1<<45, 1), node("Flatten", "image", "flat"), node("ReduceMean", "flat", "one", intsAttribute("axes", 1)),
			node("Shape", "one", "size"), node("Mul", "size,factor", "swapped"), node("Expand", "one,swapped", "wide"), node("Transpose", "wide", "features")), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, err := OpenModel(t.Context(), testModel(t, 6, 8, test.graph), Options{})
			if err == nil {
				m.Close()
			}
			if err == nil || test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
		})
	}
	dir := testModel(t, 6, 8, endless())
	if _, err := OpenModel(t.Context(), dir, Options{OpenTimeout: 200 * time.Millisecond}); !errors.Is(err, ErrOpenTimeout) || options.Name(err) != "OpenTimeout" {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(200*time.Millisecond, cancel)
	if _, err := OpenModel(ctx, dir, Options{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestComputedSizes: a tensor whose size only a run shows takes no more memory than a
// run may have, nor does one that is computed when the graph is loaded. Others of the
// same session run afterwards.
func TestComputedSizes(t *testing.T) {
	defer func(usual func() int64) { runMemory = usual }(runMemory)
	runMemory = func() int64 { return 256 << 20 }
	// A tensor of factor·batch × 1 numbers, of which the mean is taken.
	wide := func(batch, factor int64) string {
		return testModel(t, 6, 8, graph([]TensorInfo{floats("image", batch, 3, 6, 8)}, []TensorInfo{floats("features", batch, -1)},
			int64s("factor", false, factor, 1), node("Flatten", "image", "flat"), node("ReduceMean", "flat", "one", intsAttribute("axes", 1)),
			node("Shape", "one", "size"), node("Mul", "size,factor", "swapped"), node("ConstantOfShape", "swapped", "wide"),
			node("ReduceMean", "wide", "mean", intsAttribute("axes", 0)), node("Add", "one,mean", "features")))
	}
	for _, batch := range []int64{-1, 1} { // with 1 all sizes are known when the graph is loaded
		m := openTest(t, wide(batch, 1<<20), Options{}) // 4 MB
		if m.Dim() != 1 {
			t.Errorf("%d features", m.Dim())
		}
		if _, err := OpenModel(t.Context(), wide(batch, 1<<27), Options{}); !errors.Is(err, ErrRunMemory) { // 512 MiB
			t.Errorf("a batch of %d: %v", batch, err)
		}
		r, err := m.NewRunner(1)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(r.Run(t.Context(), 1), r.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestSpecialFiles: a model's folder with pipes and devices in it.
func TestSpecialFiles(t *testing.T) {
	for name, graph := range map[string][]byte{
		"preprocessor_config.json": pixels(-1),
		"model.onnx":               nil,
		"weights.bin":              field(7, field(5, external("weights.bin"))),
	} {
		for _, kind := range []string{"pipe", "/dev/zero"} {
			t.Run(name+" "+filepath.Base(kind), func(t *testing.T) {
				dir := testModel(t, 6, 8, graph)
				file := filepath.Join(dir, name)
				os.Remove(file)
				err := os.Symlink(kind, file)
				if kind == "pipe" {
					err = errors.Join(err, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o666))
				}
				if err != nil {
					t.Skip(err)
				}
				m, err := OpenModel(t.Context(), dir, Options{})
				if err == nil {
					m.Close()
				}
				if name == "model.onnx" { // no graph is found
					wantError(t, err, "has none of model.onnx")
				} else if !errors.Is(err, disk.ErrKind) {
					t.Error(err)
				}
			})
		}
	}
}

// A megabyte of idx.gz promises a thousand million images of one pixel.
func TestManyTinyImages(t *testing.T) {
	file := filepath.Join(t.TempDir(), "train-images-idx3-ubyte.gz")
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	head := []byte{0, 0, 8, 3}
	for _, size := range []uint32{1 << 24, 1, 1} {
		head = binary.BigEndian.AppendUint32(head, size)
	}
	_, err := w.Write(append(head, make([]byte, 1<<24)...))
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	write(t, file, b.String())
	if _, err := images.List(t.Context(), images.ListOptions{Root: file}); !errors.Is(err, images.ErrIDX) {
		t.Error(err)
	}
}

// Folders with two links each to the next are looked into once each.
func TestLinksThatMultiply(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "00", "1.png"), "no image")
	for i := range 22 {
		dir := filepath.Join(root, fmt.Sprintf("%02d", i))
		next := fmt.Sprintf("../%02d", i+1)
		if err := errors.Join(os.MkdirAll(dir, 0o777), os.Symlink(next, filepath.Join(dir, "a")), os.Symlink(next, filepath.Join(dir, "b"))); err != nil {
			t.Skip(err)
		}
	}
	write(t, filepath.Join(root, "22", "image"), "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
	l, err := images.List(t.Context(), images.ListOptions{Root: root})
	if l == nil || len(l.Items) != 2 {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestQuantised(t *testing.T) {
	plain := openTest(t, testModel(t, 6, 8, pixels(-1)), Options{})
	scaled := openTest(t, testModel(t, 6, 8, graph([]TensorInfo{floats("image", -1, 3, 6, 8)}, []TensorInfo{floats("features", -1, 3, 6, 8)},
		constant("scale", message(varint(2, 1), field(9, []byte{0, 0, 0x80, 0x3f}))), constant("zero", message(varint(2, 2), field(9, []byte{0}))),
		node("QuantizeLinear", "image,scale,zero", "bytes"), node("DequantizeLinear", "bytes,scale,zero", "features"))), Options{})
	if plain.Quantised() || !scaled.Quantised() {
		t.Errorf("%v and %v", plain.Quantised(), scaled.Quantised())
	}
	// As scripts/quantise marks graphs whose weights have 7 bits: in a StringStringEntryProto.
	data, err := os.ReadFile(scaled.File)
	if err != nil {
		t.Fatal(err)
	}
	marked := field(14, message(field(1, []byte("mlrbfn.quantise")), field(2, []byte("no product of 8 bits saturates"))))
	write(t, scaled.File, string(append(data, marked...)))
	if m := openTest(t, filepath.Dir(scaled.File), Options{}); m.Quantised() {
		t.Error("a graph whose products saturate nowhere depends on the processor")
	}
}

func TestBfloat16(t *testing.T) {
	to := func(element uint64) []byte { return message(field(1, []byte("to")), varint(3, element), varint(20, 2)) }
	dir := testModel(t, 6, 8, graph([]TensorInfo{floats("image", -1, 3, 6, 8)}, []TensorInfo{floats("features", -1, 3, 1, 1)},
		node("Cast", "image", "small", to(16)), node("GlobalAveragePool", "small", "pooled"), node("Cast", "pooled", "features", to(1))))
	_, err := OpenModel(t.Context(), dir, Options{})
	wantError(t, err, "model.onnx", "export it in float32 or float16")
}
