package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// thousand measures training on made-up features of the size of ImageNet-1K, with
// time and memory of each step, the time of a verdict, and the methods of evaluate.
type thousand struct {
	rows, classes, dim, queries int
	others                      int     // queries of classes that are new
	epochs                      int     // 0: as train has it
	c                           float64 // 0: chosen
	only                        bool    // make the features
	memory                      int64
	folder, keep, profile       string
	results                     string // file
	steps                       []string
	apart                       float64 // how far classes are apart

	rotation *kernels.Right[float32]
}

func benchThousand(f *flag.FlagSet) func(ctx context.Context, dir string) error {
	b := &thousand{memory: 2 << 30, apart: 1, steps: []string{"train"}}
	f.IntVar(&b.rows, "rows", 1_281_167, "training rows")
	f.IntVar(&b.classes, "classes", 1000, "classes")
	f.IntVar(&b.dim, "dim", 768, "features of a row")
	f.IntVar(&b.queries, "queries", 10_000, "rows to judge of the classes")
	f.IntVar(&b.others, "others", 0, "rows to judge of other classes that are near (default: as many as -queries)")
	f.Var(list{&b.steps}, "steps", `what to measure, with commas between: train, "train --preset imagenet1k", evaluate, methods
(all), names of methods, or peers with 8 GiB (NumPy, faiss and scikit-learn) (default train)`)
	f.StringVar(&b.results, "results", "", "`file` to add measurements to; those that it has with the same sizes are left out")
	f.Float64Var(&b.c, "c", 0, "C of the linear head (default: chosen)")
	f.IntVar(&b.epochs, "epochs", 0, "epochs of training (default: as train's)")
	f.Var((*command.Bytes)(&b.memory), "memory", "what --memory of train is given, in `bytes`")
	f.StringVar(&b.folder, "folder", "", "`folder` for the features, 4 bytes a value (default: the system's for temporary files)")
	f.StringVar(&b.keep, "keep", "", "`folder` that keeps the features, and the state of a training that is cut off; those that it has are used")
	f.BoolVar(&b.only, "make", false, "only make the features")
	f.StringVar(&b.profile, "profile", "", "`file` to write a CPU profile to")
	return b.measure
}

func (b *thousand) measure(ctx context.Context, _ string) (err error) {
	b.others = cmp.Or(b.others, b.queries)
	dir := b.keep
	if dir == "" {
		if dir, err = os.MkdirTemp(b.folder, "thousand"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	began := used()
	if _, err := os.Stat(filepath.Join(dir, "near")); err != nil {
		if err := b.make(ctx, dir); err != nil {
			return err
		}
		took := used().minus(began)
		fmt.Printf("features made in %.0f s\n", took.wall.Seconds())
	}
	if b.only {
		return nil
	}
	stop, err := profile(b.profile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	fmt.Printf("%d rows, %d features, %d classes; %d cores, kernels %s\n", b.rows, b.dim, b.classes, runtime.GOMAXPROCS(0), kernels.Set())
	lines, err := b.earlier()
	if err != nil {
		return err
	}
	var methods []string
	for _, step := range b.steps {
		preset, trains := strings.CutPrefix(step, "train")
		switch {
		case step == "methods":
			methods = append(methods, posthoc.Names()...)
		case step == "peers":
			err = b.peers(ctx, dir, lines)
		case step == "evaluate" && !b.has(lines, step+": all"):
			err = b.evaluate(ctx, dir)
		case trains && !b.has(lines, step+": all"):
			err = b.train(ctx, dir, step, strings.TrimPrefix(preset, " --preset "))
		case !trains && step != "evaluate" && step != "peers":
			methods = append(methods, step)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", step, err)
		}
	}
	methods = slices.DeleteFunc(methods, func(m string) bool { return b.has(lines, m+": all") })
	if len(methods) > 0 {
		err = b.methods(ctx, dir, methods)
	}
	return errors.Join(err, b.printAll())
}

// train measures train, and the detector's verdicts.
func (b *thousand) train(ctx context.Context, dir, step, preset string) error {
	w := watchSteps(step+": ", b.record)
	o, err := b.trainOptions(dir, preset, w)
	if err != nil {
		return errors.Join(err, w.stopped())
	}
	if b.keep != "" {
		o.Checkpoint = filepath.Join(dir, step+".checkpoint")
		o.Resumed = func(epochs []int) { fmt.Printf("training goes on after %d epochs\n", epochs[0]) }
	}
	d, result, err := pipeline.Train(ctx, o)
	if err != nil {
		return errors.Join(err, w.cutOff())
	}
	if err := errors.Join(w.close(), os.RemoveAll(o.Checkpoint)); err != nil {
		return err
	}
	fmt.Printf("\n%d epochs, %d steps; accuracy %.2f; parts:", result.Epochs, result.Steps, 100**result.ValAccuracy)
	for _, name := range d.PartNames() {
		fmt.Printf(" %s", name)
	}
	if a := result.Assessment; a != nil {
		fmt.Printf("; expected AUROC of a new class %.1f, caught at 5%% %.1f%%", 100*a.AUROC, 100*a.Caught)
	}
	fmt.Println()
	return b.judge(ctx, dir, d)
}

// judge prints how well the queries are told apart and how long a verdict takes.
func (b *thousand) judge(ctx context.Context, dir string, d *pipeline.Detector) error {
	var scores [2][]float64
	var flagged [2]int
	right := 0
	var rows []float32
	for i, name := range []string{"id", "near"} {
		t, err := features.OpenTable(ctx, nil, filepath.Join(dir, name))
		if err != nil {
			return err
		}
		// Kept sets may have more rows.
		x := t.X[:min(len(t.X), []int{b.queries, b.others}[i]*b.dim)]
		verdicts, err := d.Verdicts(ctx, x)
		if err != nil {
			return errors.Join(err, t.Close())
		}
		for row, v := range verdicts {
			scores[i] = append(scores[i], v.Score)
			if v.OOD {
				flagged[i]++
			}
			if i == 0 && v.Class == t.Classes[t.Labels[row]] {
				right++
			}
		}
		if i == 0 {
			rows = append(rows, x[:min(len(x), 1000*b.dim)]...)
		}
		if err := t.Close(); err != nil {
			return err
		}
	}
	n := float64(b.queries)
	fmt.Printf("queries: accuracy %.2f; AUROC of classes that are new %.1f; flagged of the known %.2f%%, of the new %.1f%%\n",
		100*float64(right)/n, 100*metrics.AUROC(scores[0], scores[1]), 100*float64(flagged[0])/n, 100*float64(flagged[1])/float64(b.others))
	judge := d.VerdictFunc()
	for _, at := range []int{1, 16} {
		var each []float64
		var cpu time.Duration
		verdicts := 0
		for len(each) < 1000 {
			for from := 0; from+at <= len(rows)/b.dim; from += at {
				before := used()
				judge(rows[from*b.dim : (from+at)*b.dim])
				took := used().minus(before)
				each, cpu = append(each, took.wall.Seconds()*1e6/float64(at)), cpu+took.cpu
				verdicts += at
			}
		}
		fmt.Printf("a verdict, %d rows at a time: %.0f µs (median), %.0f µs of processor time\n", at, median(each), cpu.Seconds()*1e6/float64(verdicts))
	}
	return nil
}

// perGroup is how many classes have a mean near each other.
const perGroup = 10

// make writes the training rows and the queries to folders of dir, block by block.
// Classes come in groups: the mean of a class is that of its group and a part of its
// own. The deviations of both fall along the axes faster than those of the rows of a
// class, as with real features, and all axes are rotated. The last class of each group
// is not trained on: its rows are the near queries.
func (b *thousand) make(ctx context.Context, dir string) error {
	rng := rand.New(rand.NewPCG(1, 2))
	normal := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return x
	}
	rotation := normal(b.dim * b.dim)
	for i := range rotation {
		rotation[i] /= float32(math.Sqrt(float64(b.dim)))
	}
	b.rotation = kernels.NewRight(b.dim, b.dim, rotation)
	var known, others [][]float32
	var group []float32
	for at := 0; len(known) < b.classes; at++ {
		if at%perGroup == 0 {
			group = normal(b.dim)
		}
		mean := normal(b.dim)
		for j, v := range group {
			mean[j] = (mean[j] + 0.7*v) * float32(b.apart*math.Pow(float64(j+1), -0.8))
		}
		if at%perGroup == perGroup-1 {
			others = append(others, mean)
		} else {
			known = append(known, mean)
		}
	}
	for i, set := range []struct {
		name  string
		means [][]float32
		n     int
	}{{"train", known, b.rows}, {"id", known, b.queries}, {"near", others, b.others}} {
		if err := b.write(ctx, filepath.Join(dir, set.name), uint64(i), set.means, set.n); err != nil {
			return err
		}
	}
	return nil
}

// labelOf returns the class of row i of n.
func (b *thousand) labelOf(i, classes, n int) int64 { return int64(i * classes / n) }

// write writes a set of n rows, class by class as an extraction does.
func (b *thousand) write(ctx context.Context, dir string, seed uint64, means [][]float32, n int) (err error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	labels := make([]int64, n)
	for i := range labels {
		labels[i] = b.labelOf(i, len(means), n)
	}
	if err := npy.WriteFile(filepath.Join(dir, "labels.npy"), labels, n); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "features.npy"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	buffered := bufio.NewWriterSize(f, 1<<20)
	out, err := npy.NewWriter[float32](buffered, n, b.dim)
	if err != nil {
		return err
	}
	falls := make([]float64, b.dim)
	for j := range falls {
		falls[j] = math.Pow(float64(j+1), -0.3)
	}
	const block, part = 4096, 256
	x := make([]float32, block*b.dim)
	for from := 0; from < n; from += block {
		to := min(from+block, n)
		err := parallel.Blocks(ctx, to-from, part, func(first, last int) {
			rng := rand.New(rand.NewPCG(seed, uint64(from+first)))
			before, after := make([]float64, (last-first)*b.dim), make([]float64, (last-first)*b.dim)
			for i := first; i < last; i++ {
				mean, row := means[labels[from+i]], before[(i-first)*b.dim:]
				for j, v := range mean {
					row[j] = float64(v) + falls[j]*rng.NormFloat64()
				}
			}
			b.rotation.NN(last-first, before, after)
			for i, v := range after {
				x[first*b.dim+i] = float32(v)
			}
		})
		if err != nil {
			return err
		}
		if err := out.Write(x[:(to-from)*b.dim]); err != nil {
			return err
		}
	}
	return errors.Join(out.Close(), buffered.Flush())
}

// steps measures steps that follow each other. It prints and records each as soon as it
// ends, so that a run that is cut off leaves what was measured.
type steps struct {
	prefix       string // of their names
	record       func(ended) error
	mu           sync.Mutex
	current      string
	began, first usage
	disk, whole  int64 // read from disk before the step, and before the first
	private, all int64 // peak of the step in bytes, without and with the resident pages of mapped files
	most         [2]int64
	ended        []ended
	err          error // of record
	stop         chan struct{}
	watching     sync.WaitGroup
}

// ended is a step that has ended.
type ended struct {
	name         string
	took         usage
	private, all int64
	disk         int64
}

// watchSteps begins with reading the rows. record, where set, is given each step.
func watchSteps(prefix string, record func(ended) error) *steps {
	s := &steps{prefix: prefix, record: record, current: "reading the rows", began: used(), disk: fromDisk(), stop: make(chan struct{})}
	s.first, s.whole = s.began, s.disk
	fmt.Printf("%-50s%9s%9s%8s%20s%15s\n", "step", "s", "CPU s", "MiB", "with pages of files", "MiB from disk")
	s.watching.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-s.stop:
				return
			case <-tick.C:
				private, files := held()
				s.mu.Lock()
				s.private, s.all = max(s.private, private), max(s.all, private+files)
				s.mu.Unlock()
			}
		}
	})
	return s
}

// step says that the step called name begins, or goes on.
func (s *steps) step(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == s.current {
		return
	}
	now, disk := used(), fromDisk()
	e := ended{s.current, now.minus(s.began), s.private, s.all, disk - s.disk}
	s.print(e)
	s.ended = append(s.ended, e)
	s.most = [2]int64{max(s.most[0], s.private), max(s.most[1], s.all)}
	s.current, s.began, s.disk, s.private, s.all = name, now, disk, 0, 0
}

func (s *steps) print(e ended) {
	e.name = s.prefix + e.name
	fmt.Printf("%-50s%9.1f%9.1f%8d%20d%15d\n", e.name, e.took.wall.Seconds(), e.took.cpu.Seconds(), e.private>>20, e.all>>20, e.disk>>20)
	if s.record != nil {
		s.err = errors.Join(s.err, s.record(e))
	}
}

// close ends the last step, and prints all of them together.
func (s *steps) close() error {
	s.step("")
	err := s.stopped()
	s.print(ended{"all", s.began.minus(s.first), s.most[0], s.most[1], s.disk - s.whole})
	return errors.Join(err, s.err)
}

// cutOff ends the last step, which a later run may continue.
func (s *steps) cutOff() error {
	s.mu.Lock()
	s.current += " (cut off)"
	s.mu.Unlock()
	s.step("")
	return s.stopped()
}

// stopped ends watching, without what all steps took.
func (s *steps) stopped() error {
	close(s.stop)
	s.watching.Wait()
	return s.err
}

// held returns the resident memory of this program in bytes, without and of
// mapped files, or 0 if the system does not tell.
func held() (private, files int64) {
	return proc(os.Getpid(), "status", "RssAnon:") << 10, proc(os.Getpid(), "status", "RssFile:") << 10
}

// fromDisk returns how many bytes this program has had read from disk, those of mapped
// files included.
func fromDisk() int64 { return proc(os.Getpid(), "io", "\nread_bytes:") }
