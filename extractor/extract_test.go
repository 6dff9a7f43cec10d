package extractor

import (
	"archive/zip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/x448/float16"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

var goldenModels = []string{"vit-tiny-p16", "mobilenetv2", "resnet20-cifar10", "densenet100-cifar10", "squeezenet11-fp16io", "mobilenetv1-nhwc"}

// TestGoldenFeatures compares the whole way from file to features with that of
// the models' own processors and Python's onnxruntime
// (shared/oracle/gen_features.py); with -short of two images.
func TestGoldenFeatures(t *testing.T) {
	for _, name := range goldenModels {
		t.Run(name, func(t *testing.T) {
			goldenFeatures(t, testenv.Shared(t, "models", name), name)
		})
	}
	t.Run("efficientnet-lite0", func(t *testing.T) {
		goldenFeatures(t, testenv.Backbone(t), "efficientnet-lite0")
	})
}

func goldenFeatures(t *testing.T, dir, name string) {
	items := goldenItems(t)
	m := openTest(t, dir, Options{})
	read := func(file string, d int) []float32 {
		want, shape, err := npy.Read[float32](testenv.Shared(t, "oracle", "golden", "features", file))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(shape, []int{len(items), d}) {
			t.Fatalf("%s is %v, want %d×%d", file, shape, len(items), d)
		}
		return want
	}
	features, logits := read(name+".npy", m.Dim()), []float32(nil)
	if name == "efficientnet-lite0" { // the one that is converted here: all of it is checked
		logits = read(name+"-logits.npy", m.LogitsDim())
	}
	worst := 1.0
	rows := len(items)
	if testing.Short() {
		rows = 2
	}
	_, err := m.Extract(t.Context(), images.Of(items[:rows]...), Options{}, func(r Row) error {
		if r.Err != nil {
			t.Errorf("%s: %v", r.Item.Path, r.Err)
			return nil
		}
		const least = 0.9999
		check := func(what string, got, want []float32) {
			cos := cosine(got, want[r.Index*len(got):(r.Index+1)*len(got)])
			if worst = min(worst, cos); !(cos >= least) {
				t.Errorf("%s: %s have cosine %.6f to the reference, want %g", r.Item.Path, what, cos, least)
			}
		}
		check("features", r.Features, features)
		if logits != nil {
			check("logits", r.Logits, logits)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("worst cosine: %.7f", worst)
}

// goldenItems are the images of shared/oracle/golden/features.
func goldenItems(t testing.TB) []images.Item {
	t.Helper()
	text, err := os.ReadFile(testenv.Shared(t, "oracle", "golden", "features", "images.json"))
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	if err := json.Unmarshal(text, &paths); err != nil {
		t.Fatal(err)
	}
	items := make([]images.Item, len(paths))
	for i, path := range paths {
		items[i] = images.Item{Path: path, File: testenv.Shared(t, filepath.FromSlash(path)), Label: -1}
	}
	return items
}

func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	return ab / math.Sqrt(aa*bb)
}

// TestGoldenTensors compares the session apart from the preprocessing: exact
// inputs and outputs of Python's onnxruntime, alone and within a larger batch; a
// quantised model's on the same kind of processor.
func TestGoldenTensors(t *testing.T) {
	for _, name := range append(goldenModels, "vit-tiny-p16-int8") {
		t.Run(name, func(t *testing.T) {
			dir := testenv.Shared(t, "models", name)
			m := openTest(t, dir, Options{OpenTimeout: time.Hour}) // under an emulator too
			golden := readNPZ(t, filepath.Join(dir, "golden_cat.npz"))
			if name == "vit-tiny-p16-int8" && productsSaturate(t) {
				maps.Copy(golden, readNPZ(t, filepath.Join("testdata", name+"-saturating.npz")))
			}
			r, err := m.NewRunner(3)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			batches := []int{1, 3, 2}
			if testing.Short() {
				batches = batches[2:]
			}
			for _, n := range batches {
				n = min(n, r.Batch())
				for i := range n {
					copy(r.Input(i), golden["input.npy"])
				}
				if err := r.Run(t.Context(), n); err != nil {
					t.Fatal(err)
				}
				most := 1e-3
				if m.Inputs[0].Type == "float16" && runtime.GOARCH == "arm64" {
					most = 5e-3 // onnxruntime computes with half floats there, and elsewhere with whole ones
				}
				if name == "vit-tiny-p16-int8" && runtime.GOARCH == "arm64" {
					// Its levels are chosen by values whose last bits differ there, which moves it by less than
					// 8 bits do: its cosine to the features of 32 bits is 0.923 on x86-64.
					if c := cosine(r.Features(n-1), golden["features.npy"]); !(c > 0.98) {
						t.Errorf("features have cosine %.4f to those of x86-64", c)
					}
					continue
				}
				near(t, "features", r.Features(n-1), golden["features.npy"], most)
				near(t, "logits", r.Logits(n-1), golden["logits.npy"], most)
			}
		})
	}
}

// near fails where a value is off by more than a share of the largest, most; half
// floats have 11 bits.
func near(t *testing.T, what string, got, want []float32, most float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d %s, want %d", len(got), what, len(want))
	}
	var largest, off float64
	for i := range got {
		largest = max(largest, math.Abs(float64(want[i])))
		off = max(off, math.Abs(float64(got[i]-want[i])))
	}
	if off > most*largest {
		t.Errorf("%s are up to %g off, of %g", what, off, largest)
	}
}

// readNPZ reads the float32 and float16 arrays of an .npz file.
func readNPZ(t *testing.T, file string) map[string][]float32 {
	t.Helper()
	archive, err := zip.OpenReader(file)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	arrays := map[string][]float32{}
	for _, f := range archive.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		header := b[10 : 10+binary.LittleEndian.Uint16(b[8:])]
		data := b[10+len(header):]
		var values []float32
		if slices.Contains([]string{"<f2"}, string(header[11:14])) {
			for i := 0; i < len(data); i += 2 {
				values = append(values, float16.Frombits(binary.LittleEndian.Uint16(data[i:])).Float32())
			}
		} else {
			values = make([]float32, len(data)/4)
			if _, err := binary.Decode(data, binary.LittleEndian, values); err != nil {
				t.Fatal(err)
			}
		}
		arrays[f.Name] = values
	}
	return arrays
}

// pixels is a graph whose features are the mean of each colour, in [−1, 1].
func pixels(batch int64) []byte {
	return graph([]TensorInfo{floats("image", batch, 3, -1, -1)},
		[]TensorInfo{floats("features", batch, 3), floats("logits", batch, 3)},
		node("GlobalAveragePool", "image", "pooled"), node("Flatten", "pooled", "features"), node("Neg", "features", "logits"))
}

// mean is a node that averages over one axis and drops it.
func mean(axis uint64, input, output string) []byte {
	return node("ReduceMean", input, output, intsAttribute("axes", axis), intAttribute("keepdims", 0))
}

// greys writes n images, the i-th of the grey 10·i, and returns their items.
func greys(t testing.TB, n int) []images.Item {
	t.Helper()
	dir := t.TempDir()
	items := make([]images.Item, n)
	for i := range items {
		img := image.NewGray(image.Rect(0, 0, 8, 6))
		for p := range img.Pix {
			img.Pix[p] = color.Gray{Y: uint8(10 * i)}.Y
		}
		name := fmt.Sprintf("%02d.png", i)
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(png.Encode(f, img), f.Close()); err != nil {
			t.Fatal(err)
		}
		items[i] = images.Item{Path: name, File: f.Name(), Label: -1}
	}
	return items
}

// large returns an image that takes longer to decode than any clock needs to go on.
func large(t testing.TB) images.Item {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "large.png"))
	if err == nil {
		err = errors.Join(png.Encode(f, image.NewGray(image.Rect(0, 0, 4000, 4000))), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return images.Item{Path: "large.png", File: f.Name(), Label: -1}
}

// collect extracts into a slice of results by index.
func collect(t testing.TB, m *Model, items []images.Item, opts Options) ([]Row, Stats) {
	t.Helper()
	results := make([]Row, len(items))
	stats, err := m.Extract(t.Context(), images.Of(items...), opts, func(r Row) error {
		r.Features, r.Logits = slices.Clone(r.Features), slices.Clone(r.Logits)
		results[r.Index] = r
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return results, stats
}

func TestExtractWithFreeAndFixedBatches(t *testing.T) {
	items := greys(t, 11)
	for _, batch := range []int64{-1, 1, 4} {
		m := openTest(t, testModel(t, 6, 8, pixels(batch)), Options{})
		if m.Dim() != 3 || m.LogitsDim() != 3 || m.Output() != "features" || m.Pool() != "" {
			t.Fatalf("dim %d, logits %d, output %q, pool %q", m.Dim(), m.LogitsDim(), m.Output(), m.Pool())
		}
		results, stats := collect(t, m, items, Options{Workers: 2, Batch: 3})
		if stats != (Stats{Done: 11}) {
			t.Errorf("batch %d: %+v", batch, stats)
		}
		for i, r := range results {
			want := float32(10*i)/127.5 - 1
			if r.Err != nil || math.Abs(float64(r.Features[2]-want)) > 1e-5 || r.Logits[2] != -r.Features[2] {
				t.Errorf("batch %d, image %d: features %v, logits %v, %v; want %g", batch, i, r.Features, r.Logits, r.Err, want)
			}
		}
	}
}

func TestExtractPassesOverBrokenImages(t *testing.T) {
	items := greys(t, 12)
	write(t, items[2].File, "no image")
	whole, err := os.ReadFile(items[5].File)
	if err != nil {
		t.Fatal(err)
	}
	write(t, items[5].File, string(whole[:len(whole)/2]))
	write(t, items[8].File, "")
	items[9].File += ".missing"
	items[10].File = filepath.Dir(items[10].File)

	m := openTest(t, testModel(t, 6, 8, pixels(-1)), Options{})
	var progress []int
	results, stats := collect(t, m, items, Options{Workers: 1, Batch: 4, Progress: func(done, failed, total int) {
		progress = append(progress, done, failed, total)
	}})
	if want := (Stats{Done: 12, Failed: 5}); stats != want {
		t.Errorf("%+v, want %+v", stats, want)
	}
	if got, want := progress[len(progress)-3:], []int{12, 5, 12}; !slices.Equal(got, want) {
		t.Errorf("last progress %v, want %v", got, want)
	}
	for i, r := range results {
		if broken := slices.Contains([]int{2, 5, 8, 9, 10}, i); broken != (r.Err != nil) || broken != (r.Features == nil) {
			t.Errorf("image %d: features %v, %v", i, r.Features, r.Err)
		}
		if r.Err == nil && math.Abs(float64(r.Features[0]-(float32(10*i)/127.5-1))) > 1e-5 {
			t.Errorf("image %d has another's features: %v", i, r.Features)
		}
		if read := i != 9 && i != 10; read != (len(r.SHA256) == 64) || i == 2 && r.Item.Bytes != 8 {
			t.Errorf("image %d: hash %q, %d bytes", i, r.SHA256, r.Item.Bytes)
		}
	}
}

func TestExtractGivesUpImagesThatTakeTooLong(t *testing.T) {
	m := openTest(t, testModel(t, 6, 8, pixels(-1)), Options{})
	results, stats := collect(t, m, slices.Repeat([]images.Item{large(t)}, 5), Options{ImageTimeout: 1})
	if stats.Done != 5 || stats.Failed != 5 {
		t.Errorf("%+v, want 5 failures", stats)
	}
	for _, r := range results {
		wantError(t, r.Err, "ImageTimeout: ", context.DeadlineExceeded.Error())
	}
}

// TestMemoryOfALateDecoderIsNotUsedAgain: it may still write to it.
func TestMemoryOfALateDecoderIsNotUsedAgain(t *testing.T) {
	m := openTest(t, testModel(t, 6, 8, pixels(-1)), Options{})
	w := &worker{
		extraction: &extraction{model: m, opts: Options{ImageTimeout: 1}},
		decode:     preprocess.DecodeOptions{MaxPixels: preprocess.DefaultMaxPixels, Reuse: image.NewNRGBA(image.Rect(0, 0, 9, 9))},
	}
	r := Row{Item: large(t)}
	wantError(t, w.load(t.Context(), &r, make([]float32, 3*6*8)), "ImageTimeout: ")
	if w.file != nil || w.decode.Reuse != nil {
		t.Error("memory that a decoder was left behind with is kept")
	}
	w.opts.ImageTimeout, r.Item = DefaultImageTimeout, greys(t, 1)[0]
	if err := w.load(t.Context(), &r, make([]float32, 3*6*8)); err != nil || w.file == nil || w.decode.Reuse == nil {
		t.Errorf("memory of an image that is done is not kept: %v", err)
	}
}

func TestExtractRefusesWhatIsNotFinite(t *testing.T) {
	items := greys(t, 20)
	m := openTest(t, testModel(t, 6, 8, graph([]TensorInfo{floats("image", -1, 3, 6, 8)}, []TensorInfo{floats("features", -1, 3)},
		node("GlobalAveragePool", "image", "pooled"), node("Flatten", "pooled", "flat"), node("Sqrt", "flat", "features"))), Options{})
	results, stats := collect(t, m, items, Options{})
	for i, r := range results {
		if dark := i < 13; dark != (r.Err != nil) || dark != (r.Features == nil) {
			t.Errorf("image %d: features %v, %v", i, r.Features, r.Err)
		}
	}
	if stats.Failed != 13 {
		t.Errorf("%+v", stats)
	}
}

// An image of absurdly large features is named as unreadable, not judged.
func TestExtractRefusesWhatIsAbsurd(t *testing.T) {
	items := greys(t, 20)
	scale := message(varint(2, 1), field(9, binary.LittleEndian.AppendUint32(nil, math.Float32bits(1e20))))
	m := openTest(t, testModel(t, 6, 8, graph([]TensorInfo{floats("image", -1, 3, 6, 8)}, []TensorInfo{floats("features", -1, 3)},
		constant("scale", scale), node("GlobalAveragePool", "image", "pooled"), node("Flatten", "pooled", "flat"), node("Mul", "flat,scale", "features"))), Options{})
	results, stats := collect(t, m, items, Options{})
	for i, r := range results {
		if r.Features != nil || r.Err == nil || !strings.Contains(r.Err.Error(), "is beyond") {
			t.Errorf("image %d: features %v, %v", i, r.Features, r.Err)
		}
	}
	if stats.Failed != len(items) {
		t.Errorf("%+v", stats)
	}
}

// TestExtractBoundsPixels: images of the largest size allowed take turns, and
// larger ones are refused.
func TestExtractBoundsPixels(t *testing.T) {
	m := openTest(t, testModel(t, 6, 8, pixels(-1)), Options{})
	items := greys(t, 40)
	data, err := os.ReadFile(items[0].File)
	if err != nil {
		t.Fatal(err)
	}
	width, height, err := preprocess.Size(data)
	if err != nil {
		t.Fatal(err)
	}
	exact := int64(width) * int64(height)
	if _, stats := collect(t, m, items, Options{MaxPixels: exact, Workers: 8, Batch: 3}); stats.Failed != 0 {
		t.Errorf("%d images of the bound's size failed", stats.Failed)
	}
	if _, stats := collect(t, m, items, Options{MaxPixels: exact - 1, Workers: 8, Batch: 3}); stats.Failed != len(items) {
		t.Errorf("%d of %d images beyond the bound failed", stats.Failed, len(items))
	}
}

// TestExtractBoundsBatches: one of more images than there are is one of all,
// and one that there is no memory for is an error.
func TestExtractBoundsBatches(t *testing.T) {
	items := greys(t, 1)
	raw, err := NewPixels(&preprocess.Spec{Resize: preprocess.Squash, ResizeWidth: 32, ResizeHeight: 32, Width: 32, Height: 32, Filter: preprocess.Bicubic, Rounding: preprocess.Floor, Scale: 1, Std: [3]float64{1, 1, 1}}, preprocess.Reading{})
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]model{"pixels": raw, "onnx": openTest(t, testModel(t, 6, 8, pixels(-1)), Options{})} {
		if stats, err := extract(t.Context(), m, images.Of(items...), Options{Batch: math.MaxInt}, func(r Row) error { return r.Err }); err != nil || stats.Done != 1 {
			t.Errorf("%s: %+v, %v", name, stats, err)
		}
		if _, err := m.newRunner(1 << 40); !errors.Is(err, onnx.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestExtractStops(t *testing.T) {
	items := greys(t, 20)
	m := openTest(t, testModel(t, 6, 8, pixels(-1)), Options{})
	before := runtime.NumGoroutine()

	full := errors.New("disk full")
	if _, err := m.Extract(t.Context(), images.Of(items...), Options{Batch: 1}, func(Row) error { return full }); !errors.Is(err, full) {
		t.Errorf("error %v, want that of the sink", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := 0
	_, err := m.Extract(ctx, images.Of(items...), Options{Workers: 2, Batch: 1}, func(Row) error {
		if done++; done == 3 {
			cancel()
		}
		return nil
	})
	if err != context.Canceled || done > 6 {
		t.Errorf("cancelled after 3 images: %v after %d", err, done)
	}
	if _, err := m.Extract(ctx, images.Of(items...), Options{}, func(Row) error { return errors.New("called") }); err != context.Canceled {
		t.Errorf("cancelled before: %v", err)
	}
	if _, err := m.Extract(t.Context(), images.Of(items...), Options{Workers: -1}, nil); err == nil {
		t.Error("-1 workers are no error")
	}
	if stats, err := m.Extract(t.Context(), images.Of(), Options{}, nil); err != nil || stats != (Stats{}) {
		t.Errorf("nothing to do: %+v, %v", stats, err)
	}
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
}

func TestRunStopsInTheMiddle(t *testing.T) {
	const nodes, batch = 240, 32
	chain := [][]byte{node("Sin", "image", "0")}
	for i := 1; i < nodes; i++ {
		chain = append(chain, node("Sin", fmt.Sprint(i-1), fmt.Sprint(i)))
	}
	chain = append(chain, node("GlobalAveragePool", fmt.Sprint(nodes-1), "features"))
	m := openTest(t, testModel(t, 128, 128, graph([]TensorInfo{floats("image", -1, 3, 128, 128)}, []TensorInfo{floats("features", -1, 3, 1, 1)}, chain...)), Options{})
	r, err := m.NewRunner(batch)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	// The whole run takes seconds, each node some milliseconds. A run that was not
	// stopped ends well.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := r.Run(ctx, batch); err != context.DeadlineExceeded {
		t.Errorf("a run with 50 ms to live: %v", err)
	}
	t.Logf("stopped after %v", time.Since(start))
	if err := r.Run(t.Context(), 1); err != nil {
		t.Errorf("the next run: %v", err)
	}
	if err := r.Run(t.Context(), batch+1); err == nil {
		t.Error("a run of more images than the runner takes is no error")
	}
}

func TestExtractNamesAModelThatFails(t *testing.T) {
	// Rows of [n,2] plus zeros [n] go for one and two images only.
	m := openTest(t, testModel(t, 2, 4, graph([]TensorInfo{floats("image", -1, 3, 2, 4)}, []TensorInfo{floats("features", -1, 2)},
		mean(3, "image", "columns"), mean(1, "columns", "rows"), mean(1, "rows", "mean"),
		node("Sub", "mean,mean", "zeros"), node("Add", "rows,zeros", "features"))), Options{})
	_, err := m.Extract(t.Context(), images.Of(greys(t, 4)...), Options{Batch: 4}, func(Row) error { return nil })
	wantError(t, err, m.File, "Batch: ")
}

func TestBatchesThatMixImagesAreNotMade(t *testing.T) {
	for name, dir := range map[string]string{
		// Each row is added the mean of the first image, so two disturb each
		// other where three would fail.
		"mixing": testModel(t, 2, 4, graph([]TensorInfo{floats("image", -1, 3, 2, 4)}, []TensorInfo{floats("features", -1, 2)},
			mean(3, "image", "columns"), mean(1, "columns", "rows"), mean(1, "rows", "mean"), node("Add", "rows,mean", "features"))),
		"failing": testModel(t, 2, 4, graph([]TensorInfo{floats("image", -1, 3, 2, 4)}, []TensorInfo{floats("features", -1, 3)},
			mean(3, "image", "columns"), mean(2, "columns", "colours"), mean(1, "colours", "mean"), node("Add", "colours,mean", "features"))),
		"dynamically quantised": "", // the shared one
		// Too little to see in any two images.
		"quantised finely": testModel(t, 2, 4, graph([]TensorInfo{floats("image", -1, 3, 2, 4)}, []TensorInfo{floats("features", -1, 3, 1, 1)},
			field(1, message(field(1, []byte("image")), field(2, []byte("levels")), field(2, []byte("scale")), field(2, []byte("zero")), field(4, []byte("DynamicQuantizeLinear")))),
			node("DequantizeLinear", "levels,scale,zero", "values"), node("Sigmoid", "values", "1"), node("Sigmoid", "1", "2"), node("GlobalAveragePool", "2", "features"))),
	} {
		t.Run(name, func(t *testing.T) {
			if dir == "" {
				dir = testenv.Shared(t, "models", "vit-tiny-p16-int8")
			}
			m := openTest(t, dir, Options{})
			items := greys(t, 9)
			all, stats := collect(t, m, items, Options{Batch: 4})
			if stats.Failed > 0 {
				t.Fatalf("%+v: %v", stats, all[0].Err)
			}
			alone, _ := collect(t, m, items[5:6], Options{Batch: 4})
			if !slices.Equal(all[5].Features, alone[0].Features) {
				t.Error("features depend on the other images of the batch")
			}
		})
	}
}

func BenchmarkExtract(b *testing.B) {
	l, err := images.List(b.Context(), images.ListOptions{Root: testenv.Shared(b, "data", "images", "imagenet_samples")})
	if err != nil {
		b.Fatal(err)
	}
	items := slices.Repeat(l.Items, 5)
	for _, dir := range []string{testenv.Backbone(b), testenv.Shared(b, "models", "vit-tiny-p16"), testenv.Shared(b, "models", "squeezenet11-fp16io")} {
		m := openTest(b, dir, Options{})
		for _, batch := range []int{1, 4, 8} {
			b.Run(fmt.Sprintf("%s/batch=%d", filepath.Base(dir), batch), func(b *testing.B) {
				for b.Loop() {
					if _, err := m.Extract(b.Context(), images.Of(items...), Options{Batch: batch}, func(r Row) error { return r.Err }); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(len(items)*b.N)/b.Elapsed().Seconds(), "images/s")
			})
		}
	}
}

// held looks at the memory for decoding while an image is prepared.
type held struct {
	model
	t *testing.T
}

func (h held) prepare(dst []float32, img *image.NRGBA) error {
	if decoding().TryAcquire(DecodeMemory()) {
		h.t.Error("an image is decoded, and takes none of the memory for decoding")
		decoding().Release(DecodeMemory())
	}
	return h.model.prepare(dst, img)
}

// TestDecodeMemory: whatever extracts, an image takes its part of the memory for decoding
// until it is done, and gives it back.
func TestDecodeMemory(t *testing.T) {
	m := held{openTest(t, testModel(t, 6, 8, pixels(-1)), Options{}), t}
	items := append(greys(t, 9), large(t))
	stats, err := extract(t.Context(), m, images.Of(items...), Options{}, func(Row) error { return nil })
	if err != nil || stats.Done != len(items) {
		t.Errorf("%+v, %v", stats, err)
	}
	if !decoding().TryAcquire(DecodeMemory()) {
		t.Fatal("memory for decoding was not given back")
	}
	decoding().Release(DecodeMemory())
}
