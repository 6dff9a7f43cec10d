// Train trains a detector on cached features.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"mlrbfn/head"
	"mlrbfn/internal/atomicfile"
	"mlrbfn/internal/cli"
	"mlrbfn/pipeline"
)

func main() { cli.Main("train", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := cli.Flags("train", "--features FEATURES --out DETECTOR [flags]",
		`Trains an MLRBFN on the labelled images of one or several feature sets and
writes it, with its threshold, as one file. The defaults are those that experiments
found best (docs/research.md); --paper trains the paper's head with its settings.

What is done so far is kept in DETECTOR.checkpoint, and the same command goes on
from there after an interruption; the detector is the same to the bit.`, stdout)
	features := f.StringArray("features", nil, "a feature set `FEATURES` (repeat for several)")
	out := f.String("out", "", "the file `DETECTOR` to write")
	headFlags := cli.AddHeadFlags(f, 0)
	calibration := f.String("calibration", "0.1", "part of the training images, or `FEATURES`, to set the threshold by; 0: none")
	tpr := f.Float64("target-tpr", 0.95, "share of in-distribution images that the threshold keeps")
	alarms := f.Float64("max-false-alarms", 0.05, "share of in-distribution images that may be flagged: 1 − --target-tpr")
	scores := f.String("scores", pipeline.OwnScore, "the score to judge by: `SCORE`, one of evaluate's methods, ensemble or ensemble(A,B,…)")
	var memory cli.Bytes
	f.Var(&memory, "memory", "memory that the features may take, about; more of them are read from the disk, with temporary files beside DETECTOR (default half of the machine's)")
	f.Lookup("memory").DefValue = "" // which pflag takes for no default
	every := f.Duration("checkpoint-every", 30*time.Second, "how often the state of training is kept; 0: never, nor is one looked for")
	resume := f.Bool("resume", false, "go on from DETECTOR.checkpoint, which must be there; --lr may differ")
	restart := f.Bool("restart", false, "begin anew, whether or not there is DETECTOR.checkpoint")
	verify := f.Bool("verify", false, "read the feature sets wholly first and compare them with their checksums")
	asJSON := f.Bool("json", false, "print the outcome as one JSON object")
	quiet := f.Bool("quiet", false, "show no progress")
	if err := cli.Parse(f, args, "features", "out"); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return cli.Usagef("unexpected argument %q; --features repeats for each set", f.Arg(0))
	}
	if err := pipeline.CheckScores(*scores); err != nil {
		return cli.Usagef("--scores: %w", err)
	}
	switch {
	case f.Changed("max-false-alarms") && f.Changed("target-tpr"):
		return cli.Usagef("--max-false-alarms and --target-tpr say the same thing: give one of them")
	case f.Changed("max-false-alarms"):
		if !(*alarms > 0 && *alarms < 1) {
			return cli.Usagef("--max-false-alarms %g: a share lies between 0 and 1", *alarms)
		}
		*tpr = 1 - *alarms
	}
	opts, err := headFlags.Options()
	if err != nil {
		return err
	}
	if opts.Calibration, err = cli.Share("calibration", *calibration); err != nil {
		return err
	}
	if !(*tpr > 0 && *tpr < 1) {
		return cli.Usagef("--target-tpr %g: a share lies between 0 and 1", *tpr)
	}
	switch {
	case *every < 0:
		return cli.Usagef("--checkpoint-every %s: it is not negative", *every)
	case *resume && *restart, *resume && *every == 0:
		return cli.Usagef("--resume goes with neither --restart nor --checkpoint-every 0")
	case *resume:
		opts.Resume = pipeline.ResumeAlways
	case *restart:
		opts.Resume = pipeline.ResumeNever
	}
	checkpoint := *out + ".checkpoint"
	if *every > 0 {
		opts.Checkpoint, opts.CheckpointEvery = checkpoint, *every
	}
	opts.Features, opts.TargetTPR, opts.Scores = *features, *tpr, *scores
	opts.Memory, opts.Scratch = int64(memory), filepath.Dir(*out)
	if v, c := opts.Validation, opts.Calibration; v.Fraction+c.Fraction >= 1 {
		return cli.Usagef("--val %s and --calibration %s leave nothing to train on", v, c)
	}
	if err := atomicfile.Check(*out); err != nil {
		return err
	}
	if *verify {
		sets := slices.Clone(*features)
		for _, share := range []pipeline.Share{opts.Validation, opts.Calibration} {
			if share.Features != "" {
				sets = append(sets, share.Features)
			}
		}
		if err := pipeline.Verify(ctx, sets...); err != nil {
			return err
		}
	}

	progress := cli.NewProgress(stderr, "epochs", *quiet)
	heads := newEpochs(progress, opts)
	opts.Progress = heads.update
	opts.Resumed = func(epochs []int) {
		heads.resume(epochs)
		if !*quiet {
			fmt.Fprintf(stderr, "train: going on from %s, %d of %d epochs\n", checkpoint, heads.done(), heads.total())
		}
	}
	detector, result, err := pipeline.Train(ctx, opts)
	progress.Close()
	if err != nil {
		_, absent := os.Stat(checkpoint)
		return advise(stderr, err, checkpoint, opts.Checkpoint != "" && absent == nil)
	}
	if err := detector.Save(*out); err != nil {
		return err
	}
	if opts.Checkpoint != "" {
		if err := os.Remove(checkpoint); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
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

// advise adds to an error of training what to do next; kept says whether there
// is a checkpoint.
func advise(stderr io.Writer, err error, checkpoint string, kept bool) error {
	switch {
	case errors.Is(err, context.Canceled) && kept:
		fmt.Fprintf(stderr, "train: what was done is kept in %s; the same command goes on from there, unless it says --restart\n", checkpoint)
	case errors.Is(err, head.ErrDiverged) && kept:
		return fmt.Errorf("%w; what was good is kept in %s: --resume with another --lr goes on from there, --restart begins anew", err, checkpoint)
	case errors.Is(err, pipeline.ErrOtherTraining):
		return fmt.Errorf("%w; the command that began it goes on from it, --resume if --lr alone differs; --restart begins anew", err)
	}
	return err
}

// epochs shows how far all heads together are.
type epochs struct {
	progress *cli.Progress
	each     int // epochs of a head

	mu     sync.Mutex
	behind []int        // epochs per head
	last   []head.Epoch // the latest per head; zero before the first
}

func newEpochs(progress *cli.Progress, opts pipeline.TrainOptions) *epochs {
	heads := len(opts.Seeds)
	return &epochs{progress: progress, each: opts.Train.Epochs, behind: make([]int, heads), last: make([]head.Epoch, heads)}
}

func (p *epochs) total() int { return p.each * len(p.behind) }

func (p *epochs) done() (n int) {
	for _, epochs := range p.behind {
		n += epochs
	}
	return n
}

// resume takes over what heads have behind them.
func (p *epochs) resume(behind []int) {
	copy(p.behind, behind)
	p.progress.Begin(p.done())
}

// update notes an epoch and shows the means over the heads.
func (p *epochs) update(i int, e head.Epoch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.behind[i], p.last[i] = e.Epoch, e
	var mean head.Epoch
	var n float64
	for _, e := range p.last {
		if e.Epoch > 0 {
			n++
			mean.TrainLoss += e.TrainLoss
			mean.ValLoss += e.ValLoss
			mean.ValAccuracy += e.ValAccuracy
			mean.LR += e.LR
		}
	}
	p.progress.Update(p.done(), p.total(), fmt.Sprintf("loss %.4f, validation loss %.4f, accuracy %.4f, rate %.2g", mean.TrainLoss/n, mean.ValLoss/n, mean.ValAccuracy/n, mean.LR/n))
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
		text += fmt.Sprintf("\nthreshold %.4f on the score %s keeps %.4g%% of images like these (set by %d calibration images)", *r.Threshold, r.Scores, 100*d.TargetTPR, r.Rows.Calibration)
		text += fmt.Sprintf("\nfalse alarms in the long run: %.2g%% to %.2g%% of such images, with a chance of 95%%", 100*r.FalseAlarms[0], 100*r.FalseAlarms[1])
	}
	return text
}
