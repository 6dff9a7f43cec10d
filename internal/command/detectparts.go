package command

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// checkParts checks and reads the flags of detect that go with --out.
func checkParts(c *command, to *pipeline.VerdictParts, shard, format string) error {
	if to.Out == "" {
		if c.Changed("shard") || c.Changed("force") || c.Changed("speculate") || format == pipeline.Parquet {
			return Usagef("--shard, --force, --speculate and --format parquet go with --out")
		}
		return nil
	}
	for _, name := range []string{"move-ood", "copy-ood", "report", "labels"} {
		if c.Changed(name) {
			return Usagef("--%s does not go with --out", name)
		}
	}
	switch {
	case !c.Changed("format") || format == pipeline.JSONL:
		to.Format = pipeline.JSONL
	case format == pipeline.Parquet && c.Changed("explain"):
		return Usagef("--explain goes with --format jsonl")
	case format == pipeline.Parquet:
		to.Format = format
	default:
		return Usagef("--out writes --format jsonl or parquet")
	}
	if c.Changed("shard") {
		var err error
		if to.Shard, err = features.ParseShard(shard); err != nil {
			return Usagef("--shard: %w", err)
		}
	}
	return nil
}

// detectParts runs detect --out.
func (c *command) detectParts(ctx context.Context, s Streams, opts pipeline.DetectOptions, to pipeline.VerdictParts, file, explain string, quiet, failOnOOD bool) error {
	if opts.More != nil {
		return Usagef("the path - does not go with --out, which must know all images to divide them")
	}
	judge, err := judgeOf(file, opts, explain)
	if err != nil {
		return err
	}
	to.Detector, to.Judge = file, judge
	var line bytes.Buffer
	print := newPrinter(pipeline.JSONL, false, explain != "", false, &line)
	to.Line = func(j pipeline.Judgement) ([]byte, error) {
		line.Reset()
		j.Err = c.adviseImage(j)
		err := print(j)
		return line.Bytes(), err
	}
	progress := NewProgress(s.Err, "images", quiet)
	opts.Run.Progress = func(done, _, total int) { progress.Update(done, total, "") }
	result, err := pipeline.DetectParts(ctx, opts, to)
	progress.Close()
	if errors.Is(err, context.Canceled) || errors.Is(err, syscall.ENOSPC) {
		fmt.Fprintln(s.Err, "detect: finished verdicts are saved; the same command continues")
	}
	if err != nil {
		return err
	}
	record := result.VerdictRecord
	if !quiet {
		if result.Unfinished != nil {
			fmt.Fprintf(ForPeople(s.Err), "detect: part %s is written; %s has no manifest of all parts yet: %v\n", record.Work.Shard, to.Out, result.Unfinished)
		}
		fmt.Fprintf(s.Err, "%s: %s: %d in distribution, %d out of distribution, %d unreadable\n",
			to.Out, count(record.Images, "image"), record.InDistribution, record.OOD, record.Failed)
	}
	switch {
	case failOnOOD && record.OOD > 0:
		return fmt.Errorf("%w: %d", ErrOOD, record.OOD)
	case record.Failed > 0:
		return fmt.Errorf("%w: %d", ErrPartial, record.Failed)
	}
	return nil
}

// judgeOf identifies a detector with the options that its verdicts depend on.
func judgeOf(file string, opts pipeline.DetectOptions, explain string) (string, error) {
	f, err := disk.Open(file, disk.Values)
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", err
	}
	fmt.Fprintf(hash, "\x00threshold %v\x00explain %s\x00model %s\x00pixels %d\x00time %v\x00device %s", opts.Detector.Threshold, explain,
		opts.Model, opts.Run.MaxPixels, opts.Run.ImageTimeout, opts.Backbone.Device)
	return hex.EncodeToString(hash.Sum(nil)), nil
}
