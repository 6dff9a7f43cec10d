// Evaluate measures how well scores tell strangers from images of the training
// classes.
package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"mlrbfn/internal/cli"
	"mlrbfn/pipeline"
	"mlrbfn/report"
)

func main() { cli.Main("evaluate", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var opts pipeline.EvaluateOptions
	f := cli.Flags("evaluate", "--train FEATURES --id FEATURES --near NAME=FEATURES… --far NAME=FEATURES… --out REPORT [flags]",
		`Trains heads on the training features, scores the in-distribution test set and the
sets of strangers, and reports AUROC, AUPR and FPR@95 per set and group, and the
accuracy. No image is set aside for calibration, as no threshold is set. Defaults
are the paper's; --epochs is for the MLRBFN, a linear head trains for 100.`, stdout)
	train := f.StringArray("train", nil, "`FEATURES` to train on (repeat for several)")
	f.StringVar(&opts.ID, "id", "", "`FEATURES` of in-distribution test images")
	sets := cli.AddSetFlags(f)
	detector := f.String("detector", "", "use a trained `DETECTOR` for mlrbfn instead of training heads")
	methods := f.StringSlice("methods", []string{"all"}, "scores to compare: "+strings.Join(pipeline.Methods, ", "))
	linear := f.String("head", "linear", "whose logits msp reads; this version knows `linear`")
	f.StringVar(&opts.Out, "out", "", "folder `REPORT` to write to")
	f.IntVar(&opts.Bootstrap, "bootstrap", 1000, "resamples of the test images for 95% confidence intervals in the report; 0 for none")
	leaderboard := f.String("leaderboard", "", "CSV `FILE` of OpenOOD's leaderboard to compare with")
	heads := cli.AddHeadFlags(f, 0, 1, 2)
	quiet := f.Bool("quiet", false, "show no progress")
	if err := cli.Parse(f, args, "train", "id", "out"); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return cli.Usagef("unexpected argument %q", f.Arg(0))
	}
	if *linear != "linear" {
		return cli.Usagef("--head %s: this version knows linear alone", *linear)
	}
	var err error
	if opts.OOD, err = sets.Sets(); err != nil {
		return err
	}
	if !(len(*methods) == 1 && (*methods)[0] == "all") {
		opts.Methods = *methods
	}
	if err := opts.Check(); err != nil {
		return cli.Usagef("%w", err)
	}
	if opts.Train, err = heads.Options(); err != nil {
		return err
	}
	if opts.Bootstrap < 0 {
		return cli.Usagef("--bootstrap %d: it is a number of resamples", opts.Bootstrap)
	}
	opts.Commands = []string{cli.CommandLine("evaluate", args)}
	opts.Facts = []report.Fact{
		{Name: "version", Value: cli.Version()},
		{Name: "date", Value: time.Now().UTC().Format("2 January 2006, 15:04 UTC")},
	}
	opts.Train.Features = *train
	opts.Train.Calibration.None = true // no threshold is set here
	if *detector != "" {
		if opts.Detector, err = pipeline.LoadDetector(*detector); err != nil {
			return err
		}
	}
	if *leaderboard != "" {
		board, err := report.ReadLeaderboard(*leaderboard)
		if err != nil {
			return err
		}
		opts.Published = report.Benchmarks(nil, board)
	}
	progress := cli.NewProgress(stderr, "", *quiet)
	opts.Progress = progress.Phase
	opts.Warn = func(text string) { fmt.Fprintf(stderr, "evaluate: warning: %s\n", text) }
	figures, err := pipeline.Evaluate(ctx, opts)
	progress.Close()
	if err != nil {
		return err
	}
	return pipeline.WriteTable(stdout, figures)
}
