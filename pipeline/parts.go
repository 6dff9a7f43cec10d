package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/internal/parts"
)

// extractPart is Extract for a shard of a set of parts. The manifest of the set is
// written by whoever finishes the last shard.
func extractPart(ctx context.Context, opts ExtractOptions) (result *ExtractResult, err error) {
	out, shard := opts.Out, opts.Shard
	o := features.Options{Force: opts.Force, AllowDriftedFeatures: opts.AllowDriftedFeatures, Drifted: opts.Drifted}
	if shard.Count == 0 {
		return nil, options.Errorf("Parts", "a part is a shard (Shard)")
	}
	if err := features.PreparePart(out, shard, o); err != nil {
		return nil, err
	}
	opts.Parts, opts.Out = false, features.PartDir(out, shard)
	recorder := parts.StartRecorder(opts.Out)
	result, err = Extract(ctx, opts.record(recorder))
	if recorder.End(err); err != nil {
		return nil, err
	}
	result.Unfinished, err = features.CommitParts(out, shard.Count, o)
	return result, err
}

// VerdictParts says where [DetectParts] writes verdicts.
type VerdictParts struct {
	Out    string         // folder of the parts
	Shard  features.Shard // which part of the images to judge; zero for all
	Format string         // JSONL or Parquet
	Force  bool           // replace a part of another detector
	// Speculate lets several runs make the same part at the same time. The first that
	// finishes counts.
	Speculate bool
	Detector  string // the detector's file, to name it to people
	Judge     string // identifies the detector and all options that verdicts depend on
	// Line gives the line of JSON for a judgement. With Thumbnails, of Parquet, it is that of a
	// [VerdictLine] with a picture and perhaps a place, and is called for several at once.
	Line       func(Judgement) ([]byte, error)
	Thumbnails bool
}

// DetectParts judges the images of a shard, as [Detect] does, and writes the verdicts
// into a folder. A run that is killed goes on where it ended, and a finished part is
// kept. Detect's SetAside and More do not go with it.
func DetectParts(ctx context.Context, opts DetectOptions, to VerdictParts) (*VerdictRecord, error) {
	if opts.SetAside != "" || opts.More != nil {
		return nil, options.Errorf("Out", "verdicts in parts are on images that stay where they are, and all are named")
	}
	// A list is one here, unlike in Detect, which is given what a shell finds in folders.
	if slices.ContainsFunc(opts.Paths, func(path string) bool { return images.AreSources(true, path) }) {
		return detectParts(ctx, opts, to, sourceImages)
	}
	return detectParts(ctx, opts, to, fileImages)
}

// partImages are the images of a shard.
type partImages struct {
	images  int    // −1 if that is not known
	listing string // identifies them
	// lost, where set, is why some of them cannot be read now, for a reason that may pass,
	// files that were not read before either left out; nil if there are none.
	lost func(before []string) error
	// again, where set, tells whether a file that a finished part lacks may be read now.
	again func(file string) bool
	// known is asked for each path in an unfinished part whether the next image has it.
	known func(path string) bool
	// rest returns the images without a line. Their stream calls unread as
	// the writer's Unread is called.
	rest func(ctx context.Context, recorder *parts.Recorder, unread func(path string)) (in images.Stream, end func())
}

// fileImages are those of files and folders.
func fileImages(ctx context.Context, opts DetectOptions, shard features.Shard) (p partImages, err error) {
	items, err := listPaths(ctx, opts.Paths, "", true)
	if err != nil {
		return p, err
	}
	items = slices.DeleteFunc(items, func(item images.Item) bool { return !shard.Holds(pathOf(item)) })
	listing := sha256.New()
	for _, item := range items {
		fmt.Fprintf(listing, "%s\x00%d\x00%d\x00", pathOf(item), item.Bytes, item.MTime)
	}
	p.images, p.listing = len(items), hex.EncodeToString(listing.Sum(nil))
	next := 0
	p.known = func(path string) bool {
		if next == len(items) || pathOf(items[next]) != path {
			return false
		}
		next++
		return true
	}
	p.rest = func(context.Context, *parts.Recorder, func(string)) (images.Stream, func()) {
		return images.Of(items[next:]...), func() {}
	}
	return p, nil
}

// sourceImages are those of tars, tables and buckets. What a tar holds is known only when
// it is read: one whose last lines may be missing is read again, and the images that have
// a line are passed over.
func sourceImages(ctx context.Context, opts DetectOptions, shard features.Shard) (p partImages, err error) {
	found, err := images.ListSources(ctx, opts.Paths...)
	if err != nil {
		return p, err
	}
	s := &sourcePart{found: found}
	for i := range unitsOf(shard, found) {
		s.mine = append(s.mine, i)
	}
	p.images, p.listing, p.lost, p.again, p.known, p.rest = -1, s.listing(), s.lost, s.again, s.known, s.rest
	return p, nil
}

// sourcePart is the part of the units of sources that a shard has.
type sourcePart struct {
	found *images.Sources
	mine  []int    // the units of the shard
	at    int      // the unit of the last line, an index into mine
	lines []string // the paths of that unit that have one
}

// listing identifies the units.
func (s *sourcePart) listing() string {
	listing := sha256.New()
	for _, i := range s.mine {
		u := &s.found.Units[i]
		fmt.Fprintf(listing, "%s\x00%d\x00%s\x00", u.Name(), u.Size, u.Version)
		if u.Version == "" && u.MTime != 0 { // an image in a folder
			fmt.Fprintf(listing, "%d\x00", u.MTime)
		}
	}
	return hex.EncodeToString(listing.Sum(nil))
}

func (s *sourcePart) lost(before []string) error {
	for _, i := range s.mine {
		if u := &s.found.Units[i]; u.Err() != nil && !errors.Is(u.Err(), fs.ErrNotExist) && !slices.Contains(before, u.Name()) {
			return u.Err()
		}
	}
	return nil
}

func (s *sourcePart) again(file string) bool {
	return !slices.ContainsFunc(s.mine, func(i int) bool { return s.found.Units[i].Err() != nil && s.found.Units[i].Name() == file })
}

func (s *sourcePart) known(path string) bool {
	for next := s.at; next < len(s.mine); next++ {
		name := s.found.Units[s.mine[next]].Name()
		if path != name && !strings.HasPrefix(path, name+"#") {
			continue
		}
		if next != s.at {
			s.at, s.lines = next, nil
		}
		s.lines = append(s.lines, path)
		return true
	}
	return false
}

func (s *sourcePart) rest(ctx context.Context, recorder *parts.Recorder, unread func(string)) (images.Stream, func()) {
	before := int64(0)
	for _, unit := range s.mine[:s.at] {
		before += max(s.found.Units[unit].Size, 1)
	}
	reading := s.found.Stream(ctx, s.mine[s.at:], images.StreamOptions{Failures: true, Before: before, Ended: func(unit int, c images.Contents) {
		if u := &s.found.Units[unit]; !c.Complete || u.Many() && u.Version == "" {
			unread(u.Name())
		}
	}})
	return &unwritten{reading, s, recorder, unread}, reading.Close
}

// unwritten gives the images of a part of sources that have no line.
type unwritten struct {
	*images.Reading
	part     *sourcePart
	recorder *parts.Recorder
	unread   func(path string)
}

func (u *unwritten) Next(ctx context.Context) (images.Item, error) {
	s := u.part
	for {
		item, err := u.Reading.Next(ctx)
		if u.recorder.Share(u.Share()); len(s.lines) == 0 || err != nil && err != io.EOF {
			return item, err
		}
		at, place := s.mine[s.at], -1
		same := err == nil && int(item.Unit) == at
		if same {
			place = slices.Index(s.lines, pathOf(item))
		}
		if place != 0 { // it was not read to its end then, or is another now
			u.unread(s.found.Units[at].Name())
		}
		if !same {
			s.lines = nil
		}
		if place < 0 {
			return item, err
		}
		if place == 0 {
			s.lines = s.lines[1:]
		} else {
			s.lines = slices.Delete(s.lines, place, place+1)
		}
	}
}

func detectParts(ctx context.Context, opts DetectOptions, to VerdictParts, list func(context.Context, DetectOptions, features.Shard) (partImages, error)) (_ *VerdictRecord, err error) {
	images, err := list(ctx, opts, to.Shard)
	if err != nil {
		return nil, err
	}
	if to.Shard.Count == 0 {
		to.Shard = features.Shard{Index: 1, Count: 1}
	}
	work := Work{Judge: to.Judge, Images: images.images, Listing: images.listing, Format: to.Format, Detector: to.Detector, Thumbnails: to.Thumbnails}
	old, err := readRecord(parts.Path(to.Out, to.Shard) + ".json")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := images.mayReplace(old, to); err != nil {
		return nil, err
	}
	recorder := parts.StartRecorder(parts.Path(to.Out, to.Shard))
	record, err := judgePart(ctx, opts, to, images, work, recorder)
	if recorder.End(err); err != nil {
		return nil, err
	}
	return record, nil
}

// mayReplace refuses to replace a finished part while a store does not answer.
func (p *partImages) mayReplace(old *VerdictRecord, to VerdictParts) error {
	if old == nil || p.lost == nil || to.Force {
		return nil
	}
	if lost := p.lost(old.Unread); lost != nil {
		return options.Errorf("Force", "it is needed to replace the finished shard %s in %s: %w", to.Shard, to.Out, lost)
	}
	return nil
}

// judgePart makes a part in the folder to.Out.
func judgePart(ctx context.Context, opts DetectOptions, to VerdictParts, images partImages, work Work, recorder *parts.Recorder) (_ *VerdictRecord, err error) {
	w, err := createVerdicts(to, work, images.known, images.again)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	known := w.Len()
	if !w.Finished() && known != images.images {
		recorder.Update(func(s *parts.State) { s.Total, s.Known, s.Done = images.images, known, known })
		report := opts.Progress
		opts.Progress = func(done, failed, total int) {
			if report != nil {
				report(known+done, failed, images.images)
			}
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		in, end := images.rest(ctx, recorder, func(path string) {
			if err := w.Unread(path); err != nil {
				cancel(err)
			}
		})
		defer end()
		var lines []*parallel.Task[func() error]
		write := func(but int) error {
			for ; len(lines) > but; lines = lines[1:] {
				if err := lines[0].Wait()(); err != nil {
					return err
				}
			}
			return nil
		}
		atOnce := 0
		if to.Thumbnails {
			atOnce = runtime.GOMAXPROCS(0)
		}
		_, err := detect(ctx, opts, in, func(j Judgement) error {
			lines = append(lines, parallel.Start(func() func() error {
				line, err := to.Line(j)
				return func() error {
					if err != nil {
						return err
					}
					return w.Append(line)
				}
			}))
			err := write(atOnce)
			recorder.Update(func(s *parts.State) {
				s.Done++
				if j.Err != nil {
					s.Failed[parts.KindOf(j.Err.Error(), j.Path)]++
				}
			})
			return err
		})
		if err == nil {
			err = write(0)
		}
		if cause := context.Cause(ctx); errors.Is(err, context.Canceled) && cause != nil {
			err = cause
		}
		if err != nil {
			return nil, err
		}
	}
	return w.Commit()
}

// record returns the options of an extraction that records how far it has come.
func (opts ExtractOptions) record(recorder *parts.Recorder) ExtractOptions {
	opts.recorder = recorder
	report := opts.Progress
	opts.Progress = func(done, failed, total int) {
		if report != nil {
			report(done, failed, total)
		}
		recorder.Update(func(s *parts.State) {
			s.Done = s.Known + done
			if s.Total = total; total >= 0 {
				s.Total += s.Known
			}
		})
	}
	advise := opts.Advise
	opts.Advise = func(err error) error {
		if advise != nil {
			err = advise(err)
		}
		recorder.Update(func(s *parts.State) { s.Failed[parts.KindOf(err.Error(), "")]++ })
		return err
	}
	return opts
}
