package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/gofrs/flock"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/progress"
	"github.com/mlrbfn/mlrbfn/options"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/source"
	"github.com/mlrbfn/mlrbfn/pipeline/verdicts"
)

// extractPart is Extract for a shard of a set of parts. The manifest of the set is
// written by whoever finishes the last shard.
func extractPart(ctx context.Context, opts ExtractOptions) (*ExtractResult, error) {
	set, o := opts.Out, features.Options{
		Force: opts.Force, AllowDriftedFeatures: opts.Backbone.AllowDriftedFeatures, Drifted: opts.Backbone.Drifted,
	}
	if opts.Shard.Count == 0 {
		return nil, options.Errorf("Parts", "a part is a shard (Shard)")
	}
	if err := features.PreparePart(set, opts.Shard, o); err != nil {
		return nil, err
	}
	opts.Out, opts.Parts = features.PartDir(set, opts.Shard), false
	ended := recordProgress(&opts, opts.Out+".progress")
	result, err := Extract(ctx, opts)
	ended(err)
	if err != nil {
		return nil, err
	}
	result.Unfinished, err = features.CommitParts(set, opts.Shard.Count, o)
	return result, err
}

// extractToBucket is Extract for a shard of a set of parts in a bucket. The part is made
// on the disk, sent as a whole, and removed from the disk. A finished part is kept if all
// that it was made of is the same; otherwise it is copied to the disk first, so that only
// what is new is extracted.
func extractToBucket(ctx context.Context, opts ExtractOptions) (_ *ExtractResult, err error) {
	if opts.Shard.Count == 0 {
		return nil, options.Errorf("Parts", "a part is a shard (Shard)")
	}
	if opts.Cache == "" {
		return nil, options.Errorf("Cache", "it is needed to write to %s: the folder on the disk in which a part is made before it is sent", opts.Out)
	}
	set, err := features.OpenBucket(ctx, opts.Out)
	if err != nil {
		return nil, err
	}
	shard, o := opts.Shard, features.Options{Force: opts.Force, AllowDriftedFeatures: opts.Backbone.AllowDriftedFeatures, Drifted: opts.Backbone.Drifted}
	before, err := set.Prepare(ctx, shard, o)
	if err != nil {
		return nil, err
	}
	place, release, err := placeFor(set.String(), opts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()
	made := ""
	opts.Out, opts.Parts, opts.Speculate = features.PartDir(place, shard), false, false
	opts.begin = func(ctx context.Context, inputs string) (*ExtractResult, error) {
		made = inputs
		switch {
		case before == nil || opts.Force:
			return nil, nil
		case before.Inputs == "" || before.Inputs != inputs || opts.Verify:
			if _, err := os.Stat(opts.Out); err == nil {
				return nil, nil // it was made, and not sent
			}
			err := set.Fetch(ctx, before, opts.Out)
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, features.ErrDamaged) {
				err = nil // it is made again
			}
			return nil, err
		}
		meta, failed, err := set.Look(ctx, shard)
		if err != nil {
			return nil, err
		}
		result := &ExtractResult{Meta: meta, Reused: meta.N, Failed: failed, Classes: []ClassCount{}}
		for i, name := range meta.Classes {
			n := 0
			if i < len(before.Images) {
				n = before.Images[i]
			}
			result.Classes = append(result.Classes, ClassCount{name, n})
		}
		return result, nil
	}
	ended := recordProgress(&opts, opts.Out+".progress")
	result, err := Extract(ctx, opts)
	ended(err)
	if err != nil {
		return nil, err
	}
	if _, statErr := os.Stat(opts.Out); statErr == nil && (before == nil || result.Meta.SHA256 != before.SHA256 || made != before.Inputs) {
		images := make([]int, len(result.Classes))
		for i, class := range result.Classes {
			images[i] = class.Images
		}
		if result.Unread {
			made = ""
		}
		if _, err := set.Send(ctx, shard, opts.Out, made, images); err != nil {
			return nil, fmt.Errorf("send a part: %w", err)
		}
	}
	if result.Unfinished, err = set.Commit(ctx, shard.Count, o); err != nil {
		return nil, err
	}
	return result, os.RemoveAll(place)
}

// placeFor returns a folder in opts.Cache for the work on a part of the set at a URL, and
// locks it.
func placeFor(url string, opts ExtractOptions) (place string, release func() error, err error) {
	sum := sha256.Sum256([]byte(url))
	if err := os.MkdirAll(opts.Cache, 0o777); err != nil {
		return "", nil, err
	}
	most := 1 // runs at a time
	if opts.Speculate {
		most = 8
	}
	for n := range most {
		place = filepath.Join(opts.Cache, fmt.Sprintf("%s-%d-of-%d", hex.EncodeToString(sum[:8]), opts.Shard.Index, opts.Shard.Count))
		if n > 0 {
			place += fmt.Sprint("-", n+1)
		}
		lock := flock.New(place + ".lock")
		ok, err := lock.TryLock()
		if err != nil {
			return "", nil, err
		}
		if ok {
			return place, lock.Close, os.MkdirAll(place, 0o777)
		}
	}
	return "", nil, fmt.Errorf("shard %s of %s: %w", opts.Shard, url, features.ErrLocked)
}

// inputsOf identifies all that a set is made of.
func inputsOf(opts ExtractOptions, source detector.Source, root string, items []extractor.Item) string {
	hash := optionsHash(opts, source, root)
	for _, item := range items {
		// Of all shards, as a part also tells of the whole.
		fmt.Fprintf(hash, "%s\x00%d\x00", item.Path, item.Label)
		if opts.Shard.Holds(item.Path) {
			fmt.Fprintf(hash, "%d\x00%d\x00", item.Bytes, item.MTime)
		}
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// inputsOfSources is inputsOf for opts.Sources; "" if something cannot be read now, or if
// nobody says whether a tar or table has changed.
func inputsOfSources(opts ExtractOptions, source detector.Source, listing *source.Listing) string {
	hash := optionsHash(opts, source, listing.Root)
	many := 0
	for i := range listing.Units {
		u := &listing.Units[i]
		fmt.Fprintf(hash, "%s\x00", u.Path)
		mine := holds(opts.Shard, u, many)
		if u.Many() {
			many++
		}
		if !mine {
			continue
		}
		if u.Err != nil || u.Many() && u.Version == "" {
			return ""
		}
		fmt.Fprintf(hash, "%s\x00%d\x00%s\x00%d\x00", u.Label, u.Size, u.Version, u.MTime)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// optionsHash begins a hash with what options change in a set.
func optionsHash(opts ExtractOptions, source detector.Source, root string) hash.Hash {
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\x00%s\x00%s\x00%s\x00%v\x00%s\x00%d\x00%v\x00", source.Fingerprint, source.SHA256, root, opts.DType, opts.Parquet, opts.Class,
		opts.Run.MaxPixels, opts.Shard)
	return hash
}

// VerdictParts says where [DetectParts] writes verdicts.
type VerdictParts struct {
	Out    string         // folder of the parts
	Shard  features.Shard // which part of the images to judge; zero for all
	Format string         // verdicts.JSONL or verdicts.Parquet
	Force  bool           // replace a part of another detector
	// Speculate lets several runs make the same part at the same time. The first that
	// finishes counts.
	Speculate bool
	Detector  string // the detector's file, to name it to people
	Judge     string // identifies the detector and all options that verdicts depend on
	// Line gives the line of JSON for a judgement.
	Line func(Judgement) ([]byte, error)
}

// DetectParts judges the images of a shard, as [Detect] does, and writes the verdicts
// into a folder. A run that is killed goes on where it ended, and a finished part is
// kept. Detect's SetAside and More do not go with it.
func DetectParts(ctx context.Context, opts DetectOptions, to VerdictParts) (_ *verdicts.Record, err error) {
	if opts.SetAside != "" || opts.More != nil {
		return nil, options.Errorf("Out", "verdicts in parts are on images of folders and files, which stay where they are")
	}
	if i := slices.IndexFunc(opts.Paths, source.Judged); i >= 0 {
		return nil, fmt.Errorf("%s: verdicts in parts are on folders and files of images, and not yet on tars, tables and buckets", opts.Paths[i])
	}
	items, err := listPaths(ctx, opts.Paths, "", true)
	if err != nil {
		return nil, err
	}
	items = slices.DeleteFunc(items, func(item extractor.Item) bool { return !to.Shard.Holds(pathOf(item)) })
	names, listing := make([]string, len(items)), sha256.New()
	for i, item := range items {
		names[i] = pathOf(item)
		fmt.Fprintf(listing, "%s\x00%d\x00%d\x00", names[i], item.Bytes, item.MTime)
	}
	shard := to.Shard
	if shard.Count == 0 {
		shard = features.Shard{Index: 1, Count: 1}
	}
	w, err := verdicts.Create(to.Out, shard, verdicts.Work{
		Judge: to.Judge, Listing: hex.EncodeToString(listing.Sum(nil)), Format: to.Format, Detector: to.Detector,
	}, names, verdicts.Options{Force: to.Force, Speculate: to.Speculate})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	known := w.Len()
	if known < len(items) {
		recorder := progress.Start(verdicts.ProgressFile(to.Out, shard))
		defer func() {
			if err == nil {
				recorder.End()
			} else {
				recorder.Stop()
			}
		}()
		recorder.Update(func(s *progress.State) { s.Total, s.Known, s.Done = len(items), known, known })
		report := opts.Run.Progress
		opts.Run.Progress = func(done, failed, total int) {
			if report != nil {
				report(known+done, failed, len(items))
			}
		}
		_, err := detect(ctx, opts, items[known:], func(j Judgement) error {
			line, err := to.Line(j)
			if err == nil {
				err = w.Append(line)
			}
			recorder.Update(func(s *progress.State) {
				s.Done++
				if j.Err != nil {
					s.Failed[progress.Kind(j.Err.Error(), j.Path)]++
				}
			})
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return w.Commit()
}

// recordProgress lets an extraction to the set in opts.Out record how far it has come, in
// a file. What it returns is called with the extraction's error.
func recordProgress(opts *ExtractOptions, file string) func(error) {
	recorder := progress.Start(file)
	report := opts.Run.Progress
	opts.Run.Progress = func(done, failed, total int) {
		if report != nil {
			report(done, failed, total)
		}
		recorder.Update(func(s *progress.State) { s.Done, s.Total = done, total })
	}
	advise := opts.Advise
	opts.Advise = func(err error) error {
		if advise != nil {
			err = advise(err)
		}
		recorder.Update(func(s *progress.State) { s.Failed[progress.Kind(err.Error(), "")]++ })
		return err
	}
	return func(err error) {
		if err == nil {
			recorder.End()
		} else {
			recorder.Stop()
		}
	}
}
