package pipeline

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// streaming is an extraction of images of tars, Parquet files, buckets and lists, and the
// stream of these.
type streaming struct {
	*extraction
	*images.Reading
	listing *images.Sources
	states  []*state // of the listing's units; nil of those of other shards

	mu     sync.Mutex
	broken error   // of noting what is done
	lost   []error // of units that the set has, and that could not be read now
}

// state is what is known of a unit.
type state struct {
	known    bool // nothing is to be read
	noted    bool // the set's writer keeps what contents would have
	ended    bool
	through  int // images that have a result
	rows     int // images that have a row, if it is noted
	contents images.Contents
	failed   []features.Failure
}

// unitsOf gives the units of a shard with their numbers. Files of many images go to the
// shards in turn, so that all have about as many; images as the paths of files do.
func unitsOf(shard features.Shard, listing *images.Sources) iter.Seq2[int, *images.Unit] {
	return func(yield func(int, *images.Unit) bool) {
		many := 0
		for i := range listing.Units {
			u := &listing.Units[i]
			mine := shard.Holds(u.Path)
			if u.Many() && shard.Count > 0 {
				mine = many%shard.Count == shard.Index-1
				many++
			}
			if mine && !yield(i, u) {
				return
			}
		}
	}
}

// stream makes the rows that are missing of what opts.Sources name.
func (e *extraction) stream(ctx context.Context, listing *images.Sources) (*streaming, error) {
	s := &streaming{extraction: e, listing: listing, states: make([]*state, len(listing.Units))}
	var units []int
	before := int64(0)
	for i, u := range unitsOf(e.opts.Shard, listing) {
		state := new(state)
		s.states[i] = state
		if err := cmp.Or(ctx.Err(), s.recall(i)); err != nil {
			return nil, err
		}
		if state.known {
			before += max(u.Size, 1)
			e.opts.recorder.Know(state.rows + len(state.contents.Images))
		} else {
			units = append(units, i)
		}
	}
	if report := e.opts.Progress; report != nil {
		report(0, 0, -1)
	}
	s.Reading = listing.Stream(ctx, units, images.StreamOptions{
		Before: before,
		Skip: func(path string, bytes, mtime int64) bool {
			return !e.opts.Verify && e.has(path, bytes, mtime)
		},
		Ended: func(unit int, c images.Contents) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.states[unit].ended, s.states[unit].contents = true, c
			s.note(unit)
		},
	})
	defer s.Close()
	_, err := e.model.Extract(ctx, s, e.opts.Options, s.take)
	if err == nil {
		err = s.broken
	}
	e.result.Waited = s.Waited()
	return s, err
}

func (s *streaming) Next(ctx context.Context) (images.Item, error) {
	item, err := s.Reading.Next(ctx)
	if s.opts.recorder.Share(s.Share()); err != nil {
		return item, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return item, s.broken
}

// finished returns the result of an extraction of tars and tables if the set is there
// already and they have not changed, else nil. It takes no longer for more images than it
// takes to read their names and labels.
func finished(ctx context.Context, opts ExtractOptions, model extractor.Backbone, src detector.Source, listing *images.Sources) (*ExtractResult, error) {
	// A class for all images is no part of what a set tells.
	if opts.Verify || opts.Force || opts.Class != "" {
		return nil, nil
	}
	for i := range listing.Units {
		if u := &listing.Units[i]; !u.Many() || u.Err() != nil || u.Version == "" {
			return nil, nil
		}
	}
	var mine []features.Source
	for _, u := range unitsOf(opts.Shard, listing) {
		mine = append(mine, features.Source{Path: u.Path, Bytes: u.Size, Version: u.Version})
	}
	var part *features.Part
	if opts.Shard.Count > 0 {
		part = partOf(opts.Shard, listing)
	}
	h, quantised, err := header(ctx, opts, model, src, listing.Root)
	if err != nil {
		return nil, err
	}
	set, err := features.Finished(opts.Out, h, mine, part)
	if set == nil || err != nil {
		return nil, err
	}
	if len(set.Classes) == 1 { // perhaps such a class
		return nil, set.Close()
	}
	result := &ExtractResult{Meta: set.Meta, Reused: set.N, Skipped: listing.Skipped, Quantised: quantised, Classes: []ClassCount{}}
	for _, name := range set.Classes {
		result.Classes = append(result.Classes, ClassCount{Name: name})
	}
	for _, label := range set.Labels() {
		if label >= 0 {
			result.Classes[label].Images++
		}
	}
	result.Failed, err = set.Errors()
	if err := errors.Join(err, set.Close()); err != nil {
		return nil, err
	}
	return result, nil
}

// partOf describes the whole that a shard is part of.
func partOf(shard features.Shard, listing *images.Sources) *features.Part {
	paths := sha256.New()
	for i := range listing.Units {
		fmt.Fprintf(paths, "%s\x00", listing.Units[i].Path)
	}
	return &features.Part{Shard: shard, Units: len(listing.Units), Listing: hex.EncodeToString(paths.Sum(nil))}
}

// recall takes what is known of a unit from the set and from an interrupted run.
func (s *streaming) recall(unit int) (err error) {
	u, state := &s.listing.Units[unit], s.states[unit]
	switch {
	case s.opts.Verify || u.Err() != nil || u.Many() && u.Version == "":
	case u.Many():
		state.rows, state.failed, state.known, err = s.w.Source(u.Path, u.Size, u.Version)
		state.noted = state.known
	default:
		if size, mtime, ok := s.w.Known(u.Path); ok && (u.Size < 0 || size == u.Size) && (u.MTime == 0 || mtime == u.MTime) {
			state.known = true
			state.contents.Images = []images.Member{{Path: u.Path, Label: u.Label, Bytes: size, MTime: mtime}}
		}
	}
	return err
}

// take takes the result of an image.
func (s *streaming) take(r extractor.Row) error {
	if r.Err == nil {
		if err := s.store(r); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.states[r.Item.Unit]
	if r.Err != nil {
		state.failed = append(state.failed, s.failure(r.Item.Path, r.Err))
	}
	state.through++
	s.note(int(r.Item.Unit))
	return s.broken
}

// note notes that a unit is done once all its images are through.
func (s *streaming) note(unit int) {
	u, state := &s.listing.Units[unit], s.states[unit]
	if !state.ended || state.through < state.contents.Given {
		return
	}
	for _, f := range state.contents.Failed {
		state.failed = append(state.failed, s.failure(f.Path, f.Err))
	}
	state.contents.Failed = nil
	if lost := state.contents.Lost; lost != nil && s.w.HasSource(u.Path) {
		s.lost = append(s.lost, fmt.Errorf("%s: %w", u.Path, lost))
	}
	if !u.Many() || !state.contents.Complete || u.Version == "" || s.broken != nil {
		return
	}
	s.broken = s.w.AddSource(features.Source{Path: u.Path, Bytes: u.Size, Version: u.Version, Images: setImages(state.contents.Images), Failed: state.failed})
	state.rows, state.noted, state.contents.Images = rows(state), true, nil
}

// setImages returns images as a set has them.
func setImages(from []images.Member) []features.Image {
	to := make([]features.Image, len(from))
	for i, img := range from {
		to[i] = features.Image{Path: img.Path, Bytes: img.Bytes, MTime: img.MTime}
		if img.Label != "" {
			to[i].Label = &from[i].Label
		}
	}
	return to
}

// rows counts the images of a unit that have rows.
func rows(state *state) int {
	if state.noted {
		return state.rows
	}
	lost := make(map[string]bool, len(state.failed))
	for _, f := range state.failed {
		lost[f.Path] = true
	}
	n := 0
	for _, img := range state.contents.Images {
		if !lost[img.Path] {
			n++
		}
	}
	return n
}

// commit makes the set.
func (s *streaming) commit(ctx context.Context) (*ExtractResult, error) {
	if n := len(s.lost); n > 0 && !s.opts.Force {
		return nil, options.Errorf("Force", "it is needed to leave %d files out of which there are images in the set, and that cannot be read now (the first: %w); or run the same command again", n, s.lost[0])
	}
	shard, result := s.opts.Shard, &s.result
	set := features.Contents{Class: s.opts.Class}
	result.Failed, result.Skipped = nil, s.listing.Skipped
	n := 0
	for i := range s.listing.Units {
		u, state := &s.listing.Units[i], s.states[i]
		if state == nil {
			continue
		}
		result.Failed = append(result.Failed, state.failed...)
		n += rows(state)
		unit := features.Unit{Place: int64(i) << 32}
		if state.noted {
			unit.Source = u.Path
		} else {
			unit.Images = setImages(state.contents.Images)
		}
		set.Units = append(set.Units, unit)
		if state.contents.Lost != nil || u.Many() && !state.known && !state.contents.Complete || !u.Many() && len(state.failed) > 0 {
			result.Unread = true
		}
	}
	set.Failed = result.Failed
	slices.SortStableFunc(result.Failed, compareFailures)
	if shard.Count > 0 {
		set.Part = partOf(shard, s.listing)
	} else if n == 0 {
		if len(result.Failed) == 0 {
			return nil, fmt.Errorf("%w in %v", images.ErrNoImages, s.opts.Sources)
		}
		first := result.Failed[0]
		return nil, fmt.Errorf("no image of %v gave features; the first: %s: %s", s.opts.Sources, first.Path, first.Error)
	}
	return s.finish(ctx, set)
}
