package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/npy"
)

// makeFeatures writes a feature set of n rows around the class means, sorted by
// class as extract does, and returns its folder.
func (t *trainBench) makeFeatures(n, d, classes int) (string, error) {
	dir := filepath.Join(t.dir, fmt.Sprintf("features-%d-%d-%d", n, d, classes))
	if _, err := os.Stat(filepath.Join(dir, "labels.npy")); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	log.Printf("making %d rows of %d features", n, d)
	rng := rand.New(rand.NewPCG(1, 2))
	normal := func(n int, spread float64) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(spread * rng.NormFloat64())
		}
		return x
	}
	means, noise := normal(classes*d, 0.35), normal(1<<20+d, 1)
	labels, row := make([]int64, n), make([]float32, d)
	err := disk.Write(filepath.Join(dir, "features.npy"), func(w io.Writer) error {
		f, err := npy.NewWriter[float32](w, n, d)
		for i := 0; err == nil && i < n; i++ {
			c := i * classes / n
			labels[i] = int64(c)
			from := rng.IntN(1 << 20)
			for j := range row {
				row[j] = means[c*d+j] + noise[from+j]
			}
			err = f.Write(row)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	return dir, npy.WriteFile(filepath.Join(dir, "labels.npy"), labels, n)
}

// cifar10 makes features of the size of CIFAR-10's.
func (t *trainBench) cifar10() (string, error) { return t.makeFeatures(50000, 512, 10) }

// outcome holds the costs of a run of train.
type outcome struct {
	Steps          int     `json:"steps"`
	Seconds        float64 `json:"seconds"` // of training alone
	StepsPerSecond float64 `json:"steps_per_second"`

	ran // of the whole program
}

// train runs the program on all cores, or on the wanted one, and shows its
// progress.
func (t *trainBench) train(features string, onOne bool, args ...string) (o outcome, err error) {
	command, cpus := append([]string{t.file, "train", "--features", features, "--out", features + ".detector", "--restart", "--json"}, args...), ""
	var env []string
	if onOne {
		cpus, env = t.cpus(), []string{"GOMAXPROCS=1"}
	}
	cmd := pinned(context.Background(), cpus, env, command...)
	if onOne {
		cmd.Stderr = os.Stderr
	}
	if o.ran, err = run(cmd, nil); err != nil {
		return o, err
	}
	return o, json.Unmarshal(o.out, &o)
}

// paper are the flags of the paper's training on all rows.
var paper = []string{"--paper", "--val", "0", "--calibration", "0"}

// brief returns the flags of a training that takes about the wanted time.
func (t *trainBench) brief(more ...string) []string {
	const stepsPerEpoch, usual = 391, 2000 // of 50,000 rows, and steps per second
	epochs := max(1, int(*t.seconds*usual/stepsPerEpoch))
	return append(append(paper, "--quiet", "--checkpoint-every", "0", "--epochs", strconv.Itoa(epochs)), more...)
}

// tell prints a table.
func tell(lines func(w *tabwriter.Writer)) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	lines(w)
	w.Flush()
}

// seeds measures three heads in parallel.
func (t *trainBench) seeds() error {
	features, err := t.cifar10()
	if err != nil {
		return err
	}
	var contenders []contender
	for _, seeds := range []string{"0", "0,1,2"} {
		contenders = append(contenders, contender{"seeds " + seeds, func() ([]float64, error) {
			o, err := t.train(features, false, t.brief("--seeds", seeds)...)
			return []float64{o.StepsPerSecond, 1e6 * o.cpu.Seconds() / float64(o.Steps)}, err
		}})
	}
	medians, err := byTurns(*t.rounds, "heads at once", "%.1f steps/s, %.0f µs of processor", contenders)
	if err != nil {
		return err
	}
	tell(func(w *tabwriter.Writer) {
		fmt.Fprintf(w, "\nheads at once, %d cores\tsteps/s\tof one\tCPU time of a step\t\n", runtime.NumCPU())
		for i, heads := range []int{1, 3} {
			fmt.Fprintf(w, "%d\t%.0f\t%.2f×\t%.0f µs\t\n", heads, medians[i][0], medians[i][0]/medians[0][0], medians[i][1])
		}
	})
	return nil
}

// contention measures heads, and the peers with a thread for each core: first
// alone, then while other programs load every core.
func (t *trainBench) contention() error {
	features, err := t.cifar10()
	if err != nil {
		return err
	}
	cores := runtime.NumCPU()
	ours := func(seeds string) func(shape) (float64, error) {
		return func(shape) (float64, error) {
			o, err := t.train(features, false, t.brief("--seeds", seeds)...)
			return o.StepsPerSecond, err
		}
	}
	free := func(env []string, command ...string) ([]byte, error) {
		r, err := run(pinned(context.Background(), "", env, command...), nil)
		return r.out, err
	}
	heads := min(3, cores)
	all := []trainer{{"ours, 1 head", ours("0")}, {"ours, 3 heads", ours("0,1,2")}, {fmt.Sprintf("%d plain loops, 10⁶ rounds", heads), t.loops(heads)}}
	threads := []int{1, heads, heads}
	for _, peer := range t.peersBy(strconv.Itoa(cores), free, map[string][][]string{
		"torch": {{"PyTorch eager", "torch_bench.py", "eager"}}, "jax, torch": {{"JAX jit", "jax_bench.py"}},
	}) {
		peer.name += fmt.Sprintf(", %d threads", cores)
		all, threads = append(all, peer), append(threads, cores)
	}
	var contenders []contender
	for _, c := range all {
		contenders = append(contenders, contender{c.name, func() ([]float64, error) {
			alone, err := c.of(shapes[0]).measure()
			if err != nil {
				return nil, err
			}
			stop, err := burners(cores)
			if err != nil {
				return nil, err
			}
			defer stop()
			beside, err := c.of(shapes[0]).measure()
			return append(alone, beside...), err
		}})
	}
	medians, err := byTurns(*t.rounds, "contention", "%.1f steps/s alone, %.1f loaded", contenders)
	if err != nil {
		return err
	}
	tell(func(w *tabwriter.Writer) {
		fmt.Fprintf(w, "\nbeside %d busy programs, %d cores\talone\tbeside\tkept\tfair share\t\n", cores, cores)
		for i, c := range all {
			if v := medians[i]; v != nil {
				fair := float64(cores) / float64(cores+threads[i])
				fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f%%\t%.0f%%\t\n", c.name, v[0], v[1], 100*v[1]/v[0], 100*fair)
			}
		}
	})
	return nil
}

// loops returns the work per second of n loops like burn's: the speed that the
// system really leaves to n threads.
func (t *trainBench) loops(n int) func(shape) (float64, error) {
	return func(shape) (float64, error) {
		var wg sync.WaitGroup
		var rounds atomic.Int64
		end := time.Now().Add(time.Duration(*t.seconds * float64(time.Second)))
		for range n {
			wg.Go(func() {
				for time.Now().Before(end) {
					burn(1e6)
					rounds.Add(1)
				}
			})
		}
		wg.Wait()
		return float64(rounds.Load()) / *t.seconds, nil
	}
}

// burnVariable is the environment variable that makes this program load one core
// until it is stopped.
const burnVariable = "BENCH_TRAIN_BURN"

// burn loads a core for n rounds.
func burn(n int) {
	x := uint64(1)
	for range n {
		x = x*6364136223846793005 + 1
	}
	burnt.Store(x)
}

var burnt atomic.Uint64 // prevents that a compiler removes the loop

// burners starts n such programs; stop ends them.
func burners(n int) (stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var all []*exec.Cmd
	stop = func() {
		for _, cmd := range all {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // the error: it was killed
		}
	}
	for range n {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), burnVariable+"=1", "GOMAXPROCS=1")
		if err := cmd.Start(); err != nil {
			stop()
			return nil, err
		}
		all = append(all, cmd)
	}
	return stop, nil
}

// whole measures the paper's training from the command to the detector.
func (t *trainBench) whole() error {
	features, err := t.cifar10()
	if err != nil {
		return err
	}
	o, err := t.train(features, true, append(paper, "--epochs", strconv.Itoa(*t.epochs))...)
	if err != nil {
		return err
	}
	const paperEpochs = 500
	rest := o.wall.Seconds() - o.Seconds
	tell(func(w *tabwriter.Writer) {
		fmt.Fprintf(w, "\nthe paper's CIFAR-10 training, one core\t\t\n")
		fmt.Fprintf(w, "%d steps\t%.1f s\t\n", o.Steps, o.wall.Seconds())
		fmt.Fprintf(w, "of which CPU time\t%.1f s\t\n", o.cpu.Seconds())
		if *t.epochs != paperEpochs {
			fmt.Fprintf(w, "%d steps would take\t%.1f s\t\n", o.Steps / *t.epochs * paperEpochs, rest+o.Seconds*paperEpochs/float64(*t.epochs))
		}
	})
	return nil
}

// paged measures an epoch of rows that do not fit into memory.
func (t *trainBench) paged() error {
	features, err := t.makeFeatures(*t.rows, 768, 1000)
	if err != nil {
		return err
	}
	memories := []string{"1TiB", strconv.Itoa(4 * 768 * *t.rows / 8)} // an eighth of the features
	var contenders []contender
	for _, memory := range memories {
		contenders = append(contenders, contender{"--memory " + memory, func() ([]float64, error) {
			o, err := t.train(features, false, "--preset", "imagenet1k", "--val", "0", "--calibration", "0",
				"--epochs", "1", "--checkpoint-every", "0", "--quiet", "--memory", memory)
			return []float64{o.StepsPerSecond, o.cpu.Seconds(), float64(o.peak) / (1 << 20)}, err
		}})
	}
	medians, err := byTurns(*t.rounds, "paged", "%.1f steps/s, %.1f s of processor, %.0f MiB", contenders)
	if err != nil {
		return err
	}
	tell(func(w *tabwriter.Writer) {
		fmt.Fprintf(w, "\nan epoch of %d × 768 features\tsteps/s\tof the first\tCPU time\tmost memory\t\n", *t.rows)
		for i, c := range contenders {
			v := medians[i]
			fmt.Fprintf(w, "%s\t%.0f\t%.0f%%\t%.1f s\t%.0f MiB\t\n", c.name, v[0], 100*v[0]/medians[0][0], v[1], v[2])
		}
	})
	return nil
}
