package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// bounds measures what the bounds for many rows cost in quality, on a set on which
// training without them is possible: each is lowered to the share of the rows that it
// leaves of full, and all together.
type bounds struct {
	features, test, near, far string
	full, seeds               int
	noHoldOut                 bool
}

func benchBounds(f *flag.FlagSet) func(ctx context.Context, dir string) error {
	b := &bounds{}
	f.StringVar(&b.features, "features", "", "`folder` of the training features")
	f.StringVar(&b.test, "test", "", "`folder` of test features of the same classes")
	f.StringVar(&b.near, "near", "", "`folders` of near-OOD features, with commas between")
	f.StringVar(&b.far, "far", "", "`folders` of far-OOD features, with commas between")
	f.IntVar(&b.full, "full", 1_024_000, "training rows, of 1,000 classes × 768, whose bounds are imitated")
	f.IntVar(&b.seeds, "seeds", 3, "seeds, each with a split of its own")
	f.BoolVar(&b.noHoldOut, "no-holdout", false, "with fixed weights of the parts, without class hold-out")
	return b.measure
}

func (b *bounds) measure(ctx context.Context, _ string) error {
	t, err := features.OpenTable(ctx, nil, b.features)
	if err != nil {
		return err
	}
	rows, d, classes := 0.8*float64(len(t.Labels)), t.D, len(t.Classes)
	if err := t.Close(); err != nil {
		return err
	}
	share := rows / float64(b.full)
	steps, parts := int(30_000*share), int(100_000*share)
	work := 1e11 / (768 * 1000) * share * float64(d*classes)
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "%s: %.0f rows to train on, %d classes\taccuracy\tnear AUROC\tfar AUROC\tCPU s\t\n", filepath.Base(b.features), rows, classes)
	for _, c := range []struct {
		name   string
		change func(*pipeline.TrainOptions)
	}{
		{"no bound", func(*pipeline.TrainOptions) {}},
		{fmt.Sprintf("%d steps", steps), func(o *pipeline.TrainOptions) { o.Train.MostSteps = steps }},
		{fmt.Sprintf("linear head: %.0f rows", work/float64(d*classes)), func(o *pipeline.TrainOptions) { o.Linear.MostWork = work }},
		{fmt.Sprintf("parts: %d rows", parts), func(o *pipeline.TrainOptions) { o.PartRows = parts }},
		{"all three", func(o *pipeline.TrainOptions) {
			o.Train.MostSteps, o.Linear, o.PartRows = steps, head.LinearOptions{MostWork: work}, parts
		}},
	} {
		var sum [3]float64
		began := used()
		for seed := range b.seeds {
			o := pipeline.TrainOptions{Features: []string{b.features}, Seeds: []uint64{uint64(seed)}, NoHoldOut: b.noHoldOut, Train: head.TrainOptions{MostSteps: -1}}
			c.change(&o)
			det, _, err := pipeline.Train(ctx, o)
			if err != nil {
				return err
			}
			values, err := b.judge(ctx, det)
			if err != nil {
				return err
			}
			for i, v := range values {
				sum[i] += 100 * v / float64(b.seeds)
			}
		}
		fmt.Fprintf(table, "%s\t%.2f\t%.2f\t%.2f\t%.0f\t\n", c.name, sum[0], sum[1], sum[2], used().minus(began).cpu.Seconds()/float64(b.seeds))
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// judge returns the accuracy on the test features and the mean AUROC of the near and
// of the far ones.
func (b *bounds) judge(ctx context.Context, d *pipeline.Detector) (values [3]float64, err error) {
	scores := func(dir string) (all []float64, right float64, err error) {
		t, err := features.OpenTable(ctx, nil, dir)
		if err != nil {
			return nil, 0, err
		}
		defer t.Close()
		verdicts, err := d.Verdicts(ctx, t.X)
		for i, v := range verdicts {
			all = append(all, v.Score)
			if y := t.Labels[i]; y >= 0 && v.Class == t.Classes[y] {
				right += 1 / float64(len(verdicts))
			}
		}
		return all, right, err
	}
	known, right, err := scores(b.test)
	if err != nil {
		return values, err
	}
	values[0] = right
	for i, list := range []string{b.near, b.far} {
		dirs := strings.Split(list, ",")
		for _, dir := range dirs {
			others, _, err := scores(dir)
			if err != nil {
				return values, err
			}
			values[1+i] += metrics.AUROC(known, others) / float64(len(dirs))
		}
	}
	return values, nil
}
