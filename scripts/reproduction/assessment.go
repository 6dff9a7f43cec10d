package main

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// What training expects of new classes, and what is true: each class is left out of
// everything in turn.
const assessment = "assessment"

var assessedSizes = []int{20, 60, 150, 1000}

// audited is a training without a class, and what became of that class. Its JSON is a
// line of the file that an interrupted run goes on from.
type audited struct {
	Backbone, Task, Class string
	Rows                  int // of each class, all parts together
	Draw                  int // which rows: the Draw-th block of so many, by the seed

	Expected, True float64 // AUROC
	Low, High      float64 // interval of Expected
	// Caught at 5% false alarms: expected; in the mean over thresholds that as many calibration
	// images would set; by the detector's own threshold. 0 where they are too few for one.
	Caught, TrueCaught, TrueAtThreshold float64
	Caught1, True1                      float64 // likewise at 1%
	Flagged                             float64 // fresh rows of known classes
}

// name tells trainings apart.
func (a audited) name() string {
	return fmt.Sprint(a.Backbone, a.Task, a.Class, a.Rows, a.Draw)
}

// pool is a data set of which each class is left out.
type pool struct {
	task  string
	train *features.Set
	fresh *features.Set // of the same classes; nil: rows of train that are not used
	only  []string      // classes; nil for all
}

// rowsOf returns up to n rows of each class of a pool, from the at-th on, as a set in
// memory; classes in order, without one.
func rowsOf(s *features.Set, classes []string, but string, at, n int) ([]float32, []int64) {
	var x []float32
	var labels []int64
	seen := map[int64]int{}
	number := map[int64]int64{}
	k := int64(0)
	for _, name := range classes {
		if name != but {
			number[int64(slices.Index(s.Classes, name))] = k
			k++
		}
	}
	for i, y := range s.Labels() {
		if own, ok := number[y]; ok {
			if seen[y]++; seen[y] > at && seen[y] <= at+n {
				x, labels = append(x, s.Row(i)...), append(labels, own)
			}
		}
	}
	return x, labels
}

// leaveOut trains without a class and judges it.
func (p *pool) leaveOut(ctx context.Context, opts pipeline.TrainOptions, class string, rows int) (a audited, err error) {
	classes := p.only
	if classes == nil {
		classes = p.train.Classes
	}
	left := slices.DeleteFunc(slices.Clone(classes), func(c string) bool { return c == class })
	from := int(opts.Seeds[0]) * rows
	x, labels := rowsOf(p.train, classes, class, from, rows)
	set, err := features.InMemory(x, p.train.D, labels, left)
	if err != nil {
		return a, err
	}
	opts.Rows = set
	d, result, err := pipeline.Train(ctx, opts)
	if err != nil {
		return a, err
	}
	var known []float32
	if p.fresh != nil {
		known, _ = rowsOf(p.fresh, classes, class, 0, 1000)
	} else {
		known, _ = rowsOf(p.train, classes, class, 0, from)
		after, _ := rowsOf(p.train, classes, class, from+rows, 1000)
		known = append(known, after...)
	}
	gone, _ := rowsOf(p.train, []string{class}, "", 0, 1000)
	scores := func(x []float32) (all []float64, flagged float64, err error) {
		verdicts, err := d.Verdicts(ctx, x)
		for _, v := range verdicts {
			all = append(all, v.Score)
			if v.OOD {
				flagged += 1 / float64(len(verdicts))
			}
		}
		return all, flagged, err
	}
	of, flagged, err := scores(known)
	if err != nil {
		return a, err
	}
	out, caught, err := scores(gone)
	if err != nil {
		return a, err
	}
	a = audited{Task: p.task, Class: class, Rows: rows, Draw: int(opts.Seeds[0]), True: metrics.AUROC(of, out), TrueAtThreshold: caught, Flagged: flagged}
	slices.Sort(of)
	below := func(share float64) (n float64) {
		calibrate := len(d.CalibrationScores)
		rank := float64(detector.Rank(calibrate, 1-share))
		if rank == 0 {
			return 0
		}
		lowest := distuv.Beta{Alpha: rank, Beta: float64(calibrate) + 1 - rank} // the share of known images below the threshold
		for _, v := range out {
			at, _ := slices.BinarySearch(of, v)
			n += lowest.Survival((float64(at)+0.5)/float64(len(of)+1)) / float64(len(out))
		}
		return n
	}
	a.TrueCaught, a.True1 = below(0.05), below(0.01)
	if r := result.Assessment; r != nil {
		a.Expected, a.Caught = r.AUROC, r.Caught
		if r.Interval != nil {
			a.Low, a.High = r.Interval[0], r.Interval[1]
		}
		a.Caught1, _ = r.CaughtAt(0.01)
	} else {
		a.Expected = -1
	}
	return a, nil
}

// runAssessment measures all tasks and prints means.
func (e *experiment) runAssessment(ctx context.Context, w io.Writer, models []string, seeds string, epochs int, only []string) error {
	if err := e.readTraining(seeds, epochs); err != nil {
		return err
	}
	done := map[string]bool{}
	file := filepath.Join(e.out, assessment+".jsonl")
	if err := os.MkdirAll(e.out, 0o777); err != nil {
		return err
	}
	var all []audited
	if f, err := os.Open(file); err == nil {
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var a audited
			if json.Unmarshal(lines.Bytes(), &a) == nil {
				all = append(all, a)
				done[a.name()] = true
			}
		}
		f.Close()
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, m := range models {
		pools, err := e.pools(m, only)
		if err != nil {
			return err
		}
		for _, p := range pools {
			classes := p.only
			if classes == nil {
				classes = p.train.Classes
			}
			have := len(p.train.Labels()) / len(p.train.Classes)
			for _, rows := range assessedSizes {
				for _, seed := range e.train[false].Seeds {
					if to := (int(seed) + 1) * rows; to > have || p.fresh == nil && rows == have {
						continue
					}
					opts := e.train[false]
					opts.Seeds = []uint64{seed}
					for _, class := range classes {
						if done[audited{Backbone: m, Task: p.task, Class: class, Rows: rows, Draw: int(seed)}.name()] {
							continue
						}
						a, err := p.leaveOut(ctx, opts, class, rows)
						if err != nil {
							return fmt.Errorf("%s, %s without %s: %w", m, p.task, class, err)
						}
						a.Backbone = m
						all = append(all, a)
						text, err := json.Marshal(a)
						if err != nil {
							return err
						}
						fmt.Fprintf(e.stderr, "%s\n", text)
						fmt.Fprintf(f, "%s\n", text)
					}
				}
			}
		}
	}
	printAssessment(w, all)
	return nil
}

// pools opens the feature sets cifar10-train, cifar10-test, imagenette-train,
// imagenette-val and cifar100-train of a backbone, which --features has.
func (e *experiment) pools(backbone string, only []string) (pools []*pool, err error) {
	open := func(name string) *features.Set {
		s, err2 := features.Open(context.Background(), filepath.Join(e.features, backbone, name))
		if err2 != nil && err == nil {
			err = err2
		}
		return s
	}
	want := func(name string) bool { return only == nil || slices.Contains(only, name) }
	if want("cifar10") {
		pools = append(pools, &pool{task: "CIFAR-10", train: open("cifar10-train"), fresh: open("cifar10-test")})
	}
	if want("imagenette") {
		pools = append(pools, &pool{task: "Imagenette", train: open("imagenette-train"), fresh: open("imagenette-val")})
	}
	if only != nil && want("cifar100") {
		pools = append(pools, &pool{task: "CIFAR-100", train: open("cifar100-train")})
	}
	if want("super") {
		text, err := os.ReadFile(filepath.Join(e.data, "images", "cifar100-superclasses.csv"))
		if err != nil {
			return nil, err
		}
		records, err := csv.NewReader(strings.NewReader(string(text))).ReadAll()
		if err != nil {
			return nil, err
		}
		members := map[string][]string{}
		var names []string
		for _, r := range records[1:] {
			if members[r[0]] == nil {
				names = append(names, r[0])
			}
			members[r[0]] = append(members[r[0]], r[1])
		}
		slices.Sort(names)
		s := open("cifar100-train")
		for _, name := range names {
			pools = append(pools, &pool{task: name, train: s, only: members[name]})
		}
	}
	return pools, err
}

// printAssessment prints means over the classes that were left out.
func printAssessment(w io.Writer, all []audited) {
	type key struct {
		backbone, task string
		rows           int
	}
	var keys []key
	byKey := map[key][]audited{}
	for _, a := range all {
		if a.Expected < 0 {
			continue // there was no assessment
		}
		k := key{a.Backbone, a.Task, a.Rows}
		if k.task != "CIFAR-10" && k.task != "Imagenette" {
			k.task = "superclasses"
		}
		if byKey[k] == nil {
			keys = append(keys, k)
		}
		byKey[k] = append(byKey[k], a)
	}
	fmt.Fprint(w, "| features | task | rows of a class | classes left out | AUROC expected; true | true in the interval | caught at 5% expected; true; by the threshold | flagged |\n|---|---|---|---|---|---|---|---|\n")
	for _, k := range keys {
		group := byKey[k]
		mean := func(of func(audited) float64) (sum float64) {
			for _, a := range group {
				sum += 100 * of(a) / float64(len(group))
			}
			return sum
		}
		inside := mean(func(a audited) float64 {
			if a.Low <= a.True && a.True <= a.High {
				return 1
			}
			return 0
		})
		caught := "–; –; – | –"
		if slices.ContainsFunc(group, func(a audited) bool { return a.Caught > 0 }) {
			caught = fmt.Sprintf("%.0f; %.0f; %.0f | %.1f%%", mean(func(a audited) float64 { return a.Caught }), mean(func(a audited) float64 { return a.TrueCaught }),
				mean(func(a audited) float64 { return a.TrueAtThreshold }), mean(func(a audited) float64 { return a.Flagged }))
		}
		fmt.Fprintf(w, "| %s | %s | %d | %d | %.1f; %.1f | %.0f%% | %s |\n", k.backbone, k.task, k.rows, len(group),
			mean(func(a audited) float64 { return a.Expected }), mean(func(a audited) float64 { return a.True }), inside, caught)
	}
}
