// Ablate measures what depth and each step of the paper's are worth.
package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"mlrbfn/internal/cli"
	"mlrbfn/pipeline"
)

func main() { cli.Main("ablate", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var opts pipeline.AblateOptions
	f := cli.Flags("ablate", "--train FEATURES --id FEATURES --near NAME=FEATURES… --far NAME=FEATURES… --out REPORT [flags]",
		`Trains MLRBFNs and ReLU networks (MSP) of 1, 2, 3 and 4 layers, as in the paper's
figure 6, and MLRBFNs of --layers layers that lack one of the paper's steps, on the
same features for as many epochs, and reports how well each tells strangers from
the in-distribution test set: REPORT/ablation.csv, and figures of both. Defaults
are the paper's.`, stdout)
	train := f.StringArray("train", nil, "`FEATURES` to train on (repeat for several)")
	f.StringVar(&opts.ID, "id", "", "`FEATURES` of in-distribution test images")
	sets := cli.AddSetFlags(f)
	depths := f.String("depths", "1,2,3,4", "numbers of layers to compare, or none")
	steps := f.String("steps", "all", "steps to take back: all, none or some of "+strings.Join(pipeline.Steps, ","))
	f.IntVar(&opts.Hidden, "hidden", 100, "outputs of each hidden layer of the ReLU networks")
	f.StringVar(&opts.Out, "out", "", "folder `REPORT` to write to")
	heads := cli.AddHeadFlags(f, 0, 1, 2).PaperByDefault()
	quiet := f.Bool("quiet", false, "show no progress")
	if err := cli.Parse(f, args, "train", "id", "out"); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return cli.Usagef("unexpected argument %q", f.Arg(0))
	}
	if opts.Hidden < 1 {
		return cli.Usagef("--hidden %d: it is positive", opts.Hidden)
	}
	if *depths != "none" {
		for text := range strings.SplitSeq(*depths, ",") {
			d, err := strconv.Atoi(strings.TrimSpace(text))
			if err != nil {
				return cli.Usagef("--depths %s: it is whole numbers with commas, or none", *depths)
			}
			opts.Depths = append(opts.Depths, d)
		}
	}
	switch *steps {
	case "none":
	case "all":
		opts.Steps = pipeline.Steps
	default:
		opts.Steps = strings.Split(*steps, ",")
	}
	var err error
	if opts.OOD, err = sets.Sets(); err != nil {
		return err
	}
	if err := opts.Check(); err != nil {
		return cli.Usagef("%w", err)
	}
	if opts.Train, err = heads.Options(); err != nil {
		return err
	}
	opts.Train.Features = *train
	opts.Train.Calibration.None = true // no threshold is set here
	progress := cli.NewProgress(stderr, "epochs", *quiet)
	opts.Progress = func(head string, done, total int) { progress.Update(done, total, head) }
	opts.Warn = func(text string) { fmt.Fprintf(stderr, "ablate: warning: %s\n", text) }
	figures, err := pipeline.Ablate(ctx, opts)
	progress.Close()
	if err != nil {
		return err
	}
	return pipeline.WriteTable(stdout, figures)
}
