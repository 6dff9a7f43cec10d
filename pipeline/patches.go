package pipeline

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// This file fits the model of patches before an extraction, on a twentieth of the images. Which
// they are follows from the names of all, and never from what is in them: images that are in
// no fit stay exchangeable with new ones, and only these calibrate a detector.

// The images of a fit.
const (
	patchShare  = 20  // one of so many images
	leastFitted = 16  // but so many, if there are four times as many
	mostFitted  = 256 // at most, or one of each class
)

// fitPatches puts a model of patches in the place of the names of nodes, or of the feature set
// that has one. listing is nil for images that cannot be named before they are read.
func (opts *ExtractOptions) fitPatches(ctx context.Context, listing *images.Listing) (err error) {
	nodes := opts.PatchNodes
	if len(nodes) == 0 || opts.Patches != nil || opts.Detector != nil {
		return nil
	}
	p, err := patchesOf(ctx, nodes[0])
	if errors.Is(err, features.ErrLayers) {
		return options.Errorf("PatchNodes", "%w", err)
	}
	if err == nil && p == nil && !opts.Force { // so that images can be added
		if p, err = patchesOf(ctx, opts.Out); errors.Is(err, features.ErrLayers) {
			err = nil
		}
		if p != nil && !slices.Equal(nodes, []string{extractor.AutoLayers}) && !slices.Equal(nodes, p.Names()) {
			p = nil
		}
	}
	if err == nil && p == nil {
		if listing == nil || opts.Shard != (features.Shard{}) {
			return options.Errorf("PatchNodes", "the model of patches is fitted on a folder of images, all in one run: extract one with some images of each class first, and name that feature set here")
		}
		p, err = opts.fitPatchesOn(ctx, listing)
	}
	opts.PatchNodes, opts.Patches = nil, p
	return err
}

// patchesOf returns the model of patches of a feature set; nil where there is no set. The error
// wraps [features.ErrLayers] where the set has none.
func patchesOf(ctx context.Context, dir string) (_ *extractor.Patches, err error) {
	if dir == "" {
		return nil, nil
	}
	s, err := features.Open(ctx, dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, features.ErrNotSet) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	file, err := s.Patches()
	if err == nil && file == nil {
		err = fmt.Errorf("features %s %w of patches: extract the images again with ‹PatchNodes auto›", dir, features.ErrLayers)
	}
	if err != nil {
		return nil, err
	}
	return extractor.ReadPatches(file)
}

func (opts *ExtractOptions) fitPatchesOn(ctx context.Context, listing *images.Listing) (_ *extractor.Patches, err error) {
	backbone := opts.Options
	backbone.Layers = nil
	model, err := extractor.OpenModel(ctx, opts.Model, backbone)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	some := fittedOn(listing.Items)
	if len(some) == 0 {
		return nil, options.Errorf("PatchNodes", "there are %d images, too few for a model of patches", len(listing.Items))
	}
	p, err := model.FitPatches(ctx, some, opts.Options)
	if err != nil {
		return nil, fmt.Errorf("model of patches: %w", err)
	}
	return p, nil
}

// fittedOn chooses images for a fit, about as large a share of each class, by a hash of their
// names.
func fittedOn(items []images.Item) (some []images.Item) {
	n := len(items)
	share := float64(min(max(n/patchShare, min(leastFitted, n/4)), mostFitted)) / float64(max(n, 1))
	byClass := map[int][]images.Item{}
	for _, item := range items {
		byClass[item.Label] = append(byClass[item.Label], item)
	}
	place := func(item images.Item) string {
		sum := sha256.Sum256([]byte(item.Path))
		return string(sum[:])
	}
	for _, of := range byClass {
		slices.SortFunc(of, func(a, b images.Item) int { return cmp.Compare(place(a), place(b)) })
		some = append(some, of[:min(int(math.Ceil(share*float64(len(of)))), len(of)/2)]...)
	}
	slices.SortFunc(some, func(a, b images.Item) int { return cmp.Compare(a.Path, b.Path) })
	return some
}
