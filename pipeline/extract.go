package pipeline

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/internal/parts"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// tool is the name of the program that feature sets record.
const tool = "mlrbfn extract"

// ExtractOptions says which images to extract with which model to where.
type ExtractOptions struct {
	Model  string // folder of the backbone, or its .onnx file; extractor.PixelsName takes pixels as features
	Images string // folder of images, one subfolder per class or flat; or an idx file of images
	// Listing, where set, has the images, which may be in memory, in the place of Images,
	// which is their folder then, if they have one.
	Listing *images.Listing
	// Sources, where set, are read in the place of Images: tars, Parquet files, folders of
	// buckets, and lists, see package images. List and Names do not go with them.
	Sources []string
	List    string         // OpenOOD list of the images to take; "" takes all
	Names   string         // another list, whose folders name the classes of List; "" for List itself
	Class   string         // the class of all images, whatever folders they are in; "" for their folders
	Out     string         // folder of the feature set
	Shard   features.Shard // which part of the images to take; zero for all
	Parts   bool           // Out is a set of parts, of which Shard is one; see features.CommitParts
	DType   string         // features.Float16 rounds features to 16 bits; "" keeps float32
	Parquet bool           // write the features as Parquet too
	// Speculate lets several runs make the same part; see features.Options.
	Speculate bool
	Force     bool // replace a set of another model, preprocessing, image folder or shard, a damaged or an unfinished one
	Verify    bool // tell by their content, and not by size and time, which images have changed

	// Detector, where set, is one whose features to compute: with its backbone, which
	// Model may name and else is found, and with its preprocessing.
	Detector *detector.Detector

	// Advise, where set, puts the error of an image into other words for the set's
	// list of failures. Errors name fields of options; a program may have flags.
	Advise   func(error) error
	recorder *parts.Recorder // of a part
	// Options say how to open the model and how to run it. With Detector what would change
	// features does not count. Progress counts images that are new or, with Verify, looked
	// at, and is called with 0 of them before the first; the total is −1 where only reading
	// tars and tables tells.
	extractor.Options
}

// ExtractResult tells what an extraction came to.
type ExtractResult struct {
	Meta    features.Meta `json:"-"`
	New     int           `json:"new"`     // rows extracted now
	Reused  int           `json:"reused"`  // rows that an earlier run had made
	Skipped int           `json:"skipped"` // files that are no images
	Hidden  int           `json:"hidden"`  // hidden and system folders, which are not looked into
	// Of the new rows, Oriented come from images with an EXIF orientation other than
	// upright, which ApplyEXIF turns, and Enlarged from images that are smaller than
	// what the model reads. Grey16 come from greys of 16 bits, which are clipped at 255
	// unless Scale16.
	Oriented int `json:"oriented"`
	Enlarged int `json:"enlarged"`
	Grey16   int `json:"grey_16_bit,omitempty"`
	// Quantised says that the features depend on the processor, Meta.Machines on
	// which they were computed; see [extractor.Model.Quantised].
	Quantised bool         `json:"quantised"`
	Classes   []ClassCount `json:"classes"`         // of Meta, in its order
	Empty     []string     `json:"empty,omitempty"` // folders that would be a class if there were an image in them
	// Unfinished says, with Parts, why Out is not a set yet: which shards are missing.
	Unfinished error `json:"-"`
	// Waited is how long the worker that asks for the next image of tars, tables and buckets
	// waited for it, all together. Only one worker asks at a time; others may compute
	// meanwhile, so a store that was fast enough may show a large Waited.
	Waited time.Duration      `json:"-"`
	Unread bool               `json:"-"` // some images may be read at another try
	Failed []features.Failure `json:"-"` // images that could not be read
}

// ClassCount is a class and the number of its images that have features.
type ClassCount struct {
	Name   string `json:"name"`
	Images int    `json:"images"`
}

// Extract computes the features of a folder of images and writes them as a
// feature set. It skips images that an earlier run on the same set has processed,
// even if that run was interrupted. An image that cannot be read is listed in the
// result and in the set. It is an error if no image can be read, except in a shard.
//
// When ctx is cancelled it returns ctx.Err(), and the next run continues.
func Extract(ctx context.Context, opts ExtractOptions) (_ *ExtractResult, err error) {
	if bucket.IsURL(opts.Out) {
		return nil, options.Errorf("Out", "%s: a feature set is written to a disk", opts.Out)
	}
	if opts.Parts {
		return extractPart(ctx, opts)
	}
	if len(opts.Sources) > 0 {
		return extractSources(ctx, opts)
	}
	if opts.List == "" && opts.Listing == nil {
		if err := apart(opts.Images, opts.Out); err != nil {
			return nil, err
		}
	}
	listing := opts.Listing
	if listing == nil {
		if listing, err = images.List(ctx, images.ListOptions{Root: opts.Images, ListFile: opts.List, NamesFile: opts.Names}); err != nil {
			return nil, err
		}
	}
	if err := opts.fitPatches(ctx, listing); err != nil {
		return nil, err
	}
	root := listing.Root
	if root != "" { // it is needed again from other working directories
		if root, err = filepath.Abs(root); err != nil {
			return nil, fmt.Errorf("image folder: %w", err)
		}
	}
	model, source, err := openBackbone(ctx, opts, listing)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	w, quantised, err := createSet(ctx, opts, model, source, root)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	e := &extraction{opts: opts, model: model, w: w, listing: listing}
	e.result.Quantised = quantised
	if err := e.run(ctx); err != nil {
		return nil, err
	}
	return e.commit(ctx)
}

// extractSources is Extract for opts.Sources.
func extractSources(ctx context.Context, opts ExtractOptions) (_ *ExtractResult, err error) {
	if err := opts.fitPatches(ctx, nil); err != nil {
		return nil, err
	}
	if opts.List != "" || opts.Names != "" || opts.Images != "" {
		return nil, options.Errorf("Sources", "they go with neither Images nor List")
	}
	sources, err := images.ListSources(ctx, opts.Sources...)
	if err != nil {
		return nil, err
	}
	if opts.Model == extractor.PixelsName && opts.Detector == nil && opts.Width == 0 {
		return nil, options.Errorf("Width", "images that come in tars, tables or from a bucket need the size to make them of")
	}
	model, source, err := openBackbone(ctx, opts, &images.Listing{Root: sources.Root})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	if result, err := finished(ctx, opts, model, source, sources); result != nil || err != nil {
		return result, err
	}
	w, quantised, err := createSet(ctx, opts, model, source, sources.Root)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	e := &extraction{opts: opts, model: model, w: w}
	e.result.Quantised = quantised
	s, err := e.stream(ctx, sources)
	if err != nil {
		return nil, err
	}
	return s.commit(ctx)
}

// header says how the rows of a set are made. It also tells whether the model computes in 8
// bits.
func header(ctx context.Context, opts ExtractOptions, model extractor.Backbone, source detector.Source, root string) (h features.Header, quantised bool, err error) {
	h = features.Header{
		D: model.Dim() - features.LayersDim(source.Layers), Layers: source.Layers, Patches: source.Patches.File(), Embedding: source.Embedding, DType: opts.DType, Parquet: opts.Parquet, LogitsDim: model.LogitsDim(),
		Root: root, Model: source.Model, ModelSHA256: source.SHA256, Output: source.Output, Pool: source.Pool,
		Preprocess: source.Preprocess, Fingerprint: source.Fingerprint, Tool: tool, Shard: opts.Shard,
		Machine: features.Machine{Kernels: kernels.Name()},
	}
	if h.Probe, err = model.Probe(ctx); err != nil {
		return h, false, err
	}
	if m, ok := model.(*extractor.Model); ok {
		h.Machine.Runtime, h.Machine.Provider = extractor.RuntimeVersion(), cmp.Or(opts.Device, "cpu")
		if quantised = m.Quantised(); quantised {
			h.Machine.Products = extractor.Products()
		}
	}
	return h, quantised, nil
}

// createSet begins or continues the set.
func createSet(ctx context.Context, opts ExtractOptions, model extractor.Backbone, source detector.Source, root string) (*features.Writer, bool, error) {
	h, quantised, err := header(ctx, opts, model, source, root)
	if err != nil {
		return nil, false, err
	}
	w, err := features.Create(ctx, opts.Out, h, features.Options{
		Force: opts.Force, Speculate: opts.Speculate, AllowDriftedFeatures: opts.AllowDriftedFeatures, Drifted: opts.Drifted,
	})
	return w, quantised, err
}

// extraction is an Extract at work.
type extraction struct {
	opts    ExtractOptions
	model   extractor.Backbone
	w       *features.Writer
	listing *images.Listing
	result  ExtractResult
}

// run makes the rows that are missing.
func (e *extraction) run(ctx context.Context) error {
	known := func(item images.Item) bool {
		return !e.opts.Shard.Holds(item.Path) || !e.opts.Verify && e.has(item.Path, item.Bytes, item.MTime)
	}
	items := e.listing.Items
	if i := slices.IndexFunc(items, known); i >= 0 { // else there may be millions, which need not be in memory twice
		items = slices.Clone(items[:i])
		for _, item := range e.listing.Items[i+1:] {
			if !known(item) {
				items = append(items, item)
			}
		}
	}
	run, total := e.opts.Options, len(items)
	report := run.Progress
	if report != nil {
		report(0, 0, total)
	}
	if e.opts.Verify {
		var err error
		if items, err = e.changed(ctx, items); err != nil {
			return err
		}
		if same := total - len(items); report != nil {
			run.Progress = func(done, failed, _ int) { report(same+done, failed, total) }
		}
	}
	_, err := e.model.Extract(ctx, images.Of(items...), run, func(r extractor.Row) error {
		if r.Err != nil {
			e.result.Failed = append(e.result.Failed, e.failure(r.Item.Path, r.Err))
			return nil
		}
		return e.store(r)
	})
	return err
}

// store stores a new row, and counts it.
func (e *extraction) store(r extractor.Row) error {
	e.result.New++
	if r.Orientation != 1 {
		e.result.Oriented++
	}
	if r.Enlarged {
		e.result.Enlarged++
	}
	if r.Grey16 {
		e.result.Grey16++
	}
	image := features.Image{Path: r.Item.Path, Bytes: r.Item.Bytes, MTime: r.Item.MTime, SHA256: r.SHA256}
	return e.w.Append(image, r.Features, r.Logits)
}

// has tells whether there is a row of an image already, and counts it.
func (e *extraction) has(path string, bytes, mtime int64) bool {
	if !e.w.Has(path, bytes, mtime) {
		return false
	}
	e.opts.recorder.Know(1)
	return true
}

// failure says why an image has no features.
func (e *extraction) failure(path string, err error) features.Failure {
	if e.opts.Advise != nil {
		err = e.opts.Advise(err)
	}
	return features.Failure{Path: path, Error: err.Error()}
}

// changed returns the images whose content has changed since their rows were made.
func (e *extraction) changed(ctx context.Context, items []images.Item) (some []images.Item, err error) {
	var mu sync.Mutex
	same, n := make([]bool, len(items)), 0
	group, groupCtx := parallel.WithContext(ctx)
	group.SetLimit(cmp.Or(e.opts.Workers, runtime.GOMAXPROCS(0)))
	for i, item := range items {
		want := e.w.SHA256(item.Path)
		if want == "" {
			continue
		}
		group.Go(func() error {
			if groupCtx.Err() != nil {
				return groupCtx.Err()
			}
			sum, now, err := item.SHA256()
			if err != nil || sum != want { // the extraction sees to it
				return nil
			}
			same[i] = true
			e.w.Touch(now.Path, now.Bytes, now.MTime)
			mu.Lock()
			defer mu.Unlock()
			if n++; e.opts.Progress != nil {
				e.opts.Progress(n, 0, len(items))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for i, item := range items {
		if !same[i] {
			some = append(some, item)
		}
	}
	return some, nil
}

// commit makes the set.
func (e *extraction) commit(ctx context.Context) (*ExtractResult, error) {
	all, shard, lost := e.listing, e.opts.Shard, len(e.result.Failed)
	e.result.Unread = lost > 0
	e.result.Skipped, e.result.Hidden, e.result.Empty = all.Skipped, all.Hidden, all.Empty
	for _, failure := range all.Errors {
		if shard.Holds(failure.Path) {
			e.result.Failed = append(e.result.Failed, e.failure(failure.Path, failure.Err))
		}
	}
	slices.SortFunc(e.result.Failed, compareFailures)
	if e.opts.Class != "" {
		e.result.Empty = nil
	}
	set, unit := features.Contents{Classes: all.Classes, Class: e.opts.Class, Failed: e.result.Failed}, features.Unit{}
	// Millions, perhaps: room for them is made once.
	n := len(all.Items) / max(shard.Count, 1)
	unit.Images = make([]features.Image, 0, n+n/8)
	paths := sha256.New()
	for i, item := range all.Items {
		if shard.Count > 0 {
			fmt.Fprintf(paths, "%s\x00", item.Path)
		}
		if !shard.Holds(item.Path) {
			continue
		}
		image := features.Image{Path: item.Path, Bytes: item.Bytes, MTime: item.MTime}
		if bytes, mtime, ok := e.w.Known(item.Path); ok { // as it was when it was read
			image.Bytes, image.MTime = bytes, mtime
		}
		if item.Label >= 0 {
			image.Label = &all.Classes[item.Label]
		}
		unit.Images = append(unit.Images, image)
		if shard.Count > 0 {
			unit.Places = append(unit.Places, int64(i))
		}
	}
	if shard.Count > 0 {
		set.Part = &features.Part{Shard: shard, Images: len(all.Items), Listing: hex.EncodeToString(paths.Sum(nil))}
	}
	if shard.Count == 0 && lost == len(unit.Images) {
		first := e.result.Failed[0]
		return nil, fmt.Errorf("no image under %s gave features (%d tried); the first: %s: %s", e.opts.Images, lost, first.Path, first.Error)
	}
	set.Units = []features.Unit{unit}
	return e.finish(ctx, set)
}

// compareFailures orders failures by their paths.
func compareFailures(a, b features.Failure) int { return cmp.Compare(a.Path, b.Path) }

// finish writes the set and counts its classes.
func (e *extraction) finish(ctx context.Context, set features.Contents) (*ExtractResult, error) {
	var err error
	counts := map[int64]int{}
	set.Row = func(label int64) { counts[label]++ }
	if e.result.Meta, err = e.w.Commit(ctx, set); err != nil {
		return nil, err
	}
	e.result.Classes = []ClassCount{}
	for i, name := range e.result.Meta.Classes {
		e.result.Classes = append(e.result.Classes, ClassCount{Name: name, Images: counts[int64(i)]})
	}
	e.result.Reused = e.result.Meta.N - e.result.New
	return &e.result, nil
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
		return options.Errorf("Out", "the feature set %s would lie in the folder of images %s", out, images)
	}
	return nil
}

// openBackbone opens what the options name and says what it is, for the set and
// for detectors.
func openBackbone(ctx context.Context, opts ExtractOptions, listing *images.Listing) (extractor.Backbone, detector.Source, error) {
	if d := opts.Detector; d != nil {
		model, err := d.OpenBackbone(ctx, opts.Model, opts.Options)
		if err != nil {
			return nil, detector.Source{}, err
		}
		source := d.Source
		if m, ok := model.(*extractor.Model); ok {
			if source.SHA256 != "" && source.SHA256 != m.SHA256 {
				// Features of two graphs do not mix in sets, however near they are.
				return nil, detector.Source{}, errors.Join(fmt.Errorf("model %s is %w: its graph is another, and a feature set is of one", m.Dir, detector.ErrOtherModel), model.Close())
			}
			folder, err := filepath.Abs(m.Dir)
			if err == nil && source.Fingerprint == "" { // features made elsewhere
				source, err = detector.ModelSource(m, folder, preprocess.Reading{})
			}
			if source.Model = folder; err != nil {
				return nil, detector.Source{}, errors.Join(err, model.Close())
			}
		}
		return model, source, nil
	}
	if opts.Model == extractor.PixelsName {
		spec, err := opts.PixelSpec(ctx, listing)
		if err != nil {
			return nil, detector.Source{}, err
		}
		model, err := extractor.NewPixels(spec, opts.Reading)
		if err != nil {
			return nil, detector.Source{}, err
		}
		source, err := detector.PixelsSource(model, spec, opts.Reading)
		return model, source, err
	}
	folder, err := filepath.Abs(extractor.ModelPath(opts.Model)) // needed again from other working directories
	if err != nil {
		return nil, detector.Source{}, fmt.Errorf("model folder: %w", err)
	}
	model, err := extractor.OpenModel(ctx, opts.Model, opts.Options)
	if err != nil {
		return nil, detector.Source{}, err
	}
	if err := model.ProveLayers(ctx); err != nil {
		return nil, detector.Source{}, errors.Join(err, model.Close())
	}
	source, err := detector.ModelSource(model, folder, opts.Reading)
	if err != nil {
		return nil, detector.Source{}, errors.Join(fmt.Errorf("preprocessing of model %s: %w", model.Dir, err), model.Close())
	}
	return model, source, nil
}
