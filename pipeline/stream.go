package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"sort"
	"sync"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/options"
	"github.com/mlrbfn/mlrbfn/pipeline/source"
)

// streaming is an extraction of images that come in streams: of tars, Parquet files,
// buckets and lists.
type streaming struct {
	*extraction
	listing *source.Listing
	states  []state // of the listing's units

	mu     sync.Mutex
	starts []start // of the images that were taken, in order
	taken  int
	broken error   // of noting what is done
	lost   []error // of units that the set has, and that could not be read now
}

// start says with which image a unit begins.
type start struct{ image, unit int }

// state is what is known of a unit.
type state struct {
	mine     bool // it belongs to the shard
	known    bool // nothing is to be read
	ended    bool
	through  int // images that have a result
	contents source.Contents
	failed   []features.Failure
}

// holds tells whether a unit belongs to a shard. Files of many images go to the shards in
// turn, so that all have about as many; images as the paths of files do.
func holds(shard features.Shard, u *source.Unit, many int) bool {
	if shard.Count == 0 || !u.Many() {
		return shard.Holds(u.Path)
	}
	return many%shard.Count == shard.Index-1
}

// stream makes the rows that are missing of what opts.Sources name.
func (e *extraction) stream(ctx context.Context, listing *source.Listing) (*streaming, error) {
	s := &streaming{extraction: e, listing: listing, states: make([]state, len(listing.Units))}
	var units []int
	many, expected := 0, int64(0)
	for i := range listing.Units {
		u, state := &listing.Units[i], &s.states[i]
		state.mine = holds(e.opts.Shard, u, many)
		if u.Many() {
			many++
		}
		if !state.mine {
			continue
		}
		if s.recall(i); !state.known {
			units = append(units, i)
			expected += max(u.Size/(100<<10), 1)
		}
	}
	if report := e.opts.Run.Progress; report != nil {
		report(0, 0, -1)
	}
	feed := listing.Stream(ctx, units, source.StreamOptions{
		Skip: func(path string, bytes, mtime int64) bool {
			return !e.opts.Verify && e.w.Has(path, bytes, mtime)
		},
		Ended: func(unit int, c source.Contents) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.states[unit].ended, s.states[unit].contents = true, c
			s.note(unit)
		},
	})
	defer feed.Close()
	run := e.opts.Run
	run.Expected = int(expected)
	run.Feed = func(ctx context.Context) (extractor.Item, error) {
		item, unit, err := feed.Next(ctx)
		if err != nil {
			return item, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if n := len(s.starts); n == 0 || s.starts[n-1].unit != unit {
			s.starts = append(s.starts, start{s.taken, unit})
		}
		s.taken++
		return item, s.broken
	}
	_, err := e.model.Extract(ctx, nil, run, func(r extractor.Result) error {
		return s.result(r)
	})
	if err == nil {
		err = s.broken
	}
	return s, err
}

// recall takes what is known of a unit from the set and from an interrupted run.
func (s *streaming) recall(unit int) {
	u, state := &s.listing.Units[unit], &s.states[unit]
	switch {
	case s.opts.Verify || u.Err != nil:
	case u.Many():
		known, ok := s.w.Source(u.Path, u.Size, u.Version)
		if !ok || u.Version == "" {
			return
		}
		state.known, state.failed = true, known.Failed
		for _, img := range known.Images {
			label := ""
			if img.Label != nil {
				label = *img.Label
			}
			state.contents.Images = append(state.contents.Images, source.Image{Path: img.Path, Label: label, Bytes: img.Bytes, MTime: img.MTime})
		}
	default:
		if size, mtime, ok := s.w.Known(u.Path); ok && (u.Size < 0 || size == u.Size) && (u.MTime == 0 || mtime == u.MTime) {
			state.known = true
			state.contents.Images = []source.Image{{Path: u.Path, Label: u.Label, Bytes: size, MTime: mtime}}
		}
	}
}

// result takes the result of an image.
func (s *streaming) result(r extractor.Result) error {
	s.mu.Lock()
	at := sort.Search(len(s.starts), func(i int) bool { return s.starts[i].image > r.Index }) - 1
	unit := s.starts[at].unit
	s.mu.Unlock()
	if r.Err == nil {
		image := features.Image{Path: r.Item.Path, Bytes: r.Item.Bytes, MTime: r.Item.MTime, SHA256: r.SHA256}
		if err := s.w.Append(image, r.Features, r.Logits); err != nil {
			return err
		}
		s.count(r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Err != nil {
		failure := s.failure(r.Item.Path, r.Err)
		s.states[unit].failed = append(s.states[unit].failed, failure)
		s.extraction.result.Failed = append(s.extraction.result.Failed, failure)
	}
	s.states[unit].through++
	s.note(unit)
	return s.broken
}

// note notes that a unit is done once all its images are through.
func (s *streaming) note(unit int) {
	u, state := &s.listing.Units[unit], &s.states[unit]
	if !state.ended || state.through < state.contents.Given {
		return
	}
	for _, f := range state.contents.Failed {
		failure := s.failure(f.Path, f.Err)
		state.failed = append(state.failed, failure)
		s.extraction.result.Failed = append(s.extraction.result.Failed, failure)
	}
	state.contents.Failed = nil
	if lost := state.contents.Lost; lost != nil && s.w.HasSource(u.Path) {
		s.lost = append(s.lost, fmt.Errorf("%s: %w", u.Path, lost))
	}
	if !u.Many() || !state.contents.Complete || u.Version == "" || s.broken != nil {
		return
	}
	s.broken = s.w.AddSource(s.source(unit))
}

// source returns the record of a unit.
func (s *streaming) source(unit int) features.Source {
	u, state := &s.listing.Units[unit], &s.states[unit]
	images := make([]features.Image, len(state.contents.Images))
	for i, img := range state.contents.Images {
		images[i] = features.Image{Path: img.Path, Bytes: img.Bytes, MTime: img.MTime}
		if img.Label != "" {
			images[i].Label = &state.contents.Images[i].Label
		}
	}
	return features.Source{Path: u.Path, Bytes: u.Size, Version: u.Version, Images: images, Failed: state.failed}
}

// commit makes the set.
func (s *streaming) commit(ctx context.Context) (*ExtractResult, error) {
	if n := len(s.lost); n > 0 && !s.opts.Force {
		return nil, options.Errorf("Force", "it is needed to leave %d files out of which there are images in the set, and that cannot be read now (the first: %w); or run the same command again", n, s.lost[0])
	}
	shard, result := s.opts.Shard, &s.extraction.result
	paths := sha256.New()
	index := map[string]int64{}
	var set features.Contents
	result.Failed, result.Skipped = nil, s.listing.Skipped
	for i := range s.listing.Units {
		if state := &s.states[i]; state.mine {
			result.Failed = append(result.Failed, state.failed...)
			for _, img := range state.contents.Images {
				if img.Label != "" {
					index[img.Label] = 0
				}
			}
		}
	}
	if s.opts.Class != "" {
		index = map[string]int64{s.opts.Class: 0}
	}
	for name := range index {
		set.Classes = append(set.Classes, name)
	}
	features.SortClasses(set.Classes)
	for i, name := range set.Classes {
		index[name] = int64(i)
	}
	lost := make(map[string]bool, len(result.Failed))
	for _, f := range result.Failed {
		lost[f.Path] = true
	}
	rows := 0
	for i := range s.listing.Units {
		u, state := &s.listing.Units[i], &s.states[i]
		fmt.Fprintf(paths, "%s\x00", u.Path)
		if !state.mine {
			continue
		}
		place := int64(0)
		for _, img := range state.contents.Images {
			label := int64(-1)
			if s.opts.Class != "" {
				img.Label = s.opts.Class
			}
			if img.Label != "" {
				label = index[img.Label]
			}
			image := features.Image{Path: img.Path, Bytes: img.Bytes, MTime: img.MTime}
			if label >= 0 {
				image.Label = &set.Classes[label]
			}
			set.Images, set.Labels = append(set.Images, image), append(set.Labels, label)
			if shard.Count > 0 {
				set.Places = append(set.Places, int64(i)<<32|place)
			}
			if !lost[img.Path] {
				rows++
				place++ // as it is where the set tells it
			}
		}
		if state.contents.Lost != nil || u.Many() && !state.known && !state.contents.Complete || !u.Many() && len(state.failed) > 0 {
			result.Unread = true
		}
		if u.Many() && u.Version != "" && (state.known || state.contents.Complete) {
			set.Sources = append(set.Sources, s.source(i))
		}
	}
	set.Failed = result.Failed
	slices.SortStableFunc(result.Failed, compareFailures)
	if shard.Count > 0 {
		set.Part = &features.Part{Shard: shard, Units: len(s.listing.Units), Listing: hex.EncodeToString(paths.Sum(nil))}
	} else if rows == 0 {
		if len(result.Failed) == 0 {
			return nil, fmt.Errorf("%w in %v", extractor.ErrNoImages, s.opts.Sources)
		}
		first := result.Failed[0]
		return nil, fmt.Errorf("no image of %v gave features; the first: %s: %s", s.opts.Sources, first.Path, first.Error)
	}
	return s.finish(ctx, set)
}
