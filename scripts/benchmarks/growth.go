package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"text/tabwriter"

	"gonum.org/v1/gonum/stat"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

//go:embed peer_growth.py
var growthPeer string

// growthPeers are the measurements of peer_growth.py.
var growthPeers = []string{"numpy knn", "faiss knn", "scikit-learn knn", "numpy mds", "scikit-learn mds", "numpy residual", "scikit-learn residual", "scikit-learn logistic"}

// growth measures how the steps of training and the methods of evaluate grow with the
// rows, the features and the classes, on the features of thousand. One of the three
// changes at a time. Processor time is what is measured: other programs change it less
// than they change wall-clock time.
type growth struct {
	sizes         [3][]int // rows, features, classes
	base, to      [3]int
	queries       int
	memory        int64
	methods       []string
	scratch, only string

	results map[string]map[[3]int]cost // by what was measured and the size
	names   []string
}

// cost is what one step or method took.
type cost struct {
	seconds float64 // of the processor
	memory  float64 // bytes at the peak, without mapped files
	read    float64 // bytes of features
}

// kindOfCost is what to print of costs, in units, and the least that can be measured.
type kindOfCost struct {
	of                     func(cost) float64
	unit, thereUnit, least float64
}

var costs = []kindOfCost{
	{func(c cost) float64 { return c.seconds }, 1, 3600, 0.1},
	{func(c cost) float64 { return c.memory }, 1 << 20, 0, 1 << 20},
	{func(c cost) float64 { return c.read }, 1 << 20, 1e9, 0},
}

func benchGrowth(f *flag.FlagSet) func(ctx context.Context, dir string) error {
	g := &growth{
		sizes: [3][]int{{10_000, 20_000, 40_000, 80_000}, {256, 512, 1024, 2048}, {10, 100, 1000}},
		base:  [3]int{20_000, 512, 100}, to: [3]int{100_000_000, 768, 1000},
		queries: 2000, memory: 1 << 30, methods: posthoc.Names(), results: map[string]map[[3]int]cost{},
	}
	for i, name := range []string{"rows", "dims", "classes"} {
		f.Func(name, fmt.Sprintf("numbers of %s, with commas between (default %v); others are those of -base", name, g.sizes[i]), func(text string) (err error) {
			g.sizes[i], err = numbers(text)
			return err
		})
	}
	triple := func(name, usage string, to *[3]int) {
		f.Func(name, fmt.Sprintf("rows,features,classes %s (default %v)", usage, *to), func(text string) error {
			n, err := numbers(text)
			if err == nil && len(n) != 3 {
				err = errors.New("three numbers are needed")
			}
			if err == nil {
				*to = [3]int(n)
			}
			return err
		})
	}
	triple("base", "from which one changes at a time", &g.base)
	triple("to", "that costs are extrapolated to", &g.to)
	f.IntVar(&g.queries, "queries", g.queries, "rows to score")
	f.Var(list{&g.methods}, "methods", "`names` of the methods, with commas between (default all)")
	f.StringVar(&g.only, "only", "", "train, methods or peers: measure these alone")
	f.StringVar(&g.scratch, "scratch", os.TempDir(), "`folder` for the features, which are deleted")
	return g.run
}

// list is a flag of words.
type list struct{ words *[]string }

func (l list) String() string { return "" }

func (l list) Set(text string) error {
	*l.words = strings.Split(text, ",")
	return nil
}

func numbers(text string) (n []int, err error) {
	for part := range strings.SplitSeq(text, ",") {
		v, err := strconv.Atoi(part)
		if err != nil {
			return nil, err
		}
		n = append(n, v)
	}
	return n, nil
}

func (g *growth) run(ctx context.Context, _ string) error {
	points := [][3]int{g.base}
	for i, sizes := range g.sizes {
		for _, n := range sizes {
			at := g.base
			at[i] = n
			if at != g.base {
				points = append(points, at)
			}
		}
	}
	fmt.Printf("%d cores, kernels %s, %d rows to score\n", runtime.GOMAXPROCS(0), kernels.Set(), g.queries)
	for _, at := range points {
		if err := g.measure(ctx, at); ctx.Err() != nil {
			break // what was measured is printed
		} else if err != nil {
			return fmt.Errorf("%v: %w", at, err)
		}
	}
	return g.print()
}

// measure makes the features of one size and measures all with them.
func (g *growth) measure(ctx context.Context, at [3]int) (err error) {
	dir, err := os.MkdirTemp(g.scratch, "growth")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	made := &thousand{rows: at[0], dim: at[1], classes: at[2], queries: g.queries, others: g.queries, apart: 1}
	if err := made.make(ctx, dir); err != nil {
		return err
	}
	if g.only == "" || g.only == "train" {
		if err := g.train(ctx, dir, at); err != nil {
			return err
		}
	}
	if g.only == "" || g.only == "methods" {
		if err := g.score(ctx, dir, at); err != nil {
			return err
		}
	}
	if g.only == "" || g.only == "peers" {
		return g.peers(ctx, dir, at)
	}
	return nil
}

// add keeps and prints what was measured.
func (g *growth) add(what string, at [3]int, c cost) {
	if g.results[what] == nil {
		g.results[what] = map[[3]int]cost{}
		g.names = append(g.names, what)
	}
	g.results[what][at] = c
	fmt.Printf("%d × %d, %d classes: %s: %.2f s, %.0f MiB, %.0f MiB read\n", at[0], at[1], at[2], what, c.seconds, c.memory/(1<<20), c.read/(1<<20))
}

// train measures the steps of train with one epoch and without the choice of the
// penalty, which is the same step ten times with fewer rows.
func (g *growth) train(ctx context.Context, dir string, at [3]int) error {
	w := watchSteps("", nil)
	_, _, err := pipeline.Train(ctx, pipeline.TrainOptions{
		Features: []string{filepath.Join(dir, "train")}, Memory: g.memory, Scratch: g.scratch,
		Train: head.TrainOptions{Epochs: 1}, Linear: head.LinearOptions{C: 1},
		Stage:    func(what string, _, _ int) { w.step(what) },
		Progress: func(int, head.Epoch) { w.step(training.TrainingStage) },
	})
	if err := errors.Join(err, w.close()); err != nil {
		return err
	}
	byName := map[string]cost{}
	var names []string
	for _, s := range w.ended {
		c, known := byName[s.name]
		if !known {
			names = append(names, s.name)
		}
		c.seconds, c.memory = c.seconds+s.took.cpu.Seconds(), max(c.memory, float64(s.private))
		byName[s.name] = c
	}
	for _, name := range names {
		g.add("train: "+name, at, byName[name])
	}
	return nil
}

// score fits each method alone, and scores the queries.
func (g *growth) score(ctx context.Context, dir string, at [3]int) (err error) {
	all, err := npy.Map(filepath.Join(dir, "train", "features.npy"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.Close()) }()
	queries, err := npy.Map(filepath.Join(dir, "id", "features.npy"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, queries.Close()) }()
	n, d, classes := at[0], at[1], at[2]
	made := thousand{}
	labels := make([]int64, n)
	for i := range labels {
		labels[i] = made.labelOf(i, classes, n)
	}
	classifier, err := nearestMean(all.Data, d, labels, classes)
	if err != nil {
		return err
	}
	logits := func(x []float32) []float64 {
		wide, z := make([]float64, len(x)), make([]float64, len(x)/d*classes)
		for i, v := range x {
			wide[i] = float64(v)
		}
		classifier.Logits(z, wide)
		return z
	}
	batch := posthoc.Batch{Features: queries.Data, Logits: logits(queries.Data)}
	scores := make([]float64, g.queries)
	for _, name := range g.methods {
		var read atomic.Int64
		features := func(from, to int) []float32 {
			read.Add(int64(4 * d * (to - from)))
			return all.Data[from*d : to*d]
		}
		data := &posthoc.Data{
			N: n, D: d, Classes: classes, Labels: labels, Features: features,
			Logits: func(from, to int) []float64 { return logits(features(from, to)) },
		}
		var s posthoc.Scorer
		for _, part := range []struct {
			name string
			do   func() error
		}{
			{"fit", func() (err error) {
				s, err = posthoc.Fit(ctx, name, posthoc.Input{Train: data, LastLayer: classifier, Memory: g.memory})
				return err
			}},
			{"score", func() error { return s.Score(ctx, scores, batch) }},
		} {
			read.Store(0)
			took, peak, err := watch(part.do)
			if err != nil {
				log.Printf("%v: %s %s: %v", at, name, part.name, err) // such as too little memory
				break
			}
			g.add(name+" "+part.name, at, cost{took.cpu.Seconds(), float64(peak), float64(read.Load())})
		}
	}
	return nil
}

// nearestMean is the linear head whose largest logit is that of the nearest mean.
func nearestMean(x []float32, d int, labels []int64, classes int) (*posthoc.Linear, error) {
	w, b, count := make([]float32, classes*d), make([]float32, classes), make([]float32, classes)
	for i, y := range labels {
		count[y]++
		for j, v := range x[i*d : (i+1)*d] {
			w[int(y)*d+j] += v
		}
	}
	for c := range classes {
		for j := range d {
			mean := &w[c*d+j]
			*mean /= max(count[c], 1)
			b[c] -= *mean * *mean / 2
		}
	}
	return posthoc.NewLinear(w, b)
}

// print prints the costs at the base, the exponents of the growth, and the costs that
// follow at the size of -to.
func (g *growth) print() error {
	fmt.Printf("\nAt %d × %d with %d classes; exponents with rows, features, classes; at %d × %d with %d classes (%d rows to score)\n",
		g.base[0], g.base[1], g.base[2], g.to[0], g.to[1], g.to[2], g.queries)
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\tCPU s\tN\tD\tC\tthere: CPU h\tMiB\tN\tD\tC\tMiB read\tthere: GB\t")
	for _, name := range g.names {
		fmt.Fprintf(table, "%s\t", name)
		for i, k := range costs {
			at, there, exponents := g.fit(name, k)
			fmt.Fprintf(table, "%.3g\t", at/k.unit)
			if i < 2 {
				fmt.Fprintf(table, "%s\t", strings.Join(exponents[:], "\t"))
			}
			if i == 1 {
				continue // memory is bounded: there is no line to follow
			}
			if exponents[0] == "–" {
				fmt.Fprint(table, "–\t")
				continue
			}
			fmt.Fprintf(table, "%.3g\t", there/k.thereUnit)
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}

// fit fits a power of each of the three sizes, by least squares of the logarithms.
// Nothing grows faster than with the rows: the cost at the size of -to is that of a
// line through the costs at the numbers of rows, times the other powers. Costs that
// are too small to measure have no exponents.
func (g *growth) fit(name string, k kindOfCost) (at, there float64, exponents [3]string) {
	results := g.results[name]
	at = k.of(results[g.base])
	there = at
	for i := range exponents {
		exponents[i] = "–"
		var x, y []float64
		for size, c := range results {
			other := size
			other[i] = g.base[i]
			if v := k.of(c); other == g.base && v > 0 {
				x, y = append(x, float64(size[i])), append(y, v)
			}
		}
		if len(x) < 2 || slices.Max(y) < k.least {
			continue
		}
		power := slope(logs(x), logs(y), nil)
		exponents[i] = fmt.Sprintf("%.1f", math.Round(10*power)/10+0) // no −0
		if i > 0 {
			there *= math.Pow(float64(g.to[i])/float64(g.base[i]), max(power, 0))
			continue
		}
		weights := make([]float64, len(y)) // errors are in proportion to the costs
		for i, v := range y {
			weights[i] = 1 / (v * v)
		}
		if rise := slope(x, y, weights); rise > 0 {
			there += rise * float64(g.to[0]-g.base[0])
		}
	}
	return at, there, exponents
}

func logs(x []float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = math.Log(v)
	}
	return y
}

// slope is that of the line that fits the points best; nil weighs all alike.
func slope(x, y, weights []float64) float64 {
	_, slope := stat.LinearRegression(x, y, weights, false)
	return slope
}

// peers measures what NumPy, faiss and scikit-learn can do of this, at the base and
// with the most rows, features and classes.
func (g *growth) peers(ctx context.Context, dir string, at [3]int) error {
	for i, sizes := range g.sizes {
		if at[i] != g.base[i] && at[i] != slices.Max(sizes) {
			return nil
		}
	}
	for _, what := range growthPeers {
		c, _, err := peerCost(ctx, what, dir)
		if errors.Is(err, errNoPeer) {
			continue
		}
		if err != nil {
			log.Printf("%v: %s: %v", at, what, err)
			continue
		}
		g.add(what, at, c)
	}
	return nil
}

var errNoPeer = errors.New("no Python has it")

// peerCost measures one of growthPeers, with more arguments of peer_growth.py.
func peerCost(ctx context.Context, what, dir string, more ...string) (c cost, seconds float64, err error) {
	library, step, _ := strings.Cut(what, " ")
	python := peersPython(map[string]string{"faiss": "faiss", "scikit-learn": "sklearn", "numpy": "numpy"}[library])
	if python == "" {
		return c, 0, fmt.Errorf("%s: %w", library, errNoPeer)
	}
	cores := runtime.GOMAXPROCS(0)
	r, err := run(pinned(ctx, firstCores(cores), withThreads(cores), append([]string{python, "-c", growthPeer, library, step, dir}, more...)...), nil)
	if err == nil {
		_, err = fmt.Sscan(string(r.out), &c.seconds, &c.memory, &seconds)
	}
	return c, seconds, err
}
