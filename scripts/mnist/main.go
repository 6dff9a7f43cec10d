// Mnist measures a detector as the paper does on MNIST (section 4.1): accuracy on
// training and test images, how well its score separates out-of-distribution (OOD)
// images from the test images, and the paper's figure 4, the confidence on each.
//
//	mnist --detector D --train F --test F --ood NAME=F [--ood NAME=F …] [--out figures]
//
// Each of the detector's heads, one per seed, is measured separately.
// `scripts/reproduce mnist` makes the files that it reads.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/scripts/figures"
)

func main() { command.Program("mnist", run) }

func run(ctx context.Context, args []string, stdout, _ io.Writer) error {
	f := command.Flags("mnist", "--detector D --train F --test F --ood NAME=F [flags]",
		"Measures each head of a detector on in-distribution and out-of-distribution (OOD) images,\nand draws how confident the first head is of them.", stdout)
	file := f.String("detector", "", "the `DETECTOR` to measure")
	train := f.String("train", "", "`FEATURES` that it was trained on")
	test := f.String("test", "", "`FEATURES` of other images of its classes")
	ood := f.StringArray("ood", nil, "`NAME=FEATURES` of OOD images (repeat for several)")
	out := f.String("out", "figures", "folder of the figure")
	if err := command.Parse(f, args, "detector", "train", "test", "ood"); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return command.Usagef("unexpected argument %q", f.Arg(0))
	}
	names, folders := []string{"train", "test"}, []string{*train, *test}
	for _, s := range *ood {
		name, dir, ok := strings.Cut(s, "=")
		if !ok || name == "" || dir == "" {
			return command.Usagef("--ood %s: it is NAME=FEATURES", s)
		}
		names, folders = append(names, name), append(folders, dir)
	}
	if len(names) > 1+len(figures.Palette) {
		return command.Usagef("the figure has colours for %d sets of OOD images", len(figures.Palette)-1)
	}
	detector, err := pipeline.LoadDetector(*file)
	if err != nil {
		return err
	}
	var sets []*features.Set
	defer func() {
		for _, set := range sets {
			set.Close()
		}
	}()
	for _, dir := range folders {
		set, err := features.Open(ctx, dir)
		if err != nil {
			return err
		}
		sets = append(sets, set)
		if set.D != detector.Dim() || set.Fingerprint != detector.Source.Fingerprint {
			return fmt.Errorf("%s: %w than the features that the detector was trained on", dir, features.ErrFingerprint)
		}
	}
	results := make([]result, len(detector.Heads))
	for h := range detector.Heads {
		if results[h], err = measure(ctx, detector, h, sets); err != nil {
			return err
		}
	}
	if err := writeTable(stdout, detector.Seeds, names, results); err != nil {
		return err
	}
	if err := os.MkdirAll(*out, 0o777); err != nil {
		return err
	}
	names[1] = "MNIST, test"
	return drawFigure(names[1:], results[0].scores[1:], filepath.Join(*out, "mnist.png"), filepath.Join(*out, "mnist.svg"))
}

// result holds the metrics and scores of one head.
type result struct {
	metrics []float64   // accuracy on train and test; AUROC and FPR@95 for each set of OOD images
	scores  [][]float64 // of each set
}

// measure measures one head of the detector.
func measure(ctx context.Context, d *pipeline.Detector, h int, sets []*features.Set) (result, error) {
	one := *d
	one.Heads = d.Heads[h : h+1]
	var r result
	for i, set := range sets {
		var scores []float64
		var right, labelled int
		for block := range slices.Chunk(set.Features(), 4096*set.D) {
			verdicts, err := one.Verdicts(ctx, block)
			if err != nil {
				return r, err
			}
			for _, v := range verdicts {
				if label := set.Labels()[len(scores)]; label >= 0 {
					labelled++
					if set.Classes[label] == v.Class {
						right++
					}
				}
				scores = append(scores, v.Score)
			}
		}
		r.scores = append(r.scores, scores)
		if i < 2 {
			if labelled == 0 {
				return r, errors.New("the sets to measure accuracy on have no labels")
			}
			r.metrics = append(r.metrics, float64(right)/float64(labelled))
			continue
		}
		m := metrics.Evaluate(r.scores[1], scores)
		r.metrics = append(r.metrics, m.AUROC, m.FPR95)
	}
	return r, nil
}

// published are the results of the paper's table and text, and of a PyTorch version
// with three seeds: accuracy on train and test, and AUROC and FPR@95 for
// Fashion-MNIST and KMNIST.
var published = map[string][]string{
	"paper":   {">.995", ">.975", ".95", ".32", ".95", ".35"},
	"PyTorch": {".995–.998", ".977–.979", ".903–.934", ".31–.46", ".944–.977", ".09–.19"},
}

// writeTable writes a line per seed, mean and deviation, and the published results.
func writeTable(w io.Writer, seeds []uint64, names []string, results []result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "seed\ttrain\ttest\t")
	for _, name := range names[2:] {
		fmt.Fprintf(t, "%s AUROC\tFPR@95\t", name)
	}
	fmt.Fprintln(t)
	for i, r := range results {
		fmt.Fprint(t, seeds[i])
		for _, v := range r.metrics {
			fmt.Fprintf(t, "\t%.4f", v)
		}
		fmt.Fprintln(t, "\t")
	}
	fmt.Fprint(t, "mean ± std")
	for c := range results[0].metrics {
		var sum, squares float64
		for _, r := range results {
			sum += r.metrics[c]
		}
		mean := sum / float64(len(results))
		for _, r := range results {
			squares += (r.metrics[c] - mean) * (r.metrics[c] - mean)
		}
		fmt.Fprintf(t, "\t%.4f ± %.4f", mean, math.Sqrt(squares/float64(len(results))))
	}
	fmt.Fprintln(t, "\t")
	if slices.Equal(names[2:], []string{"Fashion-MNIST", "KMNIST"}) {
		for _, who := range []string{"paper", "PyTorch"} {
			fmt.Fprintf(t, "%s\t%s\t\n", who, strings.Join(published[who], "\t"))
		}
	}
	return t.Flush()
}

// drawFigure draws a head's confidence on each set, and the logarithm of it, the
// score, which shows the differences between confidences near 0.
func drawFigure(names []string, scores [][]float64, files ...string) error {
	const bins, lowest = 50, -6
	confidences, logs := make([]figures.Series, len(names)), make([]figures.Series, len(names))
	for i, name := range names {
		logs[i] = figures.Series{Name: name, Values: scores[i]}
		confidences[i].Name = name
		for _, s := range scores[i] {
			confidences[i].Values = append(confidences[i].Values, math.Exp(s))
		}
	}
	left, err := figures.Histogram("Confidence in the likeliest class", "max φ", 0, 1, bins, confidences...)
	if err != nil {
		return err
	}
	right, err := figures.Histogram("Its logarithm, the score", "max log φ (lower ones at "+strconv.Itoa(lowest)+")", lowest, 0, bins, logs...)
	if err != nil {
		return err
	}
	left.Legend.XOffs = -4 * vg.Centimeter // not over the bar at 1
	right.Legend.Left = true
	return figures.Save(12*vg.Centimeter, 10*vg.Centimeter, []*plot.Plot{left, right}, files...)
}
