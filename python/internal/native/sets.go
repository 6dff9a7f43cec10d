package native

import (
	"errors"
	"fmt"
	"math"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// failed is an image that could not be read.
type failed struct {
	Path  path   `json:"path"`
	Error string `json:"error"`
}

type extractArguments struct {
	Images   path             `json:"images"`
	Model    path             `json:"model"`
	Out      path             `json:"out"`
	Settings command.Settings `json:"settings"`
}

func extract(c *call, a extractArguments, _ []Buffer) (any, error) {
	return c.extract(a.Settings, func(opts *pipeline.ExtractOptions) error {
		opts.Images, opts.Model, opts.Out = a.Images.String(), a.Model.String(), a.Out.String()
		return nil
	})
}

type embedArguments struct {
	Images   []picture        `json:"images"`
	Root     path             `json:"root"`   // of those that are files
	Labels   []int            `json:"labels"` // of images: −1 for none
	Classes  []string         `json:"classes"`
	Model    path             `json:"model"`
	Out      path             `json:"out"`
	Settings command.Settings `json:"settings"`
}

// embed is extract for images wherever they are: files below a folder, and what buffers have.
func embed(c *call, a embedArguments, buffers []Buffer) (any, error) {
	return c.extract(a.Settings, func(opts *pipeline.ExtractOptions) error {
		listing := &images.Listing{Root: a.Root.String(), Classes: a.Classes}
		for i, p := range a.Images {
			item, err := p.item(listing.Root, fmt.Sprintf("%06d", i), buffers)
			if err != nil {
				return err
			}
			item.Label = a.Labels[i]
			listing.Items = append(listing.Items, item)
		}
		opts.Images, opts.Listing, opts.Model, opts.Out = listing.Root, listing, a.Model.String(), a.Out.String()
		opts.Verify = opts.Verify || len(buffers) > 0 // images in memory have no time, and names that are numbers
		return nil
	})
}

// extract extracts with settings, and with what fill adds to them.
func (c *call) extract(settings command.Settings, fill func(*pipeline.ExtractOptions) error) (any, error) {
	opts, err := command.ExtractSettings(settings)
	if err != nil {
		return nil, err
	}
	if err := fill(&opts); err != nil {
		return nil, err
	}
	opts.Drifted, opts.Kept = c.warn, &models
	opts.Progress = func(done, _, total int) { c.progress("images", done, total, "") }
	r, err := pipeline.Extract(c.ctx, opts)
	if err != nil {
		return nil, err
	}
	for _, note := range command.ExtractionNotes(r, opts.Options) {
		c.warn(note)
	}
	lost := []failed{}
	for _, f := range r.Failed {
		lost = append(lost, failed{path(f.Path), f.Error})
	}
	return map[string]any{"new": r.New, "reused": r.Reused, "skipped": r.Skipped, "failed": lost}, nil
}

// describeSet says what is in it. Its arrays are the caller's to
// map.
func describeSet(set *features.Set, _ []Buffer) (any, error) {
	_, logits := set.Logits()
	return map[string]any{
		"n": set.N, "d": set.D, "logits": logits, "classes": append([]string{}, set.Classes...), "root": path(set.Root), "model": path(set.Model),
		"fingerprint": set.Space(), "tool": set.Tool,
	}, nil
}

// withSet makes a function of what is to be done with a feature set.
func withSet(do func(set *features.Set, buffers []Buffer) (any, error)) function {
	return of(func(c *call, a struct {
		Folder path `json:"folder"`
	}, buffers []Buffer) (_ any, err error) {
		set, err := features.Open(c.ctx, a.Folder.String())
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, set.Close()) }()
		return do(set, buffers)
	})
}

// readFeatures copies the arrays of a feature set into buffers: features, labels and,
// if there are any, logits.
func readFeatures(set *features.Set, buffers []Buffer) (any, error) {
	logits, _ := set.Logits()
	return nil, errors.Join(fill(buffers, 0, set.Features()), fill(buffers, 1, set.Labels()), fill(buffers, 2, logits))
}

// paths returns the paths of the images of a feature set, and those that could not be read.
func paths(set *features.Set, _ []Buffer) (any, error) {
	images, err := set.Images()
	if err != nil {
		return nil, err
	}
	lost, err := set.Errors()
	if err != nil {
		return nil, err
	}
	all, errs := make([]path, len(images)), []failed{}
	for i, image := range images {
		all[i] = path(image.Path)
	}
	for _, f := range lost {
		errs = append(errs, failed{path(f.Path), f.Error})
	}
	return map[string]any{"paths": all, "errors": errs}, nil
}

type measureArguments struct {
	Fingerprints [2]string `json:"fingerprints"` // of the rows that have the scores; "" where nobody knows it
}

// measure compares the scores of in-distribution and of out-of-distribution images.
func measure(_ *call, a measureArguments, buffers []Buffer) (any, error) {
	if !features.Comparable(a.Fingerprints[0], a.Fingerprints[1]) {
		return nil, fmt.Errorf("features of known and of new images cannot be compared: one was %w than the other", features.ErrFingerprint)
	}
	id, err := view[float64](buffers, 0)
	if err != nil {
		return nil, err
	}
	ood, err := view[float64](buffers, 1)
	if err != nil {
		return nil, err
	}
	for _, scores := range [][]float64{id, ood} {
		if len(scores) == 0 {
			return nil, command.Usagef("there are no scores to compare")
		}
		for _, v := range scores {
			if math.IsNaN(v) {
				return nil, command.Usagef("a score is NaN")
			}
		}
	}
	m := metrics.Evaluate(id, ood)
	return map[string]float64{"auroc": m.AUROC, "aupr_out": m.AUPROut, "aupr_in": m.AUPRIn, "fpr95": m.FPR95, "fpr95_id": m.FPR95ID}, nil
}
