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

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// report writes what the folder needs to be compared with, and has the report written.
func (e *evaluation) report(ctx context.Context, results []metrics.Measurement) error {
	id := e.id.Sets[0]
	r := &Evaluation{
		Results: results, Own: e.own(), Classes: e.train.Classes, Labels: e.idLabels, Runs: e.runs, Commands: e.opts.Commands, Against: e.earlier,
		Facts: append(slices.Clone(e.opts.Facts),
			Fact{Name: "training features", Value: strings.Join(e.train.Dirs, ", ")},
			Fact{Name: "seeds", Value: strings.Trim(fmt.Sprint(e.train.Options.Seeds), "[]")},
		),
	}
	if id.Model != "" { // a set made elsewhere does not know it
		r.Facts = append(r.Facts,
			Fact{Name: "backbone", Value: fmt.Sprintf("%s, output %s", filepath.Base(id.Model), id.Output)},
			Fact{Name: "SHA-256 of the backbone", Value: id.ModelSHA256})
	}
	if e.reliable != nil {
		r.Facts = append(r.Facts, Fact{Name: "confidence", Value: e.reliable.String()})
	}
	for _, l := range e.leaked {
		r.Facts = append(r.Facts, Fact{Name: "images in two sets", Value: l.String()})
	}
	var err error
	if r.ID, r.OOD, err = e.tested(); err != nil {
		return err
	}
	if err := r.Save(e.opts.Out); err != nil {
		return err
	}
	r.Ablation, err = metrics.ReadResults(filepath.Join(e.opts.Out, "ablation.csv"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	train, err := images.FeatureSet(base(e.train.Dirs[0]), "train", e.opts.ImageRoots, e.train.Sets...)
	if err != nil {
		return err
	}
	r.Train = &train
	if n := e.opts.Bootstrap; n > 0 {
		r.Confidence = fmt.Sprintf("95%% of %d resamples", n)
		if r.Intervals, r.Differences, err = e.intervals(ctx, n, results); err != nil {
			return err
		}
	}
	if err := r.saveDifferences(e.opts.Out); err != nil {
		return err
	}
	if e.opts.Report == nil {
		return nil
	}
	return e.opts.Report(r)
}

func base(dir string) string { return filepath.Base(filepath.Clean(dir)) }

// tested returns the sets that are measured on.
func (e *evaluation) tested() (id images.Set, ood []images.Set, err error) {
	if id, err = images.FeatureSet(base(e.opts.ID), "", e.opts.ImageRoots, e.id.Sets[0]); err != nil {
		return id, nil, err
	}
	for i, o := range e.opts.OOD {
		set, err := images.FeatureSet(o.Name, o.Group, e.opts.ImageRoots, e.ood[i].Sets[0])
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
	if e.earlier, err = ReadEarlier(e.opts.Against); err != nil {
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

// own is the method that the detector judges by, or would by default, if it was measured.
func (e *evaluation) own() string {
	name := detector.JoinedScore
	if e.opts.Detector != nil {
		name = e.opts.Detector.ScoreName()
	}
	if !slices.Contains(e.opts.Methods, name) {
		return ""
	}
	return name
}

// intervals are those of every method on every set and group, and of the difference of every two methods.
func (e *evaluation) intervals(ctx context.Context, resamples int, results []metrics.Measurement) (all []Interval, differences []Difference, err error) {
	found := Evaluation{Results: results}
	for _, group := range []string{metrics.Near, metrics.Far} {
		var names []string
		for _, o := range e.opts.OOD {
			if o.Group == group {
				names = append(names, o.Name)
			}
		}
		if len(names) == 0 {
			continue
		}
		bootstrap := metrics.NewBootstrap(resamples, 0)
		for _, method := range e.opts.Methods {
			var runs []metrics.Scores
			for _, run := range e.runs {
				if run.Method != method {
					continue
				}
				var s metrics.Scores
				if s.ID, err = run.Scores("id"); err != nil {
					return nil, nil, err
				}
				for _, name := range names {
					ood, err := run.Scores(name)
					if err != nil {
						return nil, nil, err
					}
					s.OOD = append(s.OOD, ood)
				}
				runs = append(runs, s)
			}
			bootstrap.Add(runs...)
		}
		estimates, err := bootstrap.Intervals(ctx)
		if err != nil {
			return nil, nil, err
		}
		_, auroc := found.means(group)
		for i, method := range e.opts.Methods {
			for j, other := range e.opts.Methods[:i] {
				differences = append(differences, Difference{method, other, group, auroc[method] - auroc[other], bootstrap.Difference(i, j).Mean.AUROC})
			}
			for s, name := range append(names, "mean") {
				all = append(all, Interval{Method: method, Group: group, Dataset: name, Intervals: append(estimates[i].Each, estimates[i].Mean)[s]})
			}
		}
	}
	return all, differences, nil
}
