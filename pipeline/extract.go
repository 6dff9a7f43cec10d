package pipeline

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"mlrbfn/extractor"
	"mlrbfn/extractor/preprocess"
	"mlrbfn/features"
)

// tool is what feature sets say they were made by.
const tool = "mlrbfn extract"

// ExtractOptions says which images to extract with which model to where.
type ExtractOptions struct {
	Model  string // folder of the backbone, or its .onnx file; extractor.PixelsName takes pixels as features
	Images string // folder of images, one subfolder per class or flat; or an idx file of images
	List   string // OpenOOD list of the images to take; "" takes all
	Names  string // another list, whose folders name the classes of List; "" for List itself
	Out    string // folder of the feature set
	Force  bool   // replace a set of another model, preprocessing or image folder, a damaged or an unfinished one

	Backbone extractor.ModelOptions   // of an ONNX model
	Pixels   extractor.PixelOptions   // of extractor.PixelsName
	Run      extractor.ExtractOptions // Progress counts new images only
}

// ExtractResult tells what an extraction came to.
type ExtractResult struct {
	Meta    features.Meta
	New     int                // rows extracted now
	Reused  int                // rows that an earlier run had made
	Skipped int                // files that are no images
	Failed  []features.Failure // images that could not be read
}

// Extract computes the features of a folder of images and writes them as a
// feature set. Images that an earlier run onto the same set has done, finished
// or not, are not done again. An image that cannot be read is listed in the
// result and in the set, and stops nothing; only where none could be read is
// that an error.
//
// When ctx is cancelled it returns ctx.Err(), and what was done is kept for the
// next run.
func Extract(ctx context.Context, opts ExtractOptions) (_ *ExtractResult, err error) {
	if opts.List == "" {
		if err := apart(opts.Images, opts.Out); err != nil {
			return nil, err
		}
	}
	listing, err := extractor.List(extractor.ListOptions{Root: opts.Images, ListFile: opts.List, NamesFile: opts.Names})
	if err != nil {
		return nil, err
	}
	model, source, err := openBackbone(ctx, opts, listing)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	root, err := filepath.Abs(listing.Root) // needed again from other working directories
	if err != nil {
		return nil, fmt.Errorf("image folder: %w", err)
	}
	header := features.Header{
		D: model.Dim(), LogitsDim: model.LogitsDim(),
		Root: root, Model: source.Model, ModelSHA256: source.SHA256, Output: source.Output, Pool: source.Pool,
		Preprocess: source.Preprocess, Fingerprint: source.Fingerprint, Tool: tool,
	}
	w, err := features.Create(opts.Out, header, features.Options{Force: opts.Force})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()

	result := &ExtractResult{Skipped: listing.Skipped}
	for _, e := range listing.Errors {
		result.Failed = append(result.Failed, features.Failure{Path: e.Path, Error: e.Err.Error()})
	}
	var todo []extractor.Item
	for _, item := range listing.Items {
		if !w.Has(item.Path, item.Bytes, item.MTime) {
			todo = append(todo, item)
		}
	}
	result.Reused = len(listing.Items) - len(todo)
	changed := map[string]extractor.Item{} // files that are not as they were listed
	_, err = model.Extract(ctx, todo, opts.Run, func(r extractor.Result) error {
		if r.Err != nil {
			result.Failed = append(result.Failed, features.Failure{Path: r.Item.Path, Error: r.Err.Error()})
			return nil
		}
		result.New++
		if r.Item != todo[r.Index] {
			changed[r.Item.Path] = r.Item
		}
		image := features.Image{Path: r.Item.Path, Bytes: r.Item.Bytes, MTime: r.Item.MTime, SHA256: r.SHA256}
		return w.Append(image, r.Features, r.Logits)
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(result.Failed, func(a, b features.Failure) int { return cmp.Compare(a.Path, b.Path) })
	if result.New+result.Reused == 0 {
		return nil, fmt.Errorf("none of the %d images under %s gave features; the first: %s: %s", len(listing.Items), opts.Images, result.Failed[0].Path, result.Failed[0].Error)
	}
	images, labels := make([]features.Image, len(listing.Items)), make([]int64, len(listing.Items))
	for i, item := range listing.Items {
		if now, ok := changed[item.Path]; ok {
			item = now
		}
		images[i] = features.Image{Path: item.Path, Bytes: item.Bytes, MTime: item.MTime}
		labels[i] = int64(item.Label)
		if item.Label >= 0 {
			images[i].Label = &listing.Classes[item.Label]
		}
	}
	result.Meta, err = w.Commit(images, labels, listing.Classes, result.Failed)
	return result, err
}

// apart refuses a feature set inside the folder of images, where it would be
// taken for a class the next time.
func apart(images, out string) error {
	root, err := filepath.Abs(images)
	if err != nil {
		return fmt.Errorf("image folder: %w", err)
	}
	set, err := filepath.Abs(out)
	if err != nil {
		return fmt.Errorf("feature set: %w", err)
	}
	// A link must not get round it. What does not exist yet is no link.
	if target, err := filepath.EvalSymlinks(root); err == nil {
		root = target
	}
	if parent, err := filepath.EvalSymlinks(filepath.Dir(set)); err == nil {
		set = filepath.Join(parent, filepath.Base(set))
	}
	if inside, err := filepath.Rel(root, set); err == nil && filepath.IsLocal(inside) {
		return fmt.Errorf("the feature set %s would lie in the folder of images %s; choose another --out", out, images)
	}
	return nil
}

// backbone is what makes features of images: an [extractor.Model] or
// [extractor.Pixels].
type backbone interface {
	Dim() int
	LogitsDim() int
	Extract(context.Context, []extractor.Item, extractor.ExtractOptions, func(extractor.Result) error) (extractor.Stats, error)
	Close() error
}

// openBackbone opens what the options name and says what it is, for the set and
// for detectors.
func openBackbone(ctx context.Context, opts ExtractOptions, listing *extractor.Listing) (backbone, Source, error) {
	if opts.Model == extractor.PixelsName {
		spec, err := opts.Pixels.Spec(ctx, listing)
		if err != nil {
			return nil, Source{}, err
		}
		model, err := extractor.NewPixels(spec, opts.Pixels.ApplyEXIF)
		if err != nil {
			return nil, Source{}, err
		}
		source := Source{Fingerprint: model.Fingerprint(), Model: extractor.PixelsName, Output: extractor.PixelsName}
		source.Preprocess, err = json.Marshal(imageTreatment{spec, exifName(opts.Pixels.ApplyEXIF)})
		return model, source, err
	}
	folder, err := filepath.Abs(opts.Model) // needed again from other working directories
	if err != nil {
		return nil, Source{}, fmt.Errorf("model folder: %w", err)
	}
	model, err := extractor.OpenModel(opts.Model, opts.Backbone)
	if err != nil {
		return nil, Source{}, err
	}
	source := Source{Fingerprint: model.Fingerprint(), Model: folder, SHA256: model.SHA256, Output: model.Output(), Pool: model.Pool()}
	source.Preprocess, err = json.Marshal(imageTreatment{model.Spec, exifName(opts.Backbone.ApplyEXIF)})
	if err != nil {
		return nil, Source{}, errors.Join(fmt.Errorf("preprocessing of model %s: %w", model.Dir, err), model.Close())
	}
	return model, source, nil
}

// imageTreatment is all that is done to an image before the model sees it, as
// feature sets and detectors say it.
type imageTreatment struct {
	*preprocess.Spec
	EXIF string `json:"exif"` // "ignore" or "apply"
}

// exifName is how files say what was done about EXIF orientation.
func exifName(apply bool) string {
	if apply {
		return "apply"
	}
	return "ignore"
}
