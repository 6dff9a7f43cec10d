package evaluation

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/report"
)

// writePage writes report.html and its pictures, with the ablation where there is
// one in the folder, and the paper's tables.
func (e *evaluation) writePage(ctx context.Context, results []report.Measurement) error {
	id := e.id.Sets[0]
	r := report.Report{
		Results: results, Published: e.opts.Published, Classes: e.train.Classes,
		Labels: e.idLabels, Runs: e.runs, Commands: e.opts.Commands, Against: e.earlier,
		Facts: append(slices.Clone(e.opts.Facts),
			report.Fact{Name: "training features", Value: strings.Join(e.train.Dirs, ", ")},
			report.Fact{Name: "seeds", Value: strings.Trim(fmt.Sprint(e.train.Options.Seeds), "[]")},
		),
	}
	if id.Model != "" { // a set made elsewhere does not know it
		r.Facts = append(r.Facts,
			report.Fact{Name: "backbone", Value: fmt.Sprintf("%s, output %s", filepath.Base(id.Model), id.Output)},
			report.Fact{Name: "SHA-256 of the backbone", Value: id.ModelSHA256})
	}
	if e.reliable != nil {
		r.Facts = append(r.Facts, report.Fact{Name: "confidence", Value: e.reliable.String()})
	}
	for _, l := range e.leaked {
		r.Facts = append(r.Facts, report.Fact{Name: "images in two sets", Value: l.String()})
	}
	var err error
	r.Ablation, err = report.ReadResults(filepath.Join(e.opts.Out, "ablation.csv"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	train, err := report.FeatureSet(base(e.train.Dirs[0]), "train", e.opts.ImageRoots, e.train.Sets...)
	if err != nil {
		return err
	}
	r.Train = &train
	if r.ID, r.OOD, err = e.tested(); err != nil {
		return err
	}
	if n := e.opts.Bootstrap; n > 0 {
		r.Confidence = fmt.Sprintf("95%% of %d resamples", n)
		if r.Intervals, err = e.intervals(ctx, n); err != nil {
			return err
		}
	}
	return errors.Join(report.Write(e.opts.Out, r),
		report.WriteTables(e.opts.Out, []report.Study{{Benchmark: r.ID.Name, Results: r.Results}}, r.Published))
}

func base(dir string) string { return filepath.Base(filepath.Clean(dir)) }

// tested returns the sets that are measured on.
func (e *evaluation) tested() (id report.Set, ood []report.Set, err error) {
	if id, err = report.FeatureSet(base(e.opts.ID), "", e.opts.ImageRoots, e.id.Sets[0]); err != nil {
		return id, nil, err
	}
	for i, o := range e.opts.OOD {
		set, err := report.FeatureSet(o.Name, o.Group, e.opts.ImageRoots, e.ood[i].Sets[0])
		if err != nil {
			return id, nil, err
		}
		ood = append(ood, set)
	}
	return id, ood, nil
}

// readEarlier reads the report to compare with, if there is one.
func (e *evaluation) readEarlier() (err error) {
	if e.opts.Against == "" {
		return nil
	}
	if e.earlier, err = report.ReadEarlier(e.opts.Against); err != nil {
		return err
	}
	id, ood, err := e.tested()
	if err != nil {
		return err
	}
	return e.earlier.Check(id, ood)
}

func sameFolder(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// intervals are those of every method on every set and group.
func (e *evaluation) intervals(ctx context.Context, resamples int) (all []report.Interval, err error) {
	for _, group := range []string{Near, Far} {
		var names []string
		for _, o := range e.opts.OOD {
			if o.Group == group {
				names = append(names, o.Name)
			}
		}
		if len(names) == 0 {
			continue
		}
		bootstrap := metrics.NewBootstrap(metrics.BootstrapOptions{Resamples: resamples})
		for _, method := range e.opts.Methods {
			var runs []metrics.Scores
			for _, run := range e.runs {
				if run.Method != method {
					continue
				}
				var s metrics.Scores
				if s.ID, err = run.Scores("id"); err != nil {
					return nil, err
				}
				for _, name := range names {
					ood, err := run.Scores(name)
					if err != nil {
						return nil, err
					}
					s.OOD = append(s.OOD, ood)
				}
				runs = append(runs, s)
			}
			bootstrap.Add(runs...)
		}
		estimates, err := bootstrap.Intervals(ctx)
		if err != nil {
			return nil, err
		}
		for i, method := range e.opts.Methods {
			for s, name := range append(names, "mean") {
				all = append(all, report.Interval{Method: method, Group: group, Dataset: name, Intervals: append(estimates[i].Each, estimates[i].Mean)[s]})
			}
		}
	}
	return all, nil
}
