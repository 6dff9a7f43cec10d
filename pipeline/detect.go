package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"

	"mlrbfn/extractor"
	"mlrbfn/extractor/preprocess"
)

// ErrOtherModel is wrapped by the error of a backbone that is not the one that
// a detector's training features came from.
var ErrOtherModel = errors.New("not the detector's backbone")

// DetectOptions says which images to judge by what.
type DetectOptions struct {
	Detector *Detector
	Model    string   // folder of the backbone; "" takes the detector's own
	Paths    []string // image files, folders of them, and idx files of images

	Backbone extractor.ModelOptions   // only Device, Provider and IntraOpThreads count, the rest is the detector's
	Run      extractor.ExtractOptions // workers, batch, progress
}

// Judgement is what became of one image: a verdict, or an error.
type Judgement struct {
	Path string // as the image was named, or folder and path within, with forward slashes; features.EncodePath makes it UTF-8
	Verdict
	Err error // why there is no verdict
}

// DetectStats counts judgements.
type DetectStats struct{ Images, OOD, Failed int }

// Detect judges all images under opts.Paths and gives each judgement to sink,
// in the order of the paths and, within a folder, of the names. An image that
// cannot be read is a judgement with an error and stops nothing; an idx file that
// cannot is an error.
func Detect(ctx context.Context, opts DetectOptions, sink func(Judgement) error) (_ DetectStats, err error) {
	items, err := listPaths(opts.Paths)
	if err != nil {
		return DetectStats{}, err
	}
	model, err := opts.Detector.openModel(opts.Model, opts.Backbone)
	if err != nil {
		return DetectStats{}, err
	}
	defer func() { err = errors.Join(err, model.Close()) }()

	var stats DetectStats
	inOrder := ordered(func(j Judgement) error {
		stats.Images++
		switch {
		case j.Err != nil:
			stats.Failed++
		case j.OOD:
			stats.OOD++
		}
		return sink(j)
	})
	judge := opts.Detector.judge()
	_, err = model.Extract(ctx, items, opts.Run, func(r extractor.Result) error {
		j := Judgement{Path: r.Item.Path, Err: r.Err}
		if r.Err == nil {
			j.Verdict = judge(r.Features)
		}
		return inOrder(r.Index, j)
	})
	return stats, err
}

// ordered returns a function that takes values in any order and gives them to
// sink in that of their indices, from 0 without gaps.
func ordered[T any](sink func(T) error) func(index int, v T) error {
	next, early := 0, map[int]T{}
	return func(index int, v T) error {
		early[index] = v
		for {
			v, ok := early[next]
			if !ok {
				return nil
			}
			delete(early, next)
			next++
			if err := sink(v); err != nil {
				return err
			}
		}
	}
}

// openModel opens the backbone that the detector's features came from, in the
// folder dir or, where that is "", where it was then.
func (d *Detector) openModel(dir string, opts extractor.ModelOptions) (_ backbone, err error) {
	if d.Source.Model == extractor.PixelsName {
		return d.openPixels(dir)
	}
	if dir == "" {
		if dir = d.Source.Model; dir == "" {
			return nil, errors.New("the detector was trained on features made elsewhere and knows no backbone; name its folder with --model")
		}
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("the detector's backbone: %w; name its folder with --model", err)
		}
	}
	if opts.ApplyEXIF, err = d.Source.appliesEXIF(); err != nil {
		return nil, err
	}
	// Output and pool are as training had them; a set made elsewhere names
	// neither, and the model's defaults hold.
	opts.Output, opts.Pool = d.Source.Output, d.Source.Pool
	model, err := extractor.OpenModel(dir, opts)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, model.Close())
		}
	}()
	if model.Dim() != d.Dim() {
		return nil, fmt.Errorf("model %s gives %d features and the detector reads %d: %w", dir, model.Dim(), d.Dim(), ErrOtherModel)
	}
	if want := d.Source.Fingerprint; want != "" && want != model.Fingerprint() {
		what := "its preprocessing differs"
		if model.SHA256 != d.Source.SHA256 {
			what = "its graph is another"
		}
		return nil, fmt.Errorf("model %s is %w: %s from the one at %s that the detector was trained with", dir, ErrOtherModel, what, d.Source.Model)
	}
	return model, nil
}

// openPixels is openModel for a detector of pixels.
func (d *Detector) openPixels(dir string) (backbone, error) {
	if dir != "" && dir != extractor.PixelsName {
		return nil, fmt.Errorf("model %s is %w: it was trained on pixels and has none", dir, ErrOtherModel)
	}
	treatment := imageTreatment{Spec: new(preprocess.Spec)}
	if err := json.Unmarshal(d.Source.Preprocess, &treatment); err != nil {
		return nil, fmt.Errorf("%w: its preprocessing: %w", ErrDetector, err)
	}
	model, err := extractor.NewPixels(treatment.Spec, treatment.EXIF == exifName(true))
	if err != nil {
		return nil, fmt.Errorf("%w: its preprocessing: %w", ErrDetector, err)
	}
	if model.Dim() != d.Dim() || model.Fingerprint() != d.Source.Fingerprint {
		return nil, fmt.Errorf("the preprocessing of pixels in this version is %w: it was trained with another; train again", ErrOtherModel)
	}
	return model, nil
}

// appliesEXIF tells whether images are turned as their EXIF orientation says.
func (s Source) appliesEXIF() (bool, error) {
	var treatment struct {
		EXIF string `json:"exif"`
	}
	if s.Preprocess != nil {
		if err := json.Unmarshal(s.Preprocess, &treatment); err != nil {
			return false, fmt.Errorf("%w: its preprocessing: %w", ErrDetector, err)
		}
	}
	return treatment.EXIF == exifName(true), nil
}

// listPaths lists image files as they are named, and folders and idx files with
// all the images in them. A path that is absent is an image that cannot be read,
// unless there is nothing else.
func listPaths(paths []string) ([]extractor.Item, error) {
	var items []extractor.Item
	var missing error
	found := false
	for _, p := range paths {
		info, err := os.Stat(p)
		switch {
		case err != nil:
			missing = err
			items = append(items, extractor.Item{Path: filepath.ToSlash(p), File: p, Label: -1})
		case !info.IsDir() && !extractor.IsIDX(p):
			found = true
			items = append(items, extractor.Item{
				Path: filepath.ToSlash(p), File: p, Label: -1,
				Bytes: info.Size(), MTime: info.ModTime().UnixNano(),
			})
		default:
			listing, err := extractor.List(extractor.ListOptions{Root: p})
			if err != nil && !errors.Is(err, extractor.ErrEmptyClass) && !(errors.Is(err, extractor.ErrNoImages) && len(paths) > 1) {
				return nil, err
			}
			if listing == nil {
				continue
			}
			found = true
			folder := filepath.ToSlash(p)
			if !info.IsDir() {
				folder = path.Dir(folder)
			}
			for _, item := range listing.Items {
				item.Path = path.Join(folder, item.Path)
				items = append(items, item)
			}
			for _, e := range listing.Errors {
				items = append(items, extractor.Item{Path: path.Join(folder, e.Path), File: filepath.Join(p, filepath.FromSlash(e.Path)), Label: -1})
			}
		}
	}
	switch {
	case !found && errors.Is(missing, fs.ErrNotExist):
		return nil, fmt.Errorf("nothing to look at: %w", missing)
	case !found && missing != nil:
		return nil, missing
	case len(items) == 0:
		return nil, fmt.Errorf("%w under the given paths", extractor.ErrNoImages)
	}
	return items, nil
}
