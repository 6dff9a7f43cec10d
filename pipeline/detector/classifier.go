package detector

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// ClassifierFormat says for which programs a backbone and a detector are written as one
// classifier. It has a probability for each class and a last one for [Unknown], which is
// the largest exactly where the detector says that an image is of none of its classes.
// Its input is RGB in float32 [batch, 3, height, width].
type ClassifierFormat string

// The formats.
const (
	// Ultralytics is a file that YOLO("x-cls.onnx") opens. Its input is from 0 to 1.
	Ultralytics ClassifierFormat = "ultralytics"
	// Transformers is a folder as Optimum and transformers.js read it, with the
	// preprocessing in its configuration.
	Transformers ClassifierFormat = "transformers"
	// Triton is the folder of a model in the repository of a Triton server. Its
	// input is prepared as the metadata mlrbfn.preprocess say.
	Triton ClassifierFormat = "triton"
)

// ClassifierFormats lists the formats.
var ClassifierFormats = []ClassifierFormat{Ultralytics, Transformers, Triton}

// Graph is the path of the graph in the folder of a format, "" where it is the file itself.
func (f ClassifierFormat) Graph() string {
	return map[ClassifierFormat]string{Transformers: "onnx/model.onnx", Triton: "1/model.onnx"}[f]
}

// Unknown is the name of a classifier's last class.
const Unknown = "unknown"

// The tensors of classifiers and the number of images that Triton may run together.
var (
	classifierInputs  = map[ClassifierFormat]string{Ultralytics: "images", Transformers: "pixel_values", Triton: "images"}
	classifierOutputs = map[ClassifierFormat]string{Ultralytics: "output0", Transformers: "logits", Triton: "probabilities"}
)

const tritonBatch = 64

// exportClassifier writes a classifier: the graph last, so that a folder that was cut
// short has none.
func exportClassifier(ctx context.Context, opts ExportOptions) error {
	if !slices.Contains(ClassifierFormats, opts.AsClassifier) {
		return options.Errorf("AsClassifier", "%q is none of %v", opts.AsClassifier, ClassifierFormats)
	}
	if opts.KeepOutputs {
		return options.Errorf("KeepOutputs", "a classifier has one output")
	}
	var files map[string][]byte
	m, err := exportWithBackbone(ctx, opts, func(model *extractor.Model, opts ExportOptions) (m *onnx.Model, err error) {
		m, files, err = classifier(model, opts)
		return m, err
	})
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return err
	}
	file := filepath.Join(opts.Out, filepath.FromSlash(opts.AsClassifier.Graph()))
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		return fmt.Errorf("export detector: %w", err)
	}
	for name, text := range files {
		if err := disk.Write(filepath.Join(opts.Out, name), disk.Bytes(text)); err != nil {
			return fmt.Errorf("export detector: %w", err)
		}
	}
	if err := disk.Write(file, m.Write); err != nil {
		return fmt.Errorf("export detector: %w", err)
	}
	return nil
}

// classifier makes the graph, and the files that lie beside it.
func classifier(model *extractor.Model, opts ExportOptions) (*onnx.Model, map[string][]byte, error) {
	d, spec, format := opts.Detector, model.Spec, opts.AsClassifier
	names, err := classNames(model, opts)
	if err != nil {
		return nil, nil, err
	}
	if spec.Grey {
		return nil, nil, options.Errorf("AsClassifier", "the backbone makes images grey first, which these programs do not")
	}
	in, out := classifierInputs[format], classifierOutputs[format]
	m, err := parseBackbone(model, opts, in, out, "logits")
	if err != nil {
		return nil, nil, err
	}
	m.DropOutputs()
	shape := []int{batchOf(model), 3, spec.Height, spec.Width}
	meaning := "images prepared as preprocess says"
	if format == Ultralytics {
		meaning = "RGB from 0 to 1"
		shape[2], shape[3] = uncropped(spec)
		shape[0] = max(1, shape[0]) // a free number of images is taken for a free size, too
	}
	m.Replace(model.Inputs[0].Name, in, onnx.Float, shape, func(x onnx.Value) onnx.Value { return addPreparing(m, model, format, x) })

	logConfidences, score, err := addJudging(m, d, onnx.AddFeatures(m, model))
	if err != nil {
		return nil, nil, err
	}
	known := logConfidences
	if opts.KeepLogits {
		known = m.Cast(m.Value("logits"), onnx.Double)
	}
	probabilities, means := addUnknown(m, d, known, logConfidences, score), "the logarithm of a probability"
	if format != Transformers { // which takes the exponentials itself
		probabilities, means = m.Op("Exp", probabilities), "a probability"
	}
	m.Output(out, m.Cast(probabilities, onnx.Float), onnx.Float, shape[0], len(names))
	m.Prune()
	info := inputInfo{in, "float32", shape, meaning}
	outputs := map[string]string{out: "float32 [batch, C + 1]: " + means + " for each of labels; the last, " + Unknown + ", is the largest where the detector says OOD"}
	if err := setMetadata(m, d, info, outputs); err != nil {
		return nil, nil, err
	}
	labels, err := json.Marshal(names)
	if err != nil {
		return nil, nil, err
	}
	m.SetMetadata("mlrbfn.labels", string(labels))
	switch format {
	case Ultralytics:
		return m, nil, setUltralytics(m, names, shape)
	case Transformers:
		files, err := transformersFiles(spec, names)
		return m, files, err
	}
	return m, tritonFiles(in, out, names, shape), nil
}

// classNames are the names of the classes, the last of them Unknown.
func classNames(model *extractor.Model, opts ExportOptions) ([]string, error) {
	names := opts.Detector.Classes
	if opts.KeepLogits {
		n := model.LogitsDim()
		if n == 0 {
			return nil, options.Errorf("KeepLogits", "the backbone has no output called logits")
		}
		var err error
		if names, err = ownNames(model.Dir, n); err != nil {
			return nil, err
		}
	}
	if slices.Contains(names, Unknown) {
		return nil, options.Errorf("AsClassifier", "a class is called %s already", Unknown)
	}
	return append(slices.Clone(names), Unknown), nil
}

// ownNames are the names of a backbone's n classes: those of config.json beside it, or
// else their numbers.
func ownNames(dir string, n int) ([]string, error) {
	file := filepath.Join(dir, "config.json")
	var config struct {
		Names map[string]string `json:"id2label"`
		Timm  []string          `json:"label_names"`
	}
	data, err := disk.ReadFile(file, 64<<20)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		if err := json.Unmarshal(data, &config); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	names := make([]string, n)
	for i := range names {
		names[i] = strconv.Itoa(i)
		if name := config.Names[names[i]]; name != "" {
			names[i] = name
		} else if len(config.Timm) == n {
			names[i] = config.Timm[i]
		}
	}
	return names, nil
}

// uncropped is the size of the images that Ultralytics is to give: it resizes the shorter
// edge to it and crops the centre. What the model crops off is cropped in the graph, so
// that both see the same part of an image.
func uncropped(s *preprocess.Spec) (height, width int) {
	if (s.Resize == preprocess.Shortest || s.Resize == preprocess.Cover) && s.ResizeHeight == s.ResizeWidth && s.ResizeHeight >= max(s.Height, s.Width) {
		return s.ResizeHeight, s.ResizeWidth
	}
	return s.Height, s.Width
}

// addPreparing adds the backbone's input for images as the format has them.
func addPreparing(m *onnx.Model, model *extractor.Model, format ClassifierFormat, x onnx.Value) onnx.Value {
	spec := model.Spec
	if format == Ultralytics {
		height, width := uncropped(spec)
		x = addCrop(m, addCrop(m, x, 2, height, spec.Height), 3, width, spec.Width)
		scale, offset := make([]float32, 3), make([]float32, 3)
		for c := range 3 {
			scale[c], offset[c] = float32(255*spec.Scale/spec.Std[c]), float32(-spec.Mean[c]/spec.Std[c])
		}
		x = m.Op("Add", m.Op("Mul", x, m.Floats(scale, 1, 3, 1, 1)), m.Floats(offset, 1, 3, 1, 1))
	}
	if model.Layout() == preprocess.NHWC {
		x = m.Node("Transpose", []onnx.Value{x}, onnx.Ints("perm", 0, 2, 3, 1))
	}
	if model.Inputs[0].Type == "float16" {
		x = m.Cast(x, onnx.Half)
	}
	return x
}

// addCrop adds the middle of an axis.
func addCrop(m *onnx.Model, x onnx.Value, axis int64, from, to int) onnx.Value {
	if from == to {
		return x
	}
	at := make([]int64, to)
	for i := range at {
		at[i] = int64((from-to)/2 + i)
	}
	return m.Node("Gather", []onnx.Value{x, m.Int64s(at...)}, onnx.Int("axis", axis))
}

// addUnknown adds the logarithms of C + 1 probabilities: those of the classes are in the
// ratio that known has, and the last is to the largest of them as the score is to its
// threshold, in deviations of the calibration scores.
func addUnknown(m *onnx.Model, d *Detector, known, logConfidences, score onnx.Value) onnx.Value {
	// Further below the largest nothing shows in float32; nearer to the threshold
	// than the least margin, rounding to float32 could decide.
	const most, least = 30, 1e-3
	score = m.Op("Reshape", score, m.Int64s(0, 1))
	threshold := m.Op("Reshape", addThreshold(m, d, m.ArgMax(logConfidences)), m.Int64s(0, 1))
	flagged := m.Cast(m.Op("Not", m.AtLeast(score, threshold)), onnx.Double)
	above := m.Op("Abs", m.Op("Div", m.Op("Sub", score, threshold), m.Number(spread(d.CalibrationScores))))
	above = addKnown(m, m.Op("Max", m.Op("Min", above, m.Number(most)), m.Number(least)), most)
	unknown := m.Op("Mul", above, m.Op("Sub", m.Op("Mul", flagged, m.Number(2)), m.Number(1)))
	below := addKnown(m, m.Op("Max", m.Op("Sub", known, m.Largest(known)), m.Number(-most)), 0)
	all := m.Node("Concat", []onnx.Value{below, unknown}, onnx.Int("axis", 1))
	return m.Op("Sub", all, m.LogSumExp(all))
}

// setUltralytics sets the metadata that Ultralytics writes itself.
func setUltralytics(m *onnx.Model, names []string, shape []int) error {
	var list []string // of Python, whose text is like JSON's
	for i, name := range names {
		text, err := json.Marshal(name)
		if err != nil {
			return err
		}
		list = append(list, fmt.Sprintf("%d: %s", i, text))
	}
	for key, value := range map[string]string{
		"task": "classify", "stride": "1", "channels": "3", "batch": strconv.Itoa(shape[0]),
		"imgsz": fmt.Sprintf("[%d, %d]", shape[2], shape[3]), "names": "{" + strings.Join(list, ", ") + "}",
	} {
		m.SetMetadata(key, value)
	}
	return nil
}

// transformersFiles are the files of a folder of Hugging Face.
func transformersFiles(s *preprocess.Spec, names []string) (map[string][]byte, error) {
	id2label, label2id := map[int]string{}, map[string]int{}
	for i, name := range names {
		id2label[i], label2id[name] = name, i
	}
	size := map[string]int{"height": s.ResizeHeight, "width": s.ResizeWidth}
	switch s.Resize {
	case preprocess.Shortest, preprocess.Cover:
		size = map[string]int{"shortest_edge": s.ResizeHeight}
	case preprocess.Contain:
		return nil, options.Errorf("AsClassifier", "the backbone wants images with a border, which these programs do not make")
	}
	filters := []preprocess.Filter{preprocess.Nearest, preprocess.Lanczos, preprocess.Bilinear, preprocess.Bicubic, preprocess.Box, preprocess.Hamming}
	files := map[string][]byte{}
	for name, content := range map[string]any{
		// Of the architecture only the name is read, and that must be one that is known.
		"config.json": map[string]any{"model_type": "vit", "architectures": []string{"ViTForImageClassification"}, "id2label": id2label, "label2id": label2id, "image_size": s.Height, "num_channels": 3},
		"preprocessor_config.json": map[string]any{
			"image_processor_type": "CLIPImageProcessor", "do_convert_rgb": true,
			"do_resize": s.ResizeHeight > 0, "size": size, "resample": max(0, slices.Index(filters, s.Filter)),
			"do_center_crop": true, "crop_size": map[string]int{"height": s.Height, "width": s.Width},
			"do_rescale": true, "rescale_factor": s.Scale, "do_normalize": true, "image_mean": s.Mean, "image_std": s.Std,
		},
	} {
		text, err := json.MarshalIndent(content, "", "  ")
		if err != nil {
			return nil, err
		}
		files[name] = append(text, '\n')
	}
	return files, nil
}

// tritonFiles are the configuration of a model in a repository of Triton, and its labels.
func tritonFiles(in, out string, names []string, shape []int) map[string][]byte {
	most, batch := tritonBatch, ""
	if shape[0] != onnx.Batch {
		most, batch = 0, fmt.Sprintf("%d, ", shape[0])
	}
	var labels strings.Builder
	for _, name := range names {
		labels.WriteString(strings.Join(strings.Fields(name), " ") + "\n")
	}
	config := fmt.Sprintf(`backend: "onnxruntime"
max_batch_size: %d
input [ { name: "%s" data_type: TYPE_FP32 dims: [ %s3, %d, %d ] } ]
output [ { name: "%s" data_type: TYPE_FP32 dims: [ %s%d ] label_filename: "labels.txt" } ]
`, most, in, batch, shape[2], shape[3], out, batch, len(names))
	if most > 0 {
		config += "dynamic_batching { }\n"
	}
	return map[string][]byte{"config.pbtxt": []byte(config), "labels.txt": []byte(labels.String())}
}
