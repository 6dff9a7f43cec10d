// Train trains a detector on cached features.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"mlrbfn/head"
	"mlrbfn/internal/atomicfile"
	"mlrbfn/internal/cli"
	"mlrbfn/pipeline"
)

func main() { cli.Main("train", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := cli.Flags("train", "--features FEATURES --out DETECTOR [flags]",
		`Trains an MLRBFN on the labelled images of one or several feature sets and
writes it, with its threshold, as one file. All defaults are the paper's.`, stdout)
	features := f.StringArray("features", nil, "a feature set `FEATURES` (repeat for several)")
	out := f.String("out", "", "the file `DETECTOR` to write")
	heads := cli.AddHeadFlags(f, 0)
	calibration := f.String("calibration", "0.1", "part of the training images, or `FEATURES`, to set the threshold by; 0: none")
	tpr := f.Float64("target-tpr", 0.95, "share of in-distribution images that the threshold keeps")
	scores := f.StringSlice("scores", []string{"mlrbfn"}, "scores that the detector holds; this version knows mlrbfn")
	asJSON := f.Bool("json", false, "print the outcome as one JSON object")
	quiet := f.Bool("quiet", false, "show no progress")
	if err := cli.Parse(f, args, "features", "out"); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return cli.Usagef("unexpected argument %q; --features repeats for each set", f.Arg(0))
	}
	for _, s := range *scores {
		if s != "mlrbfn" {
			return cli.Usagef("--scores %s: this version knows mlrbfn alone", s)
		}
	}
	opts, err := heads.Options()
	if err != nil {
		return err
	}
	if opts.Calibration, err = cli.Share("calibration", *calibration); err != nil {
		return err
	}
	if !(*tpr > 0 && *tpr < 1) {
		return cli.Usagef("--target-tpr %g: a share lies between 0 and 1", *tpr)
	}
	opts.Features, opts.TargetTPR = *features, *tpr
	if v, c := opts.Validation, opts.Calibration; v.Fraction+c.Fraction >= 1 {
		return cli.Usagef("--val %s and --calibration %s leave nothing to train on", v, c)
	}
	if err := atomicfile.Check(*out); err != nil {
		return err
	}

	progress := cli.NewProgress(stderr, "epochs", *quiet)
	opts.Progress = epochs(progress, opts.Train.Epochs*len(opts.Seeds))
	detector, result, err := pipeline.Train(ctx, opts)
	progress.Close()
	if err != nil {
		return err
	}
	if err := detector.Save(*out); err != nil {
		return err
	}
	for _, w := range result.Warnings {
		fmt.Fprintf(stderr, "train: warning: %s\n", w)
	}
	if *asJSON {
		return json.NewEncoder(stdout).Encode(result)
	}
	_, err = fmt.Fprintf(stdout, "%s: %s\n", *out, describe(detector, result))
	return err
}

// epochs counts the epochs of all heads together.
func epochs(progress *cli.Progress, total int) func(int, head.Epoch) {
	var mu sync.Mutex
	done := 0
	return func(_ int, e head.Epoch) {
		mu.Lock()
		done++
		n := done
		mu.Unlock()
		progress.Update(n, total, fmt.Sprintf("loss %.4f, validation loss %.4f, accuracy %.4f, rate %.2g", e.TrainLoss, e.ValLoss, e.ValAccuracy, e.LR))
	}
}

// describe says in a line or two what was trained.
func describe(d *pipeline.Detector, r *pipeline.TrainResult) string {
	text := fmt.Sprintf("%d classes, %d layers, %d head(s), trained on %d images in %d epochs (%.1f s, %.0f steps/s)\n",
		len(d.Classes), len(d.Heads[0].Layers), len(d.Heads), r.Rows.Train, r.Epochs, r.Seconds, r.StepsPerSecond)
	text += fmt.Sprintf("loss %.4f, validation loss %.4f", r.TrainLoss, r.ValLoss)
	if r.ValAccuracy != nil {
		text += fmt.Sprintf(", validation accuracy %.4f (%d images)", *r.ValAccuracy, r.Rows.Validation)
	}
	if r.Threshold != nil {
		text += fmt.Sprintf("\nthreshold %.4f on the score keeps %.4g%% of images like these (set by %d calibration images)", *r.Threshold, 100*d.TargetTPR, r.Rows.Calibration)
	}
	return text
}
