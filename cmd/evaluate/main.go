// Evaluate measures how well scores tell strangers from images of the training
// classes.
package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"mlrbfn/internal/cli"
	"mlrbfn/pipeline"
	"mlrbfn/posthoc"
	"mlrbfn/report"
	"mlrbfn/report/figures"
)

func main() { cli.Main("evaluate", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	opts := pipeline.EvaluateOptions{Memory: 1 << 30}
	f := cli.Flags("evaluate", "--train FEATURES --id FEATURES --near NAME=FEATURES… --far NAME=FEATURES… --out REPORT [flags]",
		`Trains heads on the training features, fits scores, scores the in-distribution test
set and the sets of strangers, and reports AUROC, AUPR and FPR@95 per set and group,
and the accuracy. No image is set aside for calibration, as no threshold is set.

Methods are mlrbfn, the head's own score; the post-hoc scores
`+lines(posthoc.Names())+`,
fitted on all training images; and ensemble, or ensemble(A,B,…) of any of these,
fitted on those that heads train on and put on one scale by the validation images.
all leaves out, and says so, what cannot be fitted. --paper trains the paper's MLRBFN;
--epochs is for the MLRBFN, the softmax network of --head trains for 100.`, stdout)
	train := f.StringArray("train", nil, "`FEATURES` to train on (repeat for several)")
	f.StringVar(&opts.ID, "id", "", "`FEATURES` of in-distribution test images")
	sets := cli.AddSetFlags(f)
	detector := f.String("detector", "", "use a trained `DETECTOR` for mlrbfn, and for the score that it judges by, instead of training")
	methods := f.String("methods", "all", "`METHODS` to compare, with commas between them")
	network := f.String("head", "linear", "whose logits post-hoc scores read: `linear|mlp|backbone|mlrbfn`; the backbone's are the feature sets' own logits.npy, the MLRBFN's its log-confidences, and what its last layer reads the features")
	f.IntVar(&opts.Softmax.Layers, "mlp-layers", 2, "linear layers of --head mlp, 1 to 4, with ReLU between them")
	f.Var((*cli.Bytes)(&opts.Memory), "memory", "memory that scoring takes, about")
	f.StringVar(&opts.Out, "out", "", "folder `REPORT` to write to")
	f.IntVar(&opts.Bootstrap, "bootstrap", 1000, "resamples of the test images for 95% confidence intervals in the report; 0 for none")
	f.StringArrayVar(&opts.ImageRoots, "images", nil, "`FOLDER` that images of the report may come from (repeat for several); without it, the folders that the feature sets record")
	leaderboard := f.String("leaderboard", "", "CSV `FILE` of OpenOOD's leaderboard to compare with")
	heads := cli.AddHeadFlags(f, 0, 1, 2)
	verify := f.Bool("verify", false, "read the feature sets wholly first and compare them with their checksums")
	quiet := f.Bool("quiet", false, "show no progress")
	if err := cli.Parse(f, args, "train", "id", "out"); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return cli.Usagef("unexpected argument %q", f.Arg(0))
	}
	switch *network {
	case "mlp":
		if opts.Softmax.Layers < 1 || opts.Softmax.Layers > 4 {
			return cli.Usagef("--mlp-layers %d: it is 1 to 4", opts.Softmax.Layers)
		}
	case "linear", pipeline.BackboneHead, pipeline.OwnScore:
		if f.Changed("mlp-layers") {
			return cli.Usagef("--mlp-layers goes with --head mlp")
		}
		opts.Softmax.Layers = 1
		if *network != "linear" {
			opts.Head = *network
		}
	default:
		return cli.Usagef("--head %s: it is linear, mlp, backbone or mlrbfn", *network)
	}
	var err error
	if opts.OOD, err = sets.Sets(); err != nil {
		return err
	}
	if *methods != "all" {
		opts.Methods = pipeline.SplitScores(*methods)
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
	opts.Draw = figures.Draw
	opts.Commands = []string{cli.CommandLine("evaluate", args)}
	opts.Facts = []report.Fact{
		{Name: "version", Value: cli.Version()},
		{Name: "date", Value: time.Now().UTC().Format("2 January 2006, 15:04 UTC")},
	}
	opts.Train.Features = *train
	opts.Train.Calibration.None = true // no threshold is set here
	if *verify {
		sets := append(slices.Clone(*train), opts.ID)
		for _, set := range opts.OOD {
			sets = append(sets, set.Features)
		}
		if v := opts.Train.Validation.Features; v != "" {
			sets = append(sets, v)
		}
		if err := pipeline.Verify(ctx, sets...); err != nil {
			return err
		}
	}
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
	results, err := pipeline.Evaluate(ctx, opts)
	progress.Close()
	if err != nil {
		return err
	}
	return pipeline.WriteTable(stdout, results)
}

// lines lists names, a few to a line.
func lines(names []string) string {
	var all []string
	for part := range slices.Chunk(names, 11) {
		all = append(all, strings.Join(part, " "))
	}
	return strings.Join(all, "\n")
}
