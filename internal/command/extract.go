// Extract computes the features of a folder of images with an exported ONNX
// model and keeps them as a feature set.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"mlrbfn/extractor"
	"mlrbfn/extractor/preprocess"
	"mlrbfn/features"
	"mlrbfn/internal/cli"
	"mlrbfn/pipeline"
)

func main() { cli.Main("extract", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var opts pipeline.ExtractOptions
	f := cli.Flags("extract", "--model DIR --images DIR --out FEATURES [flags]",
		`Runs every image of a folder through an exported ONNX model, once, and keeps the
features. DIR/class/…/image is a labelled tree, a flat folder is unlabelled.
Onto a feature set that is there already only images that are new or have another
size or time than before are run, and those that are gone are dropped. After an
interruption the same command goes on from there.

With --shard i/n it takes a share of the images, the same whatever else is in the
folder; n runs, on one machine or on many, and `+"`merge --out FEATURES SHARD…`"+` give the
set that one run over all would have given.

With --model pixels the features are the pixels themselves, (x/255 − mean)/std,
channel by channel and row by row. MNIST's idx files (.gz too) are read as well,
with the labels beside them.`, stdout)
	f.StringVar(&opts.Model, "model", "", "`DIR` of the model: model.onnx and its processor's configuration; or the word pixels, which needs none (a folder of that name is ./pixels)")
	f.StringVar(&opts.Images, "images", "", "`DIR` of images, or an idx file of them")
	f.StringVar(&opts.Out, "out", "", "folder `FEATURES` to write the feature set to")
	f.StringVar(&opts.List, "list", "", "take only the images of an OpenOOD list, a `FILE` of lines: path label")
	f.StringVar(&opts.Names, "names", "", "with --list, name the classes as in another list, a `FILE` with the same labels (ImageNet's train list for its test list)")
	f.StringVar(&opts.Backbone.Output, "output", "", "`NAME` of the output that is the embedding (default: the first of image_embeds, pooler_output, features, embedding, last_hidden_state, or the only output)")
	f.StringVar(&opts.Backbone.Pool, "pool", "", "how last_hidden_state becomes one vector: `cls|mean`, its first token or the mean of the patches' (default: cls, or mean where all tokens are patches')")
	size := f.String("size", "", "pixels: resize to `N|WxH`, whatever the aspect ratio, bicubic (default: images keep their size, which must be the same)")
	f.StringVar(&opts.Pixels.Channels, "channels", "", "pixels: `grey|rgb` (default: grey for idx files, else rgb)")
	f.Float64SliceVar(&opts.Pixels.Mean, "mean", []float64{0}, "pixels: mean to subtract, one or one per channel")
	f.Float64SliceVar(&opts.Pixels.Std, "std", []float64{1}, "pixels: standard deviation to divide by, one or one per channel")
	exif := f.String("exif", "ignore", "EXIF orientation of JPEG, PNG and WebP: `ignore|apply`")
	shard := f.String("shard", "", "take the share `i/n` of the images, i from 1 to n")
	f.BoolVar(&opts.Verify, "verify", false, "tell by reading them, and not by size and time, which images have changed")
	f.BoolVar(&opts.Force, "force", false, "replace a feature set of another model, preprocessing, image folder or shard, a damaged or an unfinished one")
	var c checkFlags
	f.BoolVar(&c.on, "check", false, "write no features: show what the model does to some of the images, and whether it is right")
	f.StringVar(&c.against, "against", "", "with --check, compare with another `MODEL`, such as the one that this was quantised from")
	f.StringVar(&c.picture, "picture", "check.png", "with --check, `FILE` for a picture of what the model sees")
	f.IntVar(&c.images, "check-images", 48, "with --check, images to look at")
	images := cli.AddRunFlags(f, &opts.Run, &opts.Backbone)
	asJSON := f.Bool("json", false, "print the outcome as one JSON object")
	quiet := f.Bool("quiet", false, "show no progress")
	if err := cli.Parse(f, args, "model"); err != nil {
		return err
	}
	if err := c.check(f.Changed, opts.Model == extractor.PixelsName); err != nil {
		return err
	}
	if !c.on && (opts.Images == "" || opts.Out == "") {
		return cli.Usagef("--images and --out are needed")
	}
	if f.NArg() > 0 {
		return cli.Usagef("unexpected argument %q", f.Arg(0))
	}
	if opts.Names != "" && opts.List == "" {
		return cli.Usagef("--names goes with --list")
	}
	if err := checkModelFlags(f, opts.Model == extractor.PixelsName); err != nil {
		return err
	}
	if err := setSize(&opts.Pixels, *size); err != nil {
		return err
	}
	if c := opts.Pixels.Channels; f.Changed("channels") && c != "grey" && c != "rgb" {
		return cli.Usagef("--channels %s: it is grey or rgb", c)
	}
	if pool := opts.Backbone.Pool; pool != "" && pool != "cls" && pool != "mean" {
		return cli.Usagef("--pool %s: it is cls or mean", pool)
	}
	switch *exif {
	case "ignore":
	case "apply":
		opts.Backbone.ApplyEXIF, opts.Pixels.ApplyEXIF = true, true
	default:
		return cli.Usagef("--exif %s: it is ignore or apply", *exif)
	}
	if f.Changed("shard") {
		var err error
		if opts.Shard, err = features.ParseShard(*shard); err != nil {
			return cli.Usagef("--shard: %w", err)
		}
	}
	if err := images.Check(); err != nil {
		return err
	}
	if err := images.LoadRuntime(); err != nil {
		return err
	}
	if c.on {
		return runCheck(ctx, opts, c, *asJSON, stdout)
	}
	progress := cli.NewProgress(stderr, "images", *quiet)
	opts.Run.Progress = func(done, failed, total int) {
		if done == 0 { // the clock starts now
			progress.Begin(0)
			return
		}
		note := ""
		if failed > 0 {
			note = fmt.Sprintf("%d unreadable", failed)
		}
		progress.Update(done, total, note)
	}
	var plan *extractor.Plan
	opts.Run.Chosen = func(p extractor.Plan) {
		if plan == nil || *plan != p { // of many images it is settled more than once
			progress.Say("extract: " + p.String())
		}
		plan = &p
	}
	result, err := pipeline.Extract(ctx, opts)
	progress.Close()
	if errors.Is(err, context.Canceled) || errors.Is(err, syscall.ENOSPC) {
		fmt.Fprintln(stderr, "extract: what was done is kept; the same command goes on from there")
	}
	if err != nil {
		return err
	}
	if *asJSON {
		err = json.NewEncoder(stdout).Encode(struct {
			Out     string `json:"out"`
			N       int    `json:"n"`
			D       int    `json:"d"`
			New     int    `json:"new"`
			Reused  int    `json:"reused"`
			Failed  int    `json:"failed"`
			Skipped int    `json:"skipped"`

			Plan *extractor.Plan `json:"plan,omitempty"`
		}{opts.Out, result.Meta.N, result.Meta.D, result.New, result.Reused, len(result.Failed), result.Skipped, plan})
	} else {
		_, err = fmt.Fprintf(stdout, "%s: %d images × %d features, %d classes (%d new, %d known, %d unreadable, %d files that are no images)\n",
			opts.Out, result.Meta.N, result.Meta.D, len(result.Meta.Classes), result.New, result.Reused, len(result.Failed), result.Skipped)
	}
	if err != nil {
		return err
	}
	if n := len(result.Failed); n > 0 {
		if !*quiet {
			for _, fail := range result.Failed[:min(n, 10)] {
				fmt.Fprintf(stderr, "unreadable: %s: %s\n", cli.Printable(fail.Path), fail.Error)
			}
		}
		return fmt.Errorf("%w: %d, all listed in %s", cli.ErrPartial, n, filepath.Join(opts.Out, "errors.jsonl"))
	}
	return nil
}

// checkModelFlags refuses flags that are of no use to the kind of model.
func checkModelFlags(f *pflag.FlagSet, pixels bool) error {
	names, kind := []string{"size", "channels", "mean", "std"}, "goes with --model pixels alone"
	if pixels {
		names, kind = []string{"output", "pool", "device", "provider", "onnxruntime"}, "has no meaning with --model pixels"
	}
	for _, name := range names {
		if f.Changed(name) {
			return cli.Usagef("--%s %s", name, kind)
		}
	}
	return nil
}

// setSize reads the value of --size: N, WxH or nothing.
func setSize(o *extractor.PixelOptions, text string) error {
	if text == "" {
		return nil
	}
	width, height, ok := strings.Cut(text, "x")
	if !ok {
		height = width
	}
	for _, side := range []struct {
		text string
		to   *int
	}{{width, &o.Width}, {height, &o.Height}} {
		n, err := strconv.Atoi(side.text)
		if err != nil || n < 1 || n > preprocess.MaxSide {
			return cli.Usagef("--size %s: it is N or WxH, each from 1 to %d", text, preprocess.MaxSide)
		}
		*side.to = n
	}
	return nil
}
