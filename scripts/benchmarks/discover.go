package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// discovering measures discover on made-up features, without any extraction: processor
// time, and how its memory grows.
type discovering struct {
	thousand // makes the features

	folderRows int
	share      float64
	program    *string
}

func benchDiscover(f *flag.FlagSet) func(ctx context.Context, dir string) error {
	b := &discovering{thousand: thousand{memory: 1 << 30, apart: 1}, program: addProgram(f)}
	f.IntVar(&b.folderRows, "images", 10_000, "rows to judge together")
	f.Float64Var(&b.share, "new", .1, "`share` of them that is of other classes")
	f.IntVar(&b.dim, "dim", 1280, "features of a row")
	f.IntVar(&b.rows, "rows", 8000, "rows to train and calibrate on")
	f.IntVar(&b.classes, "classes", 20, "classes")
	f.Var((*command.Bytes)(&b.memory), "memory", "what --memory of discover is given, in `bytes`")
	f.StringVar(&b.thousand.folder, "folder", "", "`folder` for the features, 4 bytes a value (default: the system's for temporary files)")
	return b.measure
}

func (b *discovering) measure(ctx context.Context, temporary string) (err error) {
	program, err := build(*b.program, temporary)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(b.thousand.folder, "discover")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b.others = int(b.share * float64(b.folderRows))
	b.queries = b.folderRows - b.others
	if err := b.make(ctx, dir); err != nil {
		return err
	}
	d, _, err := pipeline.Train(ctx, pipeline.TrainOptions{
		Features: []string{filepath.Join(dir, "train")}, NoHoldOut: true, Calibration: pipeline.Share{Fraction: .25}, Train: head.TrainOptions{Epochs: 3},
	})
	if err != nil {
		return err
	}
	detector := filepath.Join(dir, "detector.safetensors")
	if err := d.Save(detector); err != nil {
		return err
	}
	args := []string{"discover", "--detector", detector, "--memory", strconv.FormatInt(b.memory, 10), "--scratch", dir, "--out", filepath.Join(dir, "new"), "--json"}
	for _, set := range []string{"id", "near"} {
		args = append(args, "--features", filepath.Join(dir, set))
	}
	cmd := exec.CommandContext(ctx, program, args...)
	if cmd.Stdout, err = os.Create(filepath.Join(dir, "lines")); err != nil {
		return err
	}
	cmd.Stderr = os.Stderr
	var grown []string
	start, next := time.Now(), 5*time.Second
	r, err := run(cmd, func(anonymous int64) error {
		if took := time.Since(start); took >= next {
			next += 5 * time.Second
			grown = append(grown, strconv.FormatInt(anonymous>>20, 10))
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Printf("%d × %d, %g%% new, --memory %d MiB, %d calibration images: %.1f s, %.1f s of processor time; resident memory without mapped files at most %d MiB, every 5 s: %s\n",
		b.folderRows, b.dim, 100*b.share, b.memory>>20, len(d.CalibrationScores), r.wall.Seconds(), r.cpu.Seconds(), r.anonymous>>20, strings.Join(grown, " "))
	return nil
}
