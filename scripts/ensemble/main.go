// Ensemble compares ways to sum scores. For each task and seed it fits scores on
// nine tenths of the training images, standardises them on the last tenth in
// several ways, sums them, and prints how well the sums detect out-of-distribution
// (OOD) images: the table of the ensemble in docs/research.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"maps"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// data names the feature sets that a backbone is measured on.
type data struct {
	name, train, id string
	near, far       []string
}

var (
	cifar      = data{"CIFAR-10", "cifar10_train", "cifar10_test", []string{"cifar100", "tin"}, []string{"texture", "scenes", "streetchars"}}
	imagenette = data{"Imagenette", "imagenette_train", "imagenette_val", []string{"imagewoof"}, []string{"texture", "scenes"}}
)

var backbones = []struct {
	name string
	on   []data
}{
	{"vit-tiny-p16", []data{cifar, imagenette}},
	{"efficientnet-lite0", []data{cifar, imagenette}},
	{"mobilenetv2", []data{cifar, imagenette}},
	{"resnet56-cifar10", []data{cifar}},
	{"densenet100-cifar10", []data{cifar}},
}

// single are the scores that an ensemble is compared with: all except one that
// often cannot be fitted.
var single = slices.DeleteFunc(append([]string{pipeline.HeadScore}, posthoc.Names()...), func(s string) bool { return s == "temperature" })

// ensembles are the combinations of scores that were tried, for the leave-one-out
// choice.
var ensembles = [][]string{
	{"gen", "rmds++", "mds++"},
	{"gen", "fdbd", "mds++"},
	{"mlrbfn", "gen"},
	{"mlrbfn", "fdbd"},
	{"mlrbfn", "mds++"},
	{"mlrbfn", "knn"},
	{"mlrbfn", "rmds++"},
	{"mlrbfn", "gen", "mds++"},
	{"mlrbfn", "fdbd", "mds++"},
	{"mlrbfn", "gen", "knn"},
	{"mlrbfn", "vim", "mds++"},
	{"mlrbfn", "gen", "rmds++", "mds++"},
	{"mlrbfn", "gen", "fdbd", "mds++"},
	{"mlrbfn", "gen", "fdbd", "mds++", "knn"},
	{"mlrbfn", "gen", "vim", "mds++"},
}

// A rule makes a function of a score from in-distribution scores, ascending.
var rules = map[string]func(val []float64) func(v float64) float64{
	"z": func(val []float64) func(float64) float64 { return head.ScaleOf(val).Of },
	// The empirical distribution mapped to a normal one; below all scores, in
	// standard deviations.
	"probit": func(val []float64) func(float64) float64 {
		n, scale := float64(len(val)), head.ScaleOf(val)
		return func(v float64) float64 {
			at, _ := slices.BinarySearch(val, v)
			z := distuv.UnitNormal.Quantile((float64(at) + 0.5) / (n + 1))
			if at == 0 {
				z += scale.Of(v) - scale.Of(val[0])
			}
			return z
		}
	},
	// The logarithm of the empirical distribution. Its lower tenth is assumed to be
	// exponential.
	"log p": func(val []float64) func(float64) float64 {
		n, tail := len(val), max(2, len(val)/10)
		var excess float64
		for _, v := range val[:tail] {
			excess += (val[tail] - v) / float64(tail)
		}
		return func(v float64) float64 {
			if v < val[tail] {
				return math.Log(float64(tail)/float64(n)) - (val[tail]-v)/max(excess, math.SmallestNonzeroFloat64)
			}
			at, _ := slices.BinarySearch(val, v)
			return math.Log((float64(at) + 0.5) / float64(n+1))
		}
	},
}

// measured holds the scores of one task with one seed: by method, for the
// validation rows, the test set and the OOD sets.
type measured struct {
	task   string
	data   data
	scores map[string]map[string][]float64
}

const validation, id = "validation", "id"

func taskName(backbone string, on data) string { return backbone + ", " + on.name }

// measure fits and computes all scores.
func (m *measured) measure(ctx context.Context, root, backbone string, seed uint64) error {
	on := m.data
	dir := func(set string) string { return filepath.Join(root, backbone, set) }
	opts := pipeline.TrainOptions{
		Features: []string{dir(on.train)}, Calibration: pipeline.Share{None: true}, Seeds: []uint64{seed},
	}
	own, _, err := pipeline.Train(ctx, opts)
	if err != nil {
		return err
	}
	train, err := features.Open(dir(on.train))
	if err != nil {
		return err
	}
	defer train.Close()
	held := map[int]bool{}
	for _, r := range own.Splits["validation"] {
		held[r] = true
	}
	x, labels := map[bool][]float32{}, map[bool][]int64{} // by whether a tenth is held out
	for r, y := range train.Labels() {
		x[held[r]], labels[held[r]] = append(x[held[r]], train.Row(r)...), append(labels[held[r]], y)
	}
	part := func(h bool) features.Rows { return features.All(x[h], train.D, labels[h]) }
	classes := len(train.Classes)
	fit, err := head.FitLinear(ctx, part(false), part(true), classes, head.LinearOptions{})
	if err != nil {
		return err
	}
	network := posthoc.MLP{fit.Linear}
	fitted := map[string]posthoc.Input{}
	for suffix, rows := range map[string][]float32{"": x[false], all: train.Features()} {
		y := labels[false]
		if suffix == all {
			y = train.Labels()
		}
		data := posthoc.NewData(rows, train.D, y, classes)
		data.Logits = posthoc.Matrix(network.OfFeatures(rows), classes)
		fitted[suffix] = posthoc.Input{Train: data, Head: fit.Linear}
	}

	batches := map[string]posthoc.Batch{validation: {Features: x[true]}}
	for name, set := range sets(on) {
		s, err := features.Open(dir(set))
		if err != nil {
			return err
		}
		defer s.Close()
		batches[name] = posthoc.Batch{Features: s.Features()}
	}
	add := func(method, set string, scores []float64) {
		if m.scores[method] == nil {
			m.scores[method] = map[string][]float64{}
		}
		m.scores[method][set] = scores
	}
	for set, b := range batches {
		b.Logits = network.OfFeatures(b.Features)
		batches[set] = b
		var scores []float64
		for _, v := range own.Verdicts(b.Features) {
			scores = append(scores, v.Score)
		}
		add(pipeline.HeadScore, set, scores)
		add(pipeline.HeadScore+all, set, scores)
	}
	for _, name := range single[1:] {
		for suffix, in := range fitted {
			if suffix == all && !slices.Contains(pipeline.EnsembleParts, name) {
				continue
			}
			s, err := posthoc.Fit(ctx, name, in)
			if err != nil {
				return err
			}
			for set, b := range batches {
				scores := make([]float64, len(b.Features)/train.D)
				if err := s.Score(ctx, scores, b); err != nil {
					return err
				}
				add(name+suffix, set, scores)
			}
		}
	}
	return nil
}

// all marks scores that were fitted on the validation rows too.
const all = " (all rows)"

// sets names the test sets of a task.
func sets(on data) map[string]string {
	named := map[string]string{id: on.id}
	for _, s := range slices.Concat(on.near, on.far) {
		named[s] = s
	}
	return named
}

// aurocs are the mean AUROC over near and over far sets, in per cent.
type aurocs [2]float64

func (m *measured) aurocs(scores map[string][]float64) (f aurocs) {
	for i, group := range [][]string{m.data.near, m.data.far} {
		for _, set := range group {
			f[i] += 100 * metrics.AUROC(scores[id], scores[set]) / float64(len(group))
		}
	}
	return f
}

// ensemble returns the sums of the scaled scores.
func (m *measured) ensemble(rule string, parts []string, suffix string) map[string][]float64 {
	sums := map[string][]float64{}
	for _, part := range parts {
		scores := m.scores[part+suffix]
		weight := 1.0
		if part == pipeline.HeadScore {
			weight = pipeline.OwnWeight
		}
		of := rules[rule](slices.Sorted(slices.Values(scores[validation])))
		for set, values := range scores {
			if sums[set] == nil {
				sums[set] = make([]float64, len(values))
			}
			for i, v := range values {
				sums[set][i] += weight * of(v)
			}
		}
	}
	return sums
}

// results are AUROCs per task, means over the seeds.
type results []aurocs

// over averages the AUROCs of each task over its seeds.
func over(all []*measured, tasks []string, of func(*measured) aurocs) results {
	sum, count := map[string]aurocs{}, map[string]float64{}
	for _, m := range all {
		f, s := of(m), sum[m.task]
		sum[m.task] = aurocs{s[0] + f[0], s[1] + f[1]}
		count[m.task]++
	}
	var r results
	for _, t := range tasks {
		r = append(r, aurocs{sum[t][0] / count[t], sum[t][1] / count[t]})
	}
	return r
}

// mean returns the mean over the tasks except the one to skip.
func (r results) mean(skip int) (f aurocs) {
	n := 0.0
	for i, g := range r {
		if i != skip {
			f, n = aurocs{f[0] + g[0], f[1] + g[1]}, n+1
		}
	}
	return aurocs{f[0] / n, f[1] / n}
}

// worst is the smallest lead over other in near or far, over all tasks but one; it
// is negative if other is better.
func (r results) worst(other results, skip int) float64 {
	worst := math.Inf(1)
	for i := range r {
		if i != skip {
			worst = min(worst, r[i][0]-other[i][0], r[i][1]-other[i][1])
		}
	}
	return worst
}

func (f aurocs) String() string { return fmt.Sprintf("%.1f / %.1f", f[0], f[1]) }

func main() {
	root := flag.String("features", "", "folder of feature sets, BACKBONE/SET")
	seeds := flag.Int("seeds", 2, "how many seeds")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var runs []*measured
	var tasks []string
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, b := range backbones {
		for _, on := range b.on {
			tasks = append(tasks, taskName(b.name, on))
			for seed := range *seeds {
				m := &measured{task: taskName(b.name, on), data: on, scores: map[string]map[string][]float64{}}
				runs = append(runs, m)
				group.Go(func() error {
					err := m.measure(ctx, *root, b.name, uint64(seed))
					log.Printf("%s, seed %d", m.task, seed)
					return err
				})
			}
		}
	}
	if err := group.Wait(); err != nil {
		log.Fatal(err)
	}
	print(runs, tasks)
}

// candidate is a rule and parts, with their results.
type candidate struct {
	rule  string
	parts []string
	results
}

func print(runs []*measured, tasks []string) {
	singles := map[string]results{}
	for _, s := range single {
		singles[s] = over(runs, tasks, func(m *measured) aurocs { return m.aurocs(m.scores[s]) })
	}
	// The best of all single scores, separately for near and far.
	bestOf := make(results, len(tasks))
	winner := make([][2]string, len(tasks))
	for _, s := range single {
		for i, f := range singles[s] {
			for g := range f {
				if f[g] > bestOf[i][g] {
					bestOf[i][g], winner[i][g] = f[g], s
				}
			}
		}
	}
	var tried []candidate
	for _, rule := range slices.Sorted(maps.Keys(rules)) {
		for _, parts := range ensembles {
			tried = append(tried, candidate{rule, parts, over(runs, tasks, func(m *measured) aurocs { return m.aurocs(m.ensemble(rule, parts, "")) })})
		}
	}
	const none = -1
	fmt.Println("| rule | parts | near / far, mean over the tasks | farthest below the best single score of a group |\n|---|---|---|---|")
	row := func(rule, parts string, r results) {
		fmt.Printf("| %s | %s | %.2f / %.2f | %+.2f |\n", rule, parts, r.mean(none)[0], r.mean(none)[1], r.worst(bestOf, none))
	}
	row("–", "best single score of each task and group", bestOf)
	for _, s := range []string{"mlrbfn", "gen", "fdbd", "mds++", "knn", "vim", "rmds++"} {
		row("–", s, singles[s])
	}
	for _, c := range tried {
		row(c.rule, strings.Join(c.parts, " "), c.results)
	}
	row("z", strings.Join(pipeline.EnsembleParts, " ")+", fitted on all rows", over(runs, tasks, func(m *measured) aurocs { return m.aurocs(m.ensemble("z", pipeline.EnsembleParts, all)) }))

	fmt.Println("\n| task | best single score near | far | mlrbfn | ensemble | to the best single | without mlrbfn | chosen without the task | near / far |\n|---|---|---|---|---|---|---|---|---|")
	own, final := singles[pipeline.HeadScore], over(runs, tasks, func(m *measured) aurocs { return m.aurocs(m.ensemble("z", pipeline.EnsembleParts, "")) })
	rest := slices.DeleteFunc(slices.Clone(pipeline.EnsembleParts), func(p string) bool { return p == pipeline.HeadScore })
	without := over(runs, tasks, func(m *measured) aurocs { return m.aurocs(m.ensemble("z", rest, "")) })
	var out results
	for i, t := range tasks {
		value := func(c candidate) float64 { f := c.mean(i); return f[0] + f[1] + c.worst(bestOf, i) }
		chosen := slices.MaxFunc(tried, func(a, b candidate) int {
			if value(a) < value(b) {
				return -1
			}
			return 1
		})
		out = append(out, chosen.results[i])
		fmt.Printf("| %s | %s %.1f | %s %.1f | %v | %v | %+.1f / %+.1f | %v | %s: %s | %v |\n", t, winner[i][0], bestOf[i][0], winner[i][1], bestOf[i][1],
			own[i], final[i], final[i][0]-bestOf[i][0], final[i][1]-bestOf[i][1], without[i], chosen.rule, strings.Join(chosen.parts, " "), chosen.results[i])
	}
	fmt.Printf("| **mean** | %.2f | %.2f | %.2f / %.2f | %.2f / %.2f | | %.2f / %.2f | | %.2f / %.2f |\n", bestOf.mean(none)[0], bestOf.mean(none)[1],
		own.mean(none)[0], own.mean(none)[1], final.mean(none)[0], final.mean(none)[1], without.mean(none)[0], without.mean(none)[1], out.mean(none)[0], out.mean(none)[1])
}
