package detector

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/version"
)

// DefaultOpset is the version of ONNX's operators in graphs that are made from
// nothing; onnxruntime knows it since 1.12.
const DefaultOpset = 17

// ExportOptions says what to write as ONNX.
type ExportOptions struct {
	Detector *Detector
	Out      string // the file to write
	Opset    int    // version of ONNX's operators; 0 takes the backbone's, or DefaultOpset

	WithBackbone bool
	Model        string // folder of the backbone; "" takes the detector's own
	KeepOutputs  bool   // keep the backbone's outputs beside the verdict

	// AsClassifier writes the backbone and the detector as one classifier of a
	// format, whose last class is [Unknown]; "" writes a graph of verdicts.
	AsClassifier ClassifierFormat
	KeepLogits   bool // the other classes are those of the backbone's own classifier

	// AllowDriftedFeatures and Drifted are those of [extractor.Options].
	AllowDriftedFeatures bool
	Drifted              func(text string)
}

// Export writes a detector as an ONNX file, whole or not at all: from features
// [batch, D] or, with the backbone, from its prepared images to verdicts. The
// graph computes in float64 what [detector.Detector.Verdicts] does; preparing images
// stays outside. The file's metadata properties, each of them JSON, say what
// the outputs mean and all else that a user of it needs.
//
// The backbone must be the one of the training features, or the error wraps
// [detector.ErrOtherModel]. A score that has no graph is an error that wraps
// [posthoc.ErrNoGraph].
//
// With AsClassifier the graph is what [ClassifierFormat] says.
func Export(ctx context.Context, opts ExportOptions) error {
	if n := len(opts.Detector.Folds); n > 0 {
		return options.Errorf("Detector", "it judges by %d folds, each a whole detector, and a graph holds one: train with a share of the images or a feature set of its own to calibrate by, instead of folds, and export that", n)
	}
	if opts.AsClassifier != "" {
		return exportClassifier(ctx, opts)
	}
	if opts.KeepLogits {
		return options.Errorf("KeepLogits", "a graph of verdicts has no classes of the backbone; it goes with a classifier")
	}
	var m *onnx.Model
	var err error
	if opts.WithBackbone {
		m, err = exportWithBackbone(ctx, opts, mergeBackbone)
	} else {
		m, err = exportHead(opts)
	}
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return err
	}
	if err := disk.Write(opts.Out, m.Write); err != nil {
		return fmt.Errorf("export detector: %w", err)
	}
	return nil
}

// exportHead makes the graph from features to verdicts.
func exportHead(opts ExportOptions) (*onnx.Model, error) {
	d, opset := opts.Detector, opts.Opset
	opset = cmp.Or(opset, DefaultOpset)
	m, err := onnx.New(opset, "mlrbfn", version.Version)
	if err != nil {
		return nil, fmt.Errorf("export detector: %w", err)
	}
	if err := addDetector(m, d, m.Input("features", onnx.Float, onnx.Batch, d.Dim()), onnx.Batch); err != nil {
		return nil, err
	}
	input := inputInfo{"features", "float32", []int{onnx.Batch, d.Dim()}, "embeddings of images as extract makes them, not scaled, followed by the layers that the detector reads"}
	return m, setMetadata(m, d, input, verdictOutputs)
}

// exportWithBackbone makes the graph from images on, with what merge makes of the open
// backbone.
func exportWithBackbone(ctx context.Context, opts ExportOptions, merge func(*extractor.Model, ExportOptions) (*onnx.Model, error)) (_ *onnx.Model, err error) {
	d := opts.Detector
	opened, err := d.OpenBackbone(ctx, opts.Model, extractor.Options{AllowDriftedFeatures: opts.AllowDriftedFeatures, Drifted: opts.Drifted})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	model, ok := opened.(*extractor.Model)
	if !ok {
		return nil, options.Errorf("WithBackbone", "the detector's features are pixels, and there is no backbone to put before it")
	}
	if disk.Same(opts.Out, model.File) || disk.Same(opts.Out, model.Dir) {
		return nil, fmt.Errorf("export detector: %s is the backbone itself; choose another name", opts.Out)
	}
	m, err := merge(model, opts)
	if err != nil {
		return nil, fmt.Errorf("export with the backbone %s: %w", model.File, err)
	}
	return m, nil
}

// mergeBackbone makes the graph from prepared images to verdicts.
func mergeBackbone(model *extractor.Model, opts ExportOptions) (*onnx.Model, error) {
	m, err := parseBackbone(model, opts, slices.Sorted(maps.Keys(verdictOutputs))...)
	if err != nil {
		return nil, err
	}
	if !opts.KeepOutputs {
		m.DropOutputs()
	}
	in := model.Inputs[0]
	if err := addDetector(m, opts.Detector, onnx.AddFeatures(m, model), int(in.Shape[0])); err != nil {
		return nil, err
	}
	m.Prune()

	shape := []int{batchOf(model), 3, model.Spec.Height, model.Spec.Width}
	if model.Layout() == preprocess.NHWC {
		shape = []int{shape[0], model.Spec.Height, model.Spec.Width, 3}
	}
	input := inputInfo{string(m.Value(in.Name)), in.Type, shape, "images prepared as preprocess says"}
	return m, setMetadata(m, opts.Detector, input, verdictOutputs)
}

// parseBackbone reads the backbone's graph and renames in it what has a reserved name.
func parseBackbone(model *extractor.Model, opts ExportOptions, reserved ...string) (*onnx.Model, error) {
	data, err := disk.ReadFile(model.File, disk.Graph)
	if err != nil {
		return nil, err
	}
	m, err := onnx.Parse(data, model.File, reserved...)
	if err != nil {
		return nil, err
	}
	if opts.Opset != 0 && opts.Opset != m.Opset() {
		return nil, fmt.Errorf("it has opset %d, and opset %d is asked for; a file has one", m.Opset(), opts.Opset)
	}
	return m, nil
}

// batchOf is the number of images of a run, onnx.Batch where any will do: a graph may
// take a fixed number, or mix the images of a batch.
func batchOf(model *extractor.Model) int {
	if one, two := model.Batch(1), model.Batch(2); one == two {
		return one
	}
	return onnx.Batch
}

// inputInfo says what an exported graph is to be given.
type inputInfo struct {
	Name    string `json:"name"`
	Type    string `json:"type"`
	Shape   []int  `json:"shape"` // −1 where any number of images fits
	Meaning string `json:"meaning"`
}

// setMetadata sets the properties of an exported graph, all of them JSON.
func setMetadata(m *onnx.Model, d *Detector, input inputInfo, outputs map[string]string) error {
	threshold := &d.Threshold
	if math.IsInf(d.Threshold, -1) {
		threshold = nil
	}
	first, network, condition := d.Heads[0], "paper", (*head.ConditioningOptions)(nil)
	settings := first.Network.Settings()
	if settings.Residual {
		network = "open"
	}
	if c := first.Conditioning; c != nil {
		condition = &c.ConditioningOptions
	}
	for _, property := range []struct {
		key   string
		value any
	}{
		{"input", input},
		{"outputs", outputs},
		{"classes", d.Classes},
		{"score", d.ScoreName()},
		{"threshold", threshold},
		{"target_tpr", d.TargetTPR},
		{"calibration_scores", len(d.CalibrationScores)},
		{"preprocess", d.Source.Preprocess},
		{"fingerprint", d.Source.Fingerprint},
		{"model_sha256", d.Source.SHA256},
		{"output", d.Source.Output},
		{"pool", d.Source.Pool},
		{"network", network},
		{"conditioning", condition},
		{"norm", settings.Norm},
		{"seeds", d.Seeds},
		{"tool", "mlrbfn export " + version.Version},
	} {
		text, err := json.Marshal(property.value)
		if err != nil {
			return fmt.Errorf("export detector: metadata %s: %w", property.key, err)
		}
		m.SetMetadata("mlrbfn."+property.key, string(text))
	}
	return nil
}
