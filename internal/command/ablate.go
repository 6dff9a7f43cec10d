package command

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

var _ = declare("ablate", 150, "--train FEATURES --id FEATURES --near NAME=FEATURES… --out REPORT [flags]", "Measure what depth and each step of the paper's head are worth",
	`Trains MLRBFNs and ReLU networks (scored by MSP) of several depths, as in the paper's figure 6, and MLRBFNs without one of the paper's steps, all on the same features for the same number of epochs. Writes REPORT/ablation.csv and figures. The defaults are the paper's settings.`, addAblate)

func addAblate(c *command) {
	c.readsURLs = []string{"train", "id", "val", "near", "far"}
	opts := pipeline.AblateOptions{}
	c.section("input")
	heads := &HeadFlags{flags: c.FlagSet}
	c.sets(&opts, &heads.options, &heads.shape)
	c.StringArrayVar(&heads.options.Features, "train", nil, "`FEATURES` to train on (repeat for several)")
	c.StringVar(&opts.ID, "id", "", "`FEATURES` of in-distribution test images")
	sets := addSetFlags(c)
	c.section("what is compared")
	depths := c.String("depths", strings.Trim(strings.ReplaceAll(fmt.Sprint(evaluation.DefaultDepths()), " ", ","), "[]"), "`numbers` of layers, or none")
	c.means("depths", "Depths")
	steps := c.String("steps", "all", "`steps` to leave out: all, none or some of "+strings.Join(pipeline.Steps, ","))
	c.means("steps", "Steps")
	c.IntVar(&opts.Hidden, "hidden", head.DefaultHidden, "outputs of each hidden layer of the ReLU networks")
	c.section("head and training")
	heads.add(evaluation.DefaultSeeds())
	heads.PaperByDefault()
	c.rare(rareHeadFlags...)
	c.rare("paper")
	c.section("output")
	c.StringVar(&opts.Out, "out", "", "folder `REPORT` to write to")
	c.addQuiet("show no progress")
	c.section("running")
	c.Var((*Bytes)(&heads.options.Memory), "memory", "memory for features, about (default: half of the machine's)")
	c.addCacheFlag()
	c.required = []string{"train", "id", "out"}
	c.run = func(ctx context.Context, s Streams) error {
		if opts.Hidden < 1 {
			return Usagef("--hidden %d: it must be positive", opts.Hidden)
		}
		opts.Depths, opts.Steps = []int{}, []string{}
		if *depths != "none" {
			for text := range strings.SplitSeq(*depths, ",") {
				d, err := strconv.Atoi(strings.TrimSpace(text))
				if err != nil {
					return Usagef("--depths %s: it is whole numbers with commas between them, or none", *depths)
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
		if opts.OOD, err = sets.sets(); err != nil {
			return err
		}
		if len(opts.OOD) == 0 {
			return Usagef("name at least one set of OOD images with --near or --far")
		}
		if err := opts.Check(); err != nil {
			return c.usage(err)
		}
		if opts.Train, err = heads.Options(); err != nil {
			return err
		}
		progress := c.progress(s, "epochs")
		opts.Progress = func(head string, done, total int) { progress.Update(done, total, head) }
		opts.Warn = func(text string) { fmt.Fprintf(s.Err, "ablate: warning: %s\n", c.adviseText(text)) }
		results, err := pipeline.Ablate(ctx, opts)
		progress.Close()
		if err != nil {
			return err
		}
		return c.print(s, nil, resultsText(results, filepath.Join(opts.Out, "ablation.csv")))
	}
}
