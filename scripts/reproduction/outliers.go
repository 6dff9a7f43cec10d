package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// What known outliers gain on others of their kind, on near and on far images, with and
// without them.
const knownOutliers = "outliers"

const (
	outlierRows = 150 // images of a class that are trained on, all parts together
	mostKnown   = 200 // outliers
)

// tested is a set of out-of-distribution images.
type tested struct {
	name string // "kind": others of the known outliers' classes; "near", "far"
	x    []float32
}

// exposed is a task with outliers that are known, in a random order.
type exposed struct {
	task, kind string
	set        func() (*features.Set, error) // to train on; training closes it
	d          int
	known      []float32 // rows of its classes that nothing is trained on
	outliers   []float32
	tests      []tested
}

// shuffled returns rows of length d in an order that is always the same and mixes classes.
func shuffled(x []float32, d int) []float32 {
	n := len(x) / d
	step := max(1, n*618/1000) | 1
	for gcd(step, n) != 1 {
		step += 2
	}
	out := make([]float32, 0, len(x))
	for i := range n {
		at := i * step % n
		out = append(out, x[at*d:(at+1)*d]...)
	}
	return out
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// exposures returns the tasks of a backbone: ten classes of CIFAR-10, with known outliers
// from every second class of CIFAR-100, or from one of them; and superclasses of CIFAR-100
// without their last class, with known outliers from every second other superclass, or of
// that class. A draw chooses the rows to train on and the outliers.
func (e *experiment) exposures(backbone string, only []string, draw int) (all []exposed, err error) {
	pools, err := e.pools(backbone, only)
	if err != nil {
		return nil, err
	}
	open := func(name string) []float32 {
		s, err2 := features.Open(context.Background(), filepath.Join(e.features, backbone, name))
		err = cmp.Or(err, err2)
		if err2 != nil {
			return nil
		}
		return s.Block(0, s.N)
	}
	hundred, err := features.Open(context.Background(), filepath.Join(e.features, backbone, "cifar100-train"))
	if err != nil {
		return nil, err
	}
	of := func(classes []string, at, n int) []float32 {
		x, _ := rowsOf(hundred, classes, "", at, n)
		return x
	}
	var supers []*pool
	for _, p := range pools {
		if p.only != nil {
			supers = append(supers, p)
		}
	}
	for _, p := range pools {
		classes := p.only
		if classes == nil {
			classes = p.train.Classes
		}
		var even, odd []string // classes of outliers that are known, and of others
		var tests, kind []tested
		var own []float32
		switch {
		case p.only != nil:
			last := classes[len(classes)-1]
			classes = classes[:len(classes)-1]
			for i, other := range supers {
				if other != p && i%2 == 0 {
					even = append(even, other.only...)
				} else if other != p {
					odd = append(odd, other.only...)
				}
			}
			tests = []tested{{"near", of([]string{last}, 100, 100)}, {"far", of(odd, 0, 10)}}
			own, kind = of([]string{last}, 0, 100), []tested{{"kind", tests[0].x}, tests[1]}
		case p.task == "CIFAR-10":
			for i, name := range hundred.Classes {
				if i%2 == 0 {
					even = append(even, name)
				} else {
					odd = append(odd, name)
				}
			}
			tests = []tested{{"near", append(of(odd, 0, 20), open("tin")...)}, {"far", append(open("texture"), open("scenes")...)}}
			own, kind = of(even[:1], 0, 100), append([]tested{{"kind", of(even[:1], 100, 100)}}, tests...)
		default:
			continue
		}
		from := draw * outlierRows
		if p.fresh == nil { // the rows that are left are fresh: three draws leave others
			from = draw * 50 % (p.train.N / len(p.train.Classes))
		}
		x, labels := rowsOf(p.train, classes, "", from, outlierRows)
		have := p.train.N / len(p.train.Classes)
		more, labelled := rowsOf(p.train, classes, "", 0, max(0, from+outlierRows-have))
		x, labels = append(x, more...), append(labels, labelled...)
		set := func() (*features.Set, error) { return features.InMemory(x, p.train.D, labels, classes) }
		fresh, at, n := p.fresh, 0, 1000
		if fresh == nil {
			fresh, at, n = p.train, (from+outlierRows)%have, have-outlierRows
		}
		known, _ := rowsOf(fresh, classes, "", at, n)
		task := p.task
		if p.only != nil {
			task = "superclasses"
		}
		drawn := func(x []float32) []float32 { // a third of them on for each draw
			at := draw * (len(x) / p.train.D) / 3 * p.train.D % len(x)
			return slices.Clone(slices.Concat(x[at:], x[:at])[:min(len(x), mostKnown*p.train.D)])
		}
		mixed := append([]tested{{"kind", of(even, 100, 20)}}, tests...)
		all = append(all, exposed{task, "of many classes", set, p.train.D, known, drawn(shuffled(of(even, 0, 100), p.train.D)), mixed},
			exposed{task, "of one class", set, p.train.D, known, drawn(own), kind})
	}
	return all, err
}

// expose trains with the first n of the known outliers, 0 for none.
func (x *exposed) expose(ctx context.Context, opts pipeline.TrainOptions, n int) (auroc, caught map[string]float64, flagged float64, a *detector.AssessedOutliers, err error) {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return nil, nil, 0, nil, err
	}
	defer os.RemoveAll(dir)
	d := x.d
	if opts.Rows, err = x.set(); err != nil {
		return nil, nil, 0, nil, err
	}
	if n > 0 {
		opts.Outliers = []string{dir}
		if err := npy.WriteFile(filepath.Join(dir, "features.npy"), x.outliers[:n*d], n, d); err != nil {
			return nil, nil, 0, nil, err
		}
	}
	trained, result, err := pipeline.Train(ctx, opts)
	if err != nil {
		return nil, nil, 0, nil, err
	}
	score := func(rows []float32) (all []float64, flagged float64) {
		verdicts, _ := trained.Verdicts(context.Background(), rows) // fails only when cancelled
		for _, v := range verdicts {
			all = append(all, v.Score)
			if v.OOD {
				flagged += float64(d) / float64(len(rows))
			}
		}
		return all, flagged
	}
	known, flagged := score(x.known)
	auroc, caught = map[string]float64{}, map[string]float64{}
	for _, test := range x.tests {
		scores, share := score(test.x)
		auroc[test.name], caught[test.name] = metrics.AUROC(known, scores), share
	}
	if result.Assessment != nil {
		a = result.Assessment.Outliers
	}
	return auroc, caught, flagged, a, nil
}

// runOutliers measures all tasks and prints means.
func (e *experiment) runOutliers(ctx context.Context, w io.Writer, models []string, seeds string, epochs int, only []string) error {
	if err := e.readTraining(seeds, epochs); err != nil {
		return err
	}
	if only == nil {
		only = []string{"cifar10", "super"}
	}
	type cell struct{ sum, n float64 }
	fmt.Fprint(w, "| features | task | known outliers | AUROC of their kind | near | far | caught of their kind | near | far | false alarms | dropped | AUROC on outliers, classes left out: expected gain |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, m := range models {
		var tasks []exposed
		for _, seed := range e.train[false].Seeds {
			of, err := e.exposures(m, only, int(seed))
			if err != nil {
				return err
			}
			tasks = append(tasks, of...)
		}
		for _, task := range []string{"CIFAR-10", "superclasses"} {
			for _, kind := range []string{"of many classes", "of one class"} {
				for _, n := range []int{0, 10, 50, mostKnown} {
					cells := map[string]*cell{}
					add := func(name string, v float64) {
						if cells[name] == nil {
							cells[name] = &cell{}
						}
						cells[name].sum += 100 * v
						cells[name].n++
					}
					for _, x := range tasks {
						if x.task != task || x.kind != kind || n*x.d > len(x.outliers) {
							continue
						}
						opts := e.train[false]
						opts.Seeds = opts.Seeds[:1]
						auroc, caught, flagged, a, err := x.expose(ctx, opts, n)
						if err != nil {
							return fmt.Errorf("%s, %s, %d outliers %s: %w", m, task, n, kind, err)
						}
						for name, v := range auroc {
							add("auroc "+name, v)
							add("caught "+name, caught[name])
						}
						add("flagged", flagged)
						if a != nil {
							add("dropped", map[bool]float64{true: 1}[a.Weight == 0])
							if a.Weight > 0 {
								add("outliers", a.Outliers.AUROC-a.Outliers.AUROCWithout)
								add("classes", a.Classes.AUROC-a.Classes.AUROCWithout)
							}
						}
						fmt.Fprintf(e.stderr, "%s, %s, %d outliers %s: %v %v\n", m, task, n, kind, auroc, caught)
					}
					if len(cells) == 0 {
						continue
					}
					mean := func(name, format string) string {
						if c := cells[name]; c != nil {
							return fmt.Sprintf(format, c.sum/c.n)
						}
						return "–"
					}
					fmt.Fprintf(w, "| %s | %s | %d %s", m, task, n, kind)
					for _, name := range []string{"auroc kind", "auroc near", "auroc far"} {
						fmt.Fprintf(w, " | %s", mean(name, "%.1f"))
					}
					for _, name := range []string{"caught kind", "caught near", "caught far"} {
						fmt.Fprintf(w, " | %s", mean(name, "%.0f"))
					}
					fmt.Fprintf(w, " | %s | %s | %s, %s |\n", mean("flagged", "%.1f"), mean("dropped", "%.0f%%"), mean("outliers", "%+.1f"), mean("classes", "%+.1f"))
				}
			}
		}
	}
	return nil
}
