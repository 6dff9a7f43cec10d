package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/progress"
	"github.com/mlrbfn/mlrbfn/options"
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
