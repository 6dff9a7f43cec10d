package detector_test

import (
	"errors"
	"fmt"
	"image"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// pictures are images with what a model makes of them.
type pictures struct {
	uncropped, prepared []float32 // from 0 to 1, and as the model wants them, channels first
	features, logits    []float32
	height, width       int // of those from 0 to 1
}

// makePictures has n images of the size that the model resizes to.
func makePictures(t *testing.T, model *extractor.Model, n int) (p pictures) {
	t.Helper()
	runner, err := model.NewRunner(model.Batch(1))
	if err != nil {
		t.Fatal(err)
	}
	defer runner.Close()
	spec := model.Spec
	p.height, p.width = spec.Height, spec.Width
	if spec.Resize == preprocess.Shortest {
		p.height, p.width = spec.ResizeHeight, spec.ResizeWidth
	}
	rng := rand.New(rand.NewPCG(3, 40))
	for range n {
		img := image.NewNRGBA(image.Rect(0, 0, p.width, p.height))
		spread := 1 + rng.IntN(255)
		for i := range img.Pix {
			img.Pix[i] = uint8(rng.IntN(spread))
			if i%4 == 3 {
				img.Pix[i] = 255
			}
		}
		for c := range 3 {
			for i := c; i < len(img.Pix); i += 4 {
				p.uncropped = append(p.uncropped, float32(img.Pix[i])/255)
			}
		}
		prepared := make([]float32, 3*spec.Height*spec.Width)
		if err := errors.Join(spec.Tensor(prepared, img, preprocess.NCHW), spec.Tensor(runner.Input(0), img, model.Layout()), runner.Run(t.Context(), 1)); err != nil {
			t.Fatal(err)
		}
		p.prepared = append(p.prepared, prepared...)
		p.features, p.logits = append(p.features, runner.Features(0)...), append(p.logits, runner.Logits(0)...)
	}
	return p
}

// probabilitiesOf runs a classifier on n images, all at once or one by one, and returns
// C + 1 probabilities of each.
func probabilitiesOf(t *testing.T, file, in, out string, x []float32, n, batch, height, width int) (rows [][]float64) {
	t.Helper()
	session, err := ort.NewDynamicAdvancedSession(file, []string{in}, []string{out}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Destroy()
	for i := 0; i < n; i += batch {
		size := 3 * height * width
		made := []ort.Value{nil}
		if err := session.Run([]ort.Value{tensorOf(t, x[i*size:(i+batch)*size], int64(batch), 3, int64(height), int64(width))}, made); err != nil {
			t.Fatal(err)
		}
		values := made[0].(*ort.Tensor[float32]).GetData()
		for row := range slices.Chunk(values, len(values)/batch) {
			rows = append(rows, nil)
			for _, v := range row {
				if out == "logits" {
					v = float32(math.Exp(float64(v)))
				}
				rows[len(rows)-1] = append(rows[len(rows)-1], float64(v))
			}
		}
		made[0].Destroy()
	}
	return rows
}

func argmax[T float32 | float64](row []T) int { return slices.Index(row, slices.Max(row)) }

// TestClassifierIsTheDetector: unknown is the largest exactly where the detector says OOD, and
// the others are as the detector's confidences are, or the backbone's own logits.
func TestClassifierIsTheDetector(t *testing.T) {
	t.Parallel()
	const n = 6
	rng := rand.New(rand.NewPCG(3, 41))
	for _, name := range []string{"", "squeezenet11-fp16io", "mobilenetv1-nhwc", "vit-tiny-p16"} {
		dir := testenv.Backbone(t)
		if name != "" {
			dir = testenv.Shared(t, "models", name)
		}
		if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
			t.Fatal(err)
		}
		model, err := extractor.OpenModel(t.Context(), dir, extractor.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer model.Close()
		p := makePictures(t, model, n)
		batch := n
		if model.Batch(2) == 1 {
			batch = 1
		}
		byClass := pipetest.RandomResidualDetector(rng, 2, 2, model.Dim(), 4)
		calibrate(byClass, p.features)
		byClass.TargetTPR = 0.5
		labels := []int{}
		for _, v := range pipetest.Verdicts(t, byClass, p.features) {
			labels = append(labels, v.Label)
		}
		byClass.CalibrateByClass(slices.Clone(byClass.CalibrationScores), labels)
		never := pipetest.RandomDetector(rng, 2, 2, 1, model.Dim(), true)
		never.Threshold, never.CalibrationScores = math.Inf(-1), nil
		paper := pipetest.RandomDetector(rng, 2, 2, 2, model.Dim(), true)
		calibrate(paper, p.features)
		for _, c := range []struct {
			kind   string
			det    *detector.Detector
			format detector.ClassifierFormat
			keep   bool
		}{
			{"by class", byClass, detector.Ultralytics, false}, {"by class", byClass, detector.Transformers, false}, {"by class", byClass, detector.Triton, false},
			{"never", never, detector.Triton, false}, {"paper", paper, detector.Ultralytics, true}, {"paper", paper, detector.Transformers, true},
		} {
			det, format, keep := c.det, c.format, c.keep
			det.Source = detector.Source{Fingerprint: model.Fingerprint(), Model: dir, SHA256: model.SHA256, Output: model.Output(), Pool: model.Pool()}
			t.Run(fmt.Sprintf("%s/%s/%s/keep %t", name, c.kind, format, keep), func(t *testing.T) {
				out := filepath.Join(t.TempDir(), "out")
				err := detector.Export(t.Context(), detector.ExportOptions{Detector: det, Out: out, AsClassifier: format, KeepLogits: keep})
				if keep && model.LogitsDim() == 0 {
					if err == nil || !strings.Contains(err.Error(), "no output called logits") {
						t.Fatalf("without logits: %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				x, h, w := p.prepared, model.Spec.Height, model.Spec.Width
				in, output, batch := "images", "probabilities", batch
				switch format {
				case detector.Ultralytics:
					x, h, w, output, batch = p.uncropped, p.height, p.width, "output0", 1
				case detector.Transformers:
					in, output = "pixel_values", "logits"
				}
				rows := probabilitiesOf(t, filepath.Join(out, format.Graph()), in, output, x, n, batch, h, w)
				checkClassifier(t, det, rows, p, keep)
				if format == detector.Transformers {
					checkProcessor(t, filepath.Join(out, "preprocessor_config.json"), model.Spec)
				}
			})
		}
	}
}

// calibrate gives a detector scores that are a little below those of the rows x, so that
// rounding in a format's own arithmetic flags none of them, and their median.
func calibrate(det *detector.Detector, x []float32) {
	pipetest.Calibrate(det, x)
	scores := det.CalibrationScores
	below := (scores[len(scores)-1] - scores[0]) / 20
	for i := range scores {
		scores[i] -= below
	}
	det.Threshold -= below
}

func checkClassifier(t *testing.T, det *detector.Detector, rows [][]float64, p pictures, keep bool) {
	t.Helper()
	flagged := 0
	logs := det.Own(p.features).LogConfidences
	for i, v := range pipetest.Verdicts(t, det, p.features) {
		row := rows[i]
		known, own := row[:len(row)-1], logs[i*len(det.Classes):(i+1)*len(det.Classes)]
		class := v.Label
		if keep {
			dim := len(p.logits) / len(rows)
			class = argmax(p.logits[i*dim : (i+1)*dim])
			own = nil
			for _, l := range p.logits[i*dim : (i+1)*dim] {
				own = append(own, float64(l))
			}
		}
		var sum float64
		for c, q := range row {
			sum += q
			// Half floats round what goes into the model.
			if c < len(own) && own[c] > own[class]-10 && math.Abs(math.Log(q/known[class])-(own[c]-own[class])) > 0.1 {
				t.Errorf("image %d: class %d has %g of the first's probability, want exp(%g)", i, c, q/known[class], own[c]-own[class])
			}
		}
		if len(known) != len(own) || math.Abs(sum-1) > 1e-5 {
			t.Errorf("image %d: %d classes with the sum %g, want %d", i, len(row), sum, len(own)+1)
		}
		want := class
		if v.OOD {
			want, flagged = len(own), flagged+1
		}
		if got := argmax(row); got != want {
			t.Errorf("image %d: class %d with %g, want %d with %g; the detector says %+v", i, got, row[got], want, row[want], v)
		}
	}
	if math.IsInf(det.Threshold, -1) != (flagged == 0) || flagged == len(rows) {
		t.Errorf("%d of %d flagged", flagged, len(rows))
	}
}

// checkProcessor reads a written configuration as one of a model.
func checkProcessor(t *testing.T, file string, want *preprocess.Spec) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got, err := preprocess.Parse("preprocessor_config.json", data)
	if err != nil {
		t.Fatal(err)
	}
	if got.Rounding = want.Rounding; !reflect.DeepEqual(got, want) {
		t.Errorf("the processor reads as %+v, want %+v", got, want)
	}
}

// TestClassifierFiles: names and what programs read of a classifier.
func TestClassifierFiles(t *testing.T) {
	t.Parallel()
	dir := testenv.Shared(t, "models", "vit-tiny-p16")
	if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	model, err := extractor.OpenModel(t.Context(), dir, extractor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer model.Close()
	det := pipetest.RandomDetector(rand.New(rand.NewPCG(3, 42)), 2, 1, 1, model.Dim(), true)
	det.Classes = []string{"Ä \"\\", "two\nlines", "<x> & 'y'", "d"}
	det.Source = detector.Source{Fingerprint: model.Fingerprint(), Model: dir, SHA256: model.SHA256, Output: model.Output(), Pool: model.Pool()}
	out := t.TempDir()
	for _, format := range detector.ClassifierFormats {
		if err := detector.Export(t.Context(), detector.ExportOptions{Detector: det, Out: filepath.Join(out, string(format)), AsClassifier: format}); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Python(t, `
import ast, json, sys, onnx
out = sys.argv[1]
names = ['Ä "\\', "two\nlines", "<x> & 'y'", "d", "unknown"]
for file in ("ultralytics", "transformers/onnx/model.onnx", "triton/1/model.onnx"):
    model = onnx.load(f"{out}/{file}")
    onnx.checker.check_model(model, full_check=True)
    meta = {p.key: p.value for p in model.metadata_props}
    assert json.loads(meta["mlrbfn.labels"]) == names and len(model.graph.input) == len(model.graph.output) == 1
    if file == "ultralytics":
        assert ast.literal_eval(meta["names"]) == dict(enumerate(names)) and meta["task"] == "classify", meta
        assert ast.literal_eval(meta["imgsz"]) == [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim[2:]], meta
config = json.load(open(f"{out}/transformers/config.json"))
assert [config["id2label"][str(i)] for i in range(5)] == names and config["label2id"]["unknown"] == 4
assert open(f"{out}/triton/labels.txt").read().splitlines() == ['Ä "\\', "two lines", "<x> & 'y'", "d", "unknown"]
sys.path.append(sys.argv[2] + "/tritonclient/grpc") # the package itself asks for grpc
try: import model_config_pb2
except ImportError: sys.exit()
from google.protobuf import text_format
config = text_format.Parse(open(f"{out}/triton/config.pbtxt").read(), model_config_pb2.ModelConfig())
assert config.max_batch_size == 64 and list(config.output[0].dims) == [5] and config.output[0].label_filename == "labels.txt", config
assert list(config.input[0].dims)[0] == 3 and config.input[0].data_type == model_config_pb2.TYPE_FP32, config
`, out, filepath.Join(testenv.Root(t), ".setup", "triton"))

	for says, change := range map[string]func(*detector.ExportOptions){
		"is called unknown already": func(o *detector.ExportOptions) {
			other := *det
			other.Classes = []string{"a", "b", "unknown", "d"}
			o.Detector = &other
		},
		`"keras" is none of`:                 func(o *detector.ExportOptions) { o.AsClassifier = "keras" },
		"a classifier has one output":        func(o *detector.ExportOptions) { o.KeepOutputs = true },
		"the backbone itself":                func(o *detector.ExportOptions) { o.Out = dir },
		"a graph of verdicts has no classes": func(o *detector.ExportOptions) { o.AsClassifier = ""; o.KeepLogits = true },
	} {
		bad := detector.ExportOptions{Detector: det, Out: filepath.Join(out, "bad"), AsClassifier: detector.Transformers}
		change(&bad)
		if err := detector.Export(t.Context(), bad); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want an error that says %q", err, says)
		}
		if _, err := os.Stat(filepath.Join(out, "bad")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: a file was left: %v", says, err)
		}
	}
}
