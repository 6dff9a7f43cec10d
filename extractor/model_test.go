package extractor

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

func TestOpenModelFindsTheGraph(t *testing.T) {
	if err := InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name         string
		graphs       []string // in the order of preference, after the config's folder
		config, open string
		want         string
	}{
		{"beside the configuration", []string{"model.onnx", "onnx/vision_model.onnx"}, "", "", "model.onnx"},
		{"vision model first", []string{"onnx/model.onnx", "onnx/vision_model.onnx"}, "", "", "onnx/vision_model.onnx"},
		{"onnx folder", []string{"onnx/model.onnx"}, "", "", "onnx/model.onnx"},
		{"a file", []string{"model.onnx", "small.onnx"}, "", "small.onnx", "small.onnx"},
		{"a file in the onnx folder", []string{"onnx/model_fp16.onnx"}, "", "onnx/model_fp16.onnx", "onnx/model_fp16.onnx"},
		{"a file in an onnx folder with its own configuration", []string{"onnx/model.onnx"}, "onnx", "onnx/model.onnx", "onnx/model.onnx"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, graph := range test.graphs {
				write(t, filepath.Join(dir, graph), string(pixels(-1)))
			}
			write(t, filepath.Join(dir, test.config, "preprocessor_config.json"), processor(6, 8))
			m := openTest(t, filepath.Join(dir, test.open), Options{})
			if m.File != filepath.Join(dir, test.want) || m.Dir != filepath.Join(dir, test.config) {
				t.Errorf("file %s, folder %s", m.File, m.Dir)
			}
		})
	}
}

func TestOpenModelErrors(t *testing.T) {
	image := []TensorInfo{floats("image", -1, 3, 6, 8)}
	good := pixels(-1)
	for _, test := range []struct {
		name  string
		graph []byte
		opts  Options
		texts []string
	}{
		{"wrong output", good, Options{Output: "embeddings"}, []string{`"embeddings"`, "Output: ", "features float32[?,3]", "logits"}},
		{"wrong pool", good, Options{Pool: "max"}, []string{`"max"`, "Pool: ", "cls", "mean"}},
		{"pool without tokens", good, Options{Pool: "mean"}, []string{"last_hidden_state", "Pool: "}},
		{"pool for a vector", good, Options{Output: "features", Pool: "mean"}, []string{"features", "Pool: ", "nothing to pool"}},
		{"unknown device", good, Options{Device: "tpu"}, []string{`"tpu"`, "cuda"}},
		{"device that the library lacks", good, Options{Device: "openvino:GPU"}, []string{"openvino:GPU", "it can use cpu.", "onnxruntime-openvino", "Device: "}},
		{"not a graph", []byte("no graph"), Options{}, []string{"not an ONNX file"}},
		{"size of another model", graph([]TensorInfo{floats("image", -1, 3, 8, 6)}, []TensorInfo{floats("features", -1, 3, 8, 6)}, node("Identity", "image", "features")),
			Options{}, []string{"8×6", "6×8"}},
		{"text too", graph([]TensorInfo{image[0], {"input_ids", "int64", []int64{-1, -1}}}, []TensorInfo{floats("features", -1, 3, 6, 8)}, node("Identity", "image", "features")),
			Options{}, []string{"input_ids", "onnx/vision_model.onnx"}},
		{"logits only", graph(image, []TensorInfo{floats("logits", -1, 3, 6, 8)}, node("Identity", "image", "logits")),
			Options{}, []string{"Output: ", "logits"}},
		{"one number for all images", graph(image, []TensorInfo{floats("features")}, node("ReduceMean", "image", "features", intAttribute("keepdims", 0))),
			Options{}, []string{"features", "a row for each"}},
		{"no row for each image", graph(image, []TensorInfo{floats("features", 3, -1)}, node("GlobalAveragePool", "image", "pooled"), node("Flatten", "pooled", "flat"), node("Transpose", "flat", "features")),
			Options{}, []string{"features", "[3 1]", "a row for each"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := testModel(t, 6, 8, test.graph)
			m, err := OpenModel(t.Context(), dir, test.opts)
			if err == nil {
				m.Close()
			}
			wantError(t, err, test.texts...)
			if test.name != "wrong pool" {
				wantError(t, err, filepath.Join(dir, "model.onnx"))
			}
		})
	}

	_, err := OpenModel(t.Context(), filepath.Join(t.TempDir(), "absent"), Options{})
	wantError(t, err, "absent", "Model: ")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v does not say that the folder is absent", err)
	}
	empty := t.TempDir()
	_, err = OpenModel(t.Context(), empty, Options{})
	wantError(t, err, empty, "model.onnx, onnx/vision_model.onnx, onnx/model.onnx")
	text := filepath.Join(empty, "model.txt")
	write(t, text, "")
	_, err = OpenModel(t.Context(), text, Options{})
	wantError(t, err, text, ".onnx")
}

// TestOpenModelShapes runs graphs of every shape of output on images that are
// one grey but for their first row and column of pixels.
func TestOpenModelShapes(t *testing.T) {
	in := func(elem string, shape ...int64) []TensorInfo { return []TensorInfo{{"image", elem, shape}} }
	out := func(elem, name string, shape ...int64) []TensorInfo { return []TensorInfo{{name, elem, shape}} }
	for _, test := range []struct {
		name     string
		graph    []byte
		opts     Options
		layout   preprocess.Layout
		pool     string
		features func(image func(c, y, x int) float32) []float32
	}{
		{"map, channels first", graph(in("float32", -1, 3, 4, 5), out("float32", "features", -1, 3, 4, 5), node("Identity", "image", "features")),
			Options{}, preprocess.NCHW, "mean", spaceMean},
		{"map, channels last", graph(in("float32", -1, 4, 5, 3), out("float32", "features", -1, 4, 5, 3), node("Identity", "image", "features")),
			Options{}, preprocess.NHWC, "mean", spaceMean},
		{"first token", graph(in("float32", -1, 3, 4, 5), out("float32", "last_hidden_state", -1, 4, 5), mean(1, "image", "last_hidden_state")),
			Options{}, preprocess.NCHW, "cls", firstRow},
		{"mean token", graph(in("float32", -1, 3, 4, 5), out("float32", "last_hidden_state", -1, -1, -1), mean(1, "image", "last_hidden_state")),
			Options{Pool: "mean"}, preprocess.NCHW, "mean", meanRow},
		{"float16 with declared shape", graph(in("float16", -1, 3, 4, 5), out("float16", "last_hidden_state", -1, 4, 5), mean(1, "image", "last_hidden_state")),
			Options{}, preprocess.NCHW, "cls", firstRow},
		{"float16 without", graph(in("float16", -1, -1, -1, -1), out("float16", "last_hidden_state", -1, -1, -1), mean(1, "image", "last_hidden_state")),
			Options{}, preprocess.NCHW, "cls", firstRow},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := openTest(t, testModel(t, 4, 5, test.graph), test.opts)
			if m.Pool() != test.pool || m.Layout() != test.layout || m.LogitsDim() != 0 {
				t.Errorf("pool %q, layout %v, %d logits", m.Pool(), m.Layout(), m.LogitsDim())
			}
			image := func(c, y, x int) float32 { return float32(c) + float32(y)/4 + float32(x)/8 }
			r, err := m.NewRunner(2)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			for c := range 3 {
				for y := range 4 {
					for x := range 5 {
						i := (c*4+y)*5 + x
						if test.layout == preprocess.NHWC {
							i = (y*5+x)*3 + c
						}
						r.Input(1)[i] = image(c, y, x)
					}
				}
			}
			if err := r.Run(t.Context(), 2); err != nil {
				t.Fatal(err)
			}
			near(t, "features", r.Features(1), test.features(image), 1e-3)
			if r.Logits(1) != nil {
				t.Error("there are logits")
			}
		})
	}
}

func spaceMean(image func(c, y, x int) float32) []float32 {
	means := make([]float32, 3)
	for c := range means {
		for y := range 4 {
			for x := range 5 {
				means[c] += image(c, y, x) / 20
			}
		}
	}
	return means
}

func firstRow(image func(c, y, x int) float32) []float32 {
	row := make([]float32, 5)
	for x := range row {
		row[x] = image(1, 0, x)
	}
	return row
}

func meanRow(image func(c, y, x int) float32) []float32 {
	row := make([]float32, 5)
	for x := range row {
		row[x] = (image(1, 0, x) + image(1, 3, x)) / 2
	}
	return row
}

func TestFingerprint(t *testing.T) {
	dir := testModel(t, 6, 8, pixels(-1))
	file := filepath.Join(dir, "model.onnx")
	print := func(opts Options) string {
		t.Helper()
		m, err := OpenModel(t.Context(), dir, opts)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		return m.Fingerprint()
	}
	first := print(Options{})
	if b, err := hex.DecodeString(first); err != nil || len(b) != sha256.Size {
		t.Errorf("fingerprint %q is not a SHA-256 in hex", first)
	}
	if again := print(Options{Output: "features", Device: "cpu", IntraOpThreads: 2}); again != first {
		t.Error("the fingerprint changes with what cannot change features")
	}
	prints := []string{first, print(Options{Output: "logits"}), print(Options{Reading: preprocess.Reading{ApplyEXIF: true}}), print(Options{FastMath: true})}
	write(t, filepath.Join(dir, "preprocessor_config.json"), processor(8, 6))
	prints = append(prints, print(Options{}))
	write(t, file, string(pixels(1)))
	prints = append(prints, print(Options{}))
	dir = testModel(t, 4, 5, graph([]TensorInfo{floats("image", -1, 3, 4, 5)}, []TensorInfo{floats("last_hidden_state", -1, 4, 5)},
		mean(1, "image", "last_hidden_state")))
	prints = append(prints, print(Options{Pool: "cls"}), print(Options{Pool: "mean"}))
	slices.Sort(prints)
	if len(slices.Compact(prints)) != 8 {
		t.Errorf("two of these agree: %q", prints)
	}
}

// external is a tensor whose weights lie in a file.
func external(location string) []byte {
	entry := message(field(1, []byte("location")), field(2, []byte(location)))
	return message(field(13, message(field(1, []byte("offset")), field(2, []byte("0")))), field(13, entry))
}

func TestHashIsThatOfTheFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.onnx")
	constant := field(1, field(5, field(5, external("deep/constant.bin")))) // a node's attribute
	branch := field(1, field(5, field(6, field(5, external("weights.bin")))))
	graph := string(field(7, message(field(5, external("weights.bin")), constant, branch)))
	write(t, file, graph)
	write(t, filepath.Join(filepath.Dir(file), "weights.bin"), "weights")
	write(t, filepath.Join(filepath.Dir(file), "deep", "constant.bin"), "one")
	write(t, file+".bak", "other")
	got, err := hashGraph(t.Context(), file)
	sum := sha256.Sum256([]byte(graph + "oneweights"))
	if want := hex.EncodeToString(sum[:]); err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	if err := os.Remove(filepath.Join(filepath.Dir(file), "weights.bin")); err != nil {
		t.Fatal(err)
	}
	_, err = hashGraph(t.Context(), file)
	wantError(t, err, "weights.bin: ", "; fetch that too")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	write(t, file, string(field(7, field(5, external("../elsewhere.bin")))))
	_, err = hashGraph(t.Context(), file)
	wantError(t, err, file, "../elsewhere.bin")
	for _, odd := range []string{"no protobuf", graph[:len(graph)-1]} { // onnxruntime might read it otherwise than we do
		write(t, file, odd)
		_, err := hashGraph(t.Context(), file)
		wantError(t, err, file, "not an ONNX file")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	_, err = hashGraph(t.Context(), file)
	wantError(t, err, file)
}

// TestLeftoversOfWeights: a tensor whose values are in the model may still name a file,
// which nobody needs. A file that is there is part of the model's hash.
func TestLeftoversOfWeights(t *testing.T) {
	file := filepath.Join(t.TempDir(), "model.onnx")
	hash := func(location string, fields ...[]byte) (string, error) {
		t.Helper()
		fields = append(fields, external(location))
		write(t, file, string(field(7, field(5, message(fields...)))))
		return hashGraph(t.Context(), file)
	}
	inside := field(9, []byte("values"))
	gone, err := hash("gone.bin", inside)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(filepath.Dir(file), "gone.bin"), "old")
	if there, err := hash("gone.bin", inside); err != nil || there == gone {
		t.Errorf("%s, %v", there, err)
	}
	outside := []byte{14 << 3, 1}
	for _, refused := range [][][]byte{{inside, outside}, {outside}, nil} {
		_, err := hash("other.bin", refused...)
		if wantError(t, err, "other.bin", "; fetch that too"); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
	_, err = hash("../other.bin", inside) // whatever comes of it, nothing outside is named
	wantError(t, err, "../other.bin")
}

// What a file declares is what onnxruntime says of it, so that its word can be
// taken without loading the graph; but onnxruntime may infer more dimensions.
func TestDeclarations(t *testing.T) {
	if err := InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	check := func(t *testing.T, file string) {
		declared := &Model{File: file}
		if err := declared.readDeclarations(); err != nil {
			t.Fatal(err)
		}
		inputs, outputs, err := ort.GetInputOutputInfo(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range append(tensorInfos(inputs), tensorInfos(outputs)...) {
			got := slices.Concat(declared.Inputs, declared.Outputs)[i]
			for d := range want.Shape {
				if got.Shape[d] < 0 {
					want.Shape[d] = -1
				}
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%v, onnxruntime says %v", got, want)
			}
		}
	}
	t.Run("backbone", func(t *testing.T) { check(t, filepath.Join(testenv.Backbone(t), "model.onnx")) })
	t.Run("shared", func(t *testing.T) {
		files, err := filepath.Glob(filepath.Join(testenv.Shared(t, "models"), "*", "model.onnx"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, file := range files {
			t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) { check(t, file) })
		}
	})
}
