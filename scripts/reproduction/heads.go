package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"mlrbfn/pipeline"
	"mlrbfn/report"
)

// heads names the comparison of the default head with everything else, on the
// stand-ins of these data sets.
const heads = "heads"

var headsOn = []string{"cifar10", "imagenet200"}

// compareHeads prints near and far AUROC and the accuracy of the default head, the
// paper's head and post-hoc scores, a line for each backbone and data set.
func (e *experiment) compareHeads(w io.Writer) error {
	_, standIns := grids()
	fmt.Fprint(w, "| features | trained on | default head | ensemble | best single score | linear head, MSP | paper's head |\n|---|---|---|---|---|---|---|\n")
	for _, key := range headsOn {
		all, err := studies(e.out, key+"-stand-in", standIns[key].title)
		if err != nil {
			return err
		}
		lines := map[string][]report.Line{} // by backbone
		for _, s := range report.PaperTable(report.AUROC, all).Sections {
			for _, l := range s.Lines {
				lines[l.Backbone] = append(lines[l.Backbone], l)
			}
		}
		for _, s := range all {
			of := func(method string) report.Cell {
				for _, l := range lines[s.Backbone] {
					if l.Method == method {
						return l.Cells[0]
					}
				}
				return nothing
			}
			best, name := nothing, "–"
			for _, l := range lines[s.Backbone] {
				if c := l.Cells[0]; single(l.Method) && (math.IsNaN(sum(best)) || sum(c) > sum(best)) {
					best, name = c, l.Method
				}
			}
			fmt.Fprintf(w, "| %s | %s | %s | %s | %s %s | %s | %s |\n", s.Backbone, s.Benchmark,
				brief(of(pipeline.JoinedScore)), brief(of("ensemble")), name, brief(best), brief(of("msp")), brief(of(pipeline.JoinedScore+asPublished.suffix)))
		}
	}
	_, err := fmt.Fprintf(w, `
Near / far AUROC, accuracy; in per cent, means %s
The best single score is the post-hoc one with the highest near + far on these very
test images, chosen afterwards; scores read a linear head that is trained on the features.
`, e.trained)
	return err
}

// single tells whether a method is a single post-hoc score.
func single(method string) bool {
	return !strings.HasPrefix(method, pipeline.JoinedScore) && !strings.HasPrefix(method, "ensemble") && !slices.ContainsFunc(contests, func(c contest) bool {
		return c.suffix != "" && strings.HasSuffix(method, c.suffix)
	})
}

func sum(c report.Cell) float64 { return c.Near.Mean + c.Far.Mean }

func brief(c report.Cell) string {
	if math.IsNaN(sum(c)) {
		return "–"
	}
	return fmt.Sprintf("%.1f / %.1f, %.1f", 100*c.Near.Mean, 100*c.Far.Mean, 100*c.Acc.Mean)
}
