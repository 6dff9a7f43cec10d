package detector

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// Source says how the features of a detector were made, so that those of new
// images can be made the same way. It is empty for features made elsewhere. Its
// JSON names are those of detector files.
type Source struct {
	Fingerprint string          `json:"fingerprint"`  // hash of all below but Model and Embedding
	Model       string          `json:"model"`        // folder of the backbone when the features were made, or extractor.PixelsName
	SHA256      string          `json:"model_sha256"` // of its graph
	Output      string          `json:"output"`       // which output is the embedding
	Pool        string          `json:"pool"`         // how it becomes one vector
	Preprocess  json.RawMessage `json:"preprocess"`   // what is done to an image before; null if unknown

	// Layers follow the embedding in the features; nil for none. Embedding is the
	// fingerprint without them, "" where it is the same.
	Layers    []features.Layer `json:"layers,omitempty"`
	Embedding string           `json:"embedding_fingerprint,omitempty"`
	// Patches is the model of patches that one of Layers is by; nil without such a layer.
	// Files have it as a tensor.
	Patches *extractor.Patches `json:"-"`
}

// Space is the fingerprint of the embedding.
func (s Source) Space() string { return cmp.Or(s.Embedding, s.Fingerprint) }

// With returns the source of the same embedding with these layers in the place of its own.
func (s Source) With(layers []features.Layer) Source {
	embedding := s.Space()
	s.Layers, s.Fingerprint, s.Embedding = layers, embedding, ""
	if !slices.ContainsFunc(layers, features.Layer.OfPatches) {
		s.Patches = nil
	}
	if len(layers) > 0 && embedding != "" {
		s.Fingerprint, s.Embedding = features.LayersFingerprint(embedding, layers), embedding
	}
	return s
}

// PixelsSource says how pixels were made features of.
func PixelsSource(model *extractor.Pixels, spec *preprocess.Spec, reading preprocess.Reading) (Source, error) {
	preprocess, err := json.Marshal(treatmentOf(spec, reading))
	return Source{Fingerprint: model.Fingerprint(), Model: extractor.PixelsName, Output: extractor.PixelsName, Preprocess: preprocess}, err
}

// ModelSource says how a model, in a folder, makes features.
func ModelSource(model *extractor.Model, folder string, reading preprocess.Reading) (Source, error) {
	treatment := treatmentOf(model.Spec, reading)
	treatment.FastMath = model.FastMath()
	preprocess, err := json.Marshal(treatment)
	return Source{
		Fingerprint: model.EmbeddingFingerprint(), Model: folder, SHA256: model.SHA256,
		Output: model.Output(), Pool: model.Pool(), Preprocess: preprocess, Patches: model.Patches(),
	}.With(model.Layers()), err
}

// ErrOtherModel is wrapped by the error of a backbone that is not the one that
// a detector's training features came from.
var ErrOtherModel = errors.New("not the detector's backbone")

// OpenBackbone opens the backbone that the detector's features came from, in the
// folder dir or, where that is "", where the model with the detector's hash is
// found; see [extractor.ModelReference]. Of a detector that is signed, only the
// model with its hash is opened, whatever dir has. A model whose features differ from
// the detector's probe is refused or reported, as [Detector.CheckBackbone] says. Another
// graph in dir, as another export of the same model is, must prepare images in the same
// way and give the features of the probe, and AllowDriftedFeatures does not count for it.
func (d *Detector) OpenBackbone(ctx context.Context, dir string, opts extractor.Options) (_ extractor.Backbone, err error) {
	if d.Source.Model == extractor.PixelsName {
		return d.openPixels(dir)
	}
	switch {
	case d.signed && (d.Source.SHA256 == "" || d.Source.Fingerprint == ""):
		return nil, fmt.Errorf("%w: it does not name its model by a hash, so that its signature does not cover the model", ErrDetector)
	case d.signed && dir != "":
		if hash, err := extractor.HashModel(ctx, dir); err != nil {
			return nil, err
		} else if hash != d.Source.SHA256 {
			return nil, fmt.Errorf("model %s is %w: its graph is another", dir, ErrOtherModel)
		}
	case dir == "":
		named := extractor.ModelReference{SHA256: d.Source.SHA256, Hint: d.Source.Model}
		if d.file != "" {
			named.Beside = filepath.Dir(d.file)
		}
		if dir, err = named.Find(ctx); err != nil {
			return nil, fmt.Errorf("the detector's backbone: %w", err)
		}
	}
	if opts, err = d.Source.options(opts); err != nil {
		return nil, err
	}
	model, err := extractor.OpenModel(ctx, dir, opts)
	if err != nil {
		return nil, err
	}
	defer disk.OnError(&err, model.Close)
	if model.Dim() != d.Dim() {
		return nil, fmt.Errorf("model %s gives %d features and the detector reads %d: %w", dir, model.Dim(), d.Dim(), ErrOtherModel)
	}
	other := d.Source.SHA256 != "" && d.Source.SHA256 != model.SHA256
	prepares, comparable := d.Source.Fingerprint == "" || d.Source.Fingerprint == model.Fingerprint(), false
	if other && d.Probe != nil {
		if prepares, err = d.Source.prepares(model.Spec); err != nil {
			return nil, err
		}
		now, err := model.Probe(ctx)
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", dir, err)
		}
		comparable = d.Probe.Comparable(now)
	}
	what := ""
	switch {
	case other && !comparable:
		what = "its graph is another"
	case !prepares:
		what = "its preprocessing differs"
	}
	if what != "" {
		return nil, fmt.Errorf("model %s is %w: %s from the one at %s that the detector was trained with", dir, ErrOtherModel, what, d.Source.Model)
	}
	drift, err := d.driftOf(ctx, model)
	switch {
	case err != nil:
	case other && drift.Breaks():
		err = fmt.Errorf("it is %w: its graph is another than the one at %s, and %v", ErrOtherModel, d.Source.Model, drift)
	default:
		err = drift.report(opts)
	}
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", dir, err)
	}
	return model, nil
}

// options returns how to open the model so that its features are those of the training. Of
// opts only what cannot change them counts.
func (s Source) options(opts extractor.Options) (extractor.Options, error) {
	treatment, err := s.files()
	if err != nil {
		return opts, err
	}
	opts.Reading, opts.FastMath = treatment.reading(), treatment.FastMath
	// Output and pool are as training had them; a set made elsewhere names
	// neither, and the model's defaults hold.
	opts.Output, opts.Pool, opts.Layers, opts.PatchNodes, opts.Patches = s.Output, s.Pool, nil, nil, s.Patches
	for _, l := range s.Layers {
		if !l.OfPatches() {
			opts.Layers = append(opts.Layers, l.Name)
		}
	}
	return opts, nil
}

// prepares tells whether images are prepared as they were for the training features.
func (s Source) prepares(spec *preprocess.Spec) (bool, error) {
	own, err := s.Spec()
	return err == nil && reflect.DeepEqual(own, spec), err
}

// openPixels is OpenBackbone for a detector of pixels.
func (d *Detector) openPixels(dir string) (extractor.Backbone, error) {
	if dir != "" && dir != extractor.PixelsName {
		return nil, fmt.Errorf("model %s is %w: it was trained on pixels and has none", dir, ErrOtherModel)
	}
	treatment := imageTreatment{Spec: new(preprocess.Spec)}
	if err := json.Unmarshal(d.Source.Preprocess, &treatment); err != nil {
		return nil, fmt.Errorf("%w: its preprocessing: %w", ErrDetector, err)
	}
	model, err := extractor.NewPixels(treatment.Spec, treatment.reading())
	if err != nil {
		return nil, fmt.Errorf("%w: its preprocessing: %w", ErrDetector, err)
	}
	if model.Dim() != d.Dim() || model.Fingerprint() != d.Source.Fingerprint {
		return nil, fmt.Errorf("the preprocessing of pixels in this version is %w: it was trained with another; train again", ErrOtherModel)
	}
	return model, nil
}

// Reading says how files are read.
func (s Source) Reading() (preprocess.Reading, error) {
	treatment, err := s.files()
	return treatment.reading(), err
}

func (s Source) files() (treatment fileTreatment, err error) {
	if s.Preprocess != nil {
		if err := json.Unmarshal(s.Preprocess, &treatment); err != nil {
			return fileTreatment{}, fmt.Errorf("%w: its preprocessing: %w", ErrDetector, err)
		}
	}
	return treatment, nil
}

// Spec returns how an image is prepared for the model.
func (s Source) Spec() (*preprocess.Spec, error) {
	var treatment imageTreatment
	err := json.Unmarshal(s.Preprocess, &treatment)
	if err == nil && treatment.Spec == nil {
		err = errors.New("it does not say")
	}
	if err == nil {
		err = treatment.Spec.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: its preprocessing: %w", ErrDetector, err)
	}
	return treatment.Spec, nil
}

// imageTreatment is all that is done to an image before the model sees it, as
// feature sets and detectors say it.
type imageTreatment struct {
	*preprocess.Spec
	fileTreatment
}

// fileTreatment is how files say preprocess.Reading, and how the model computes.
type fileTreatment struct {
	EXIF     string `json:"exif"` // "ignore" or "apply"
	Scale16  bool   `json:"scale_16_bit,omitempty"`
	FastMath bool   `json:"fast_math,omitempty"`
}

func treatmentOf(spec *preprocess.Spec, reading preprocess.Reading) imageTreatment {
	files := fileTreatment{EXIF: "ignore", Scale16: reading.Scale16}
	if reading.ApplyEXIF {
		files.EXIF = "apply"
	}
	return imageTreatment{spec, files}
}

func (t fileTreatment) reading() preprocess.Reading {
	return preprocess.Reading{ApplyEXIF: t.EXIF == "apply", Scale16: t.Scale16}
}
