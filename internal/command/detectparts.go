package command

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/report"
)

// checkParts checks and reads the flags that go with --out.
func (d *detecting) checkParts() (err error) {
	if d.to.Out == "" {
		if d.Changed("shard") || d.Changed("force") || d.Changed("speculate") || d.to.Thumbnails || d.format == pipeline.Parquet {
			return Usagef("--shard, --force, --speculate, --thumbnails and --format parquet go with --out")
		}
		return nil
	}
	for _, name := range []string{"move-ood", "copy-ood", "report", "labels"} {
		if d.Changed(name) {
			return Usagef("--%s does not go with --out", name)
		}
	}
	switch {
	case d.to.Thumbnails && d.format != pipeline.Parquet:
		return Usagef("--thumbnails goes with --format parquet")
	case !d.Changed("format") || d.format == pipeline.JSONL:
		d.to.Format = pipeline.JSONL
	case d.format == pipeline.Parquet && d.Changed("explain"):
		return Usagef("--explain goes with --format jsonl")
	case d.format == pipeline.Parquet:
		d.to.Format = d.format
	default:
		return Usagef("--out writes --format jsonl or parquet")
	}
	if d.Changed("shard") {
		if d.to.Shard, err = features.ParseShard(d.shard); err != nil {
			return Usagef("--shard: %w", err)
		}
	}
	return nil
}

// runParts runs detect --out.
func (d *detecting) runParts(ctx context.Context, s Streams) error {
	if d.opts.More != nil {
		return Usagef("the path - does not go with --out, which must know all images to divide them")
	}
	judge, err := judgeOf(d.file, d.opts, d.explain)
	if err != nil {
		return err
	}
	d.to.Detector, d.to.Judge = d.file, judge
	var line bytes.Buffer
	d.to.Line = func(j pipeline.Judgement) ([]byte, error) {
		line.Reset()
		j.Err = d.adviseImage(j)
		err := printJSON(&line, j)
		return line.Bytes(), err
	}
	if d.to.Thumbnails {
		axes, err := evaluation.NewMapAxes(ctx, d.opts.Detector, d.explainBy.Features)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			fmt.Fprintf(ForPeople(s.Err), "detect: note: x and y are empty: %v\n", d.advise(err))
		}
		d.to.Line = func(j pipeline.Judgement) ([]byte, error) { return d.picturedLine(ctx, axes, j) }
	}
	progress := d.progress(s, "images")
	d.opts.Run.Progress = progress.Count
	record, err := pipeline.DetectParts(ctx, d.opts, d.to)
	progress.Close()
	if errors.Is(err, context.Canceled) || errors.Is(err, syscall.ENOSPC) {
		fmt.Fprintln(s.Err, "detect: finished verdicts are saved; the same command continues")
	}
	if err != nil {
		return err
	}
	if !d.quiet {
		fmt.Fprintf(s.Err, "%s: %s: %d in distribution, %d out of distribution, %d unreadable\n",
			d.to.Out, count(record.Images, "image"), record.InDistribution, record.OOD, record.Failed)
	}
	return d.outcome(record.OOD, record.Failed, 0)
}

// picturedLine is the line of a judgement with a picture, and with a place where there are axes.
func (d *detecting) picturedLine(ctx context.Context, axes *evaluation.MapAxes, j pipeline.Judgement) ([]byte, error) {
	l := pipeline.VerdictLine{Path: disk.EncodePath(j.Path), Verdict: j.Verdict, Error: text(d.adviseImage(j))}
	if j.Err == nil {
		l.Thumbnail = report.Thumbnail(pictureOf(ctx, j))
	}
	if j.Err == nil && axes != nil {
		at, err := axes.Place(ctx, d.opts.Detector.Embeddings(j.Features))
		if err != nil {
			return nil, err
		}
		l.X, l.Y = &at[0][0], &at[0][1]
	}
	line, err := json.Marshal(l)
	return append(line, '\n'), err
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
