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

// Evaluation is what Evaluate measured, and on what: all that a page shows. Only Results
// is required.
type Evaluation struct {
	// Results are those that metrics.Summarise returns: for every method also the seed
	// "mean" and, with several seeds, "std". Methods, groups and sets appear in
	// the order of their first result.
	Results []metrics.Measurement
	// Intervals are confidence intervals of the means.
	Intervals []Interval
	// Differences are those of every two methods, each pair once; nil without intervals.
	Differences []Difference
	// Own is the method that the detector judges by, or would by default; "" if it is
	// not among the methods.
	Own string
	// Confidence says what the intervals are, such as "95% of 1,000 resamples".
	Confidence string

	ID  images.Set   // the in-distribution test images
	OOD []images.Set // the OOD images, with the names that Results has
	// Labels [ID.N] are the classes of the test images, −1 for none; nil if
	// they are not known.
	Labels []int64
	// Classes are the names of the training classes.
	Classes []string
	// Runs are the scores.
	Runs []Run

	Train *images.Set // the training images; nil if they are not known
	// Ablation are the results of an ablation in the same folder. Methods named NAME-1,
	// NAME-2, … are heads of so many layers.
	Ablation []metrics.Measurement
	// Against is an earlier evaluation of the same images, to compare with; nil for none.
	Against *Earlier

	Commands []string // to repeat the evaluation
	Facts    []Fact   // versions, seeds, fingerprints, dates, …
}

// Run holds the scores of a method with one seed.
type Run struct {
	Method, Seed string
	// Scores returns the scores of a set of OOD images, or of the in-distribution
	// test set for the dataset "id", one for each image. It is called several
	// times, so that a caller can read them from files, and from several
	// goroutines.
	Scores func(dataset string) ([]float64, error)
	// Predicted is the class of each image of the sets that Scores knows: an index
	// into Classes. Sets may be missing.
	Predicted map[string][]int
	// Threshold, unless nil, is the one of the detector that gave the scores: it flags
	// images with lower ones.
	Threshold *float64
}

// Interval holds the confidence intervals of a method's metrics.
type Interval struct {
	Method, Group string
	Dataset       string // a set's name, or "mean" over the group
	metrics.Intervals
}

// Fact is a line of what is needed to repeat the evaluation.
type Fact struct{ Name, Value string }

// DiscoveryBound says of the images that were judged together with the lowest scores how many
// are known ones at most. All bounds hold together with a confidence of 95%.
type DiscoveryBound struct {
	Together float64 `json:"together"` // those with at most this score
	Found    int     `json:"found"`    // how many these are, without copies
	Known    int     `json:"known"`    // at most
}

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

// clearReport removes what an earlier run has left in the folder of a report,
// which must not stand beside what this one writes, and nothing else. Results
// that Evaluate did not write are an error.
func clearReport(dir string) error {
	if err := metrics.RemoveResults(filepath.Join(dir, "results.csv")); err != nil {
		return err
	}
	methods, err := os.ReadDir(filepath.Join(dir, "scores"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("report folder: %w", err)
	}
	for _, method := range methods {
		if _, _, err := detector.ScoreParts(method.Name()); err != nil {
			continue // not ours
		}
		scores, err := filepath.Glob(filepath.Join(dir, "scores", method.Name(), "*", "*.npy"))
		if err != nil {
			return fmt.Errorf("report folder: %w", err)
		}
		for _, file := range scores {
			if err := os.Remove(file); err != nil {
				return fmt.Errorf("report folder: %w", err)
			}
			_ = os.Remove(filepath.Dir(file)) // if that was the last
		}
	}
	return nil
}
