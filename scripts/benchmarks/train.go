package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

// trainBench compares training with the peers in MLRBFN_SHARED/oracle/peers.
type trainBench struct {
	rounds, core, epochs, rows *int
	seconds                    *float64
	only, program              *string

	dir, file string // for files; the program
}

func benchTrain(f *flag.FlagSet) func(ctx context.Context, dir string) error {
	t := &trainBench{
		rounds:  addRounds(f, 3),
		seconds: f.Float64("seconds", 2, "time of one measurement"),
		core:    f.Int("core", 0, "core to run on; -1 leaves the choice to the system, and JAX all cores"),
		only:    f.String("only", "", "regular expression of the heads to measure"),
		epochs:  f.Int("epochs", 500, "epochs of the section whole; the time of 500 is worked out from fewer"),
		rows:    f.Int("rows", 1281167, "rows of 768 features of the section paged, which takes 3 KiB of disk for each"),
		program: addProgram(f),
	}
	chosen := f.String("sections", "steps,seeds,contention", `what to measure, with commas between:
steps: steps per second on one thread, and how near to the core's limit;
seeds: three heads at once beside one, on all cores;
contention: the same with another program on every core, beside the fair share;
whole: the paper's CIFAR-10 training on one core, from command to detector;
paged: rows that do not fit into memory beside the same rows in it`)
	type section struct {
		name    string
		measure func() error
	}
	sections := []section{{"steps", t.steps}, {"seeds", t.seeds}, {"contention", t.contention}, {"whole", t.whole}, {"paged", t.paged}}
	return func(_ context.Context, dir string) (err error) {
		t.dir = dir
		names := strings.Split(*chosen, ",")
		for _, name := range names {
			if !slices.ContainsFunc(sections, func(s section) bool { return s.name == name }) {
				return fmt.Errorf("--sections %s: there is no %q", *chosen, name)
			}
		}
		if t.file, err = build(*t.program, dir); err != nil {
			return err
		}
		for _, s := range sections {
			if !slices.Contains(names, s.name) {
				continue
			}
			if err := s.measure(); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		return nil
	}
}

// shape is a head: batch 128, 50 centroids and 100 projections a hidden layer.
type shape struct {
	name         string // of our benchmark
	peer         string // in the peers' programs; "" if they do not have it
	d, layers, c int
}

var shapes = []shape{
	{"cifar10-512", "c10_512", 512, 4, 10},
	{"cifar10-768", "c10_768", 768, 4, 10},
	{"imagenet1k-768", "in1k_768", 768, 5, 1000},
	{"cifar10-512-k1", "", 512, 4, 10},
}

// flops counts the operations of a step's matrix products: distances with their two
// gradients (one in the first layer), and projections with their two gradients.
func (s shape) flops() float64 {
	const batch, n, o = 128, 50, 100
	multiplications := 2 * n * s.d
	multiplications += (s.layers - 1) * 3 * n * o
	multiplications += (s.layers-2)*3*n*o + 3*s.c*o
	return 2 * batch * float64(multiplications)
}

// parts counts the elements that a step computes between its products: hidden
// centroids, classes and parameters.
func (s shape) parts() map[string]int {
	const n, o = 50, 100
	hidden := s.layers - 1
	return map[string]int{
		"activation": hidden * n,
		"output":     s.c,
		"Adam":       n*s.d + (hidden-1)*n*o + hidden*n*o + s.c*o,
	}
}

// trainer is one program to measure. It returns steps per second; a trainer that fails is
// left out.
type trainer struct {
	name string
	run  func(shape) (float64, error)
}

// of is the contender that trains a head.
func (t trainer) of(s shape) contender {
	return contender{t.name, func() ([]float64, error) {
		v, err := t.run(s)
		if err != nil {
			err = fmt.Errorf("%w: %w", errLeftOut, err)
		}
		return []float64{v}, err
	}}
}

// steps measures the steps of each head on one thread.
func (t *trainBench) steps() error {
	pattern, err := regexp.Compile(*t.only)
	if err != nil {
		return err
	}
	for _, pkg := range []string{"head", "internal/kernels"} {
		build := exec.Command("go", "test", "-c", "-o", filepath.Join(t.dir, filepath.Base(pkg)+".test"), "./"+pkg)
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w\n%s", pkg, err, out)
		}
	}
	var all []trainer
	for _, name := range kernels.Names() {
		all = append(all, trainer{"ours " + name, func(s shape) (float64, error) {
			return t.benchmark(filepath.Join(t.dir, "head.test"), name, "Step/"+s.name, "steps/s")
		}})
	}
	all = append(all, t.peers()...)

	// A race has the figures of each set of kernels, then a head by each trainer.
	limits, parts := map[string]map[string]float64{}, slices.Sorted(maps.Keys(shapes[0].parts()))
	for _, name := range kernels.Names() {
		of := func(what, unit string) contender {
			return trainer{what, func(shape) (float64, error) {
				return t.benchmark(filepath.Join(t.dir, "kernels.test"), name, what, unit)
			}}.of(shape{})
		}
		contenders := []contender{of("Peak", "GFLOP/s")}
		for _, part := range parts {
			contenders = append(contenders, of("Elements/"+part, "ns/each"))
		}
		medians, err := byTurns(*t.rounds, "kernels "+name, "%.3g", contenders)
		if err != nil {
			return err
		}
		limits[name] = map[string]float64{}
		for i, c := range contenders {
			if medians[i] != nil {
				limits[name][c.name] = medians[i][0]
			}
		}
	}
	results := map[string]float64{} // steps/s by trainer and shape
	for _, s := range shapes {
		var contenders []contender
		for _, c := range all {
			if pattern.MatchString(s.name) && (s.peer != "" || strings.HasPrefix(c.name, "ours")) {
				contenders = append(contenders, c.of(s))
			}
		}
		medians, err := byTurns(*t.rounds, s.name, "%.1f steps/s", contenders)
		if err != nil {
			return err
		}
		for i, c := range contenders {
			if medians[i] != nil {
				results[c.name+s.name] = medians[i][0]
			}
		}
	}

	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	defer w.Flush()
	best := kernels.Names()[0]
	for _, name := range kernels.Names() {
		fmt.Fprintf(w, "peak %s\t%.1f GFLOP/s\n", name, limits[name]["Peak"])
	}
	fmt.Fprintf(w, "\nhead\twhat\tsteps/s\tours is\t\n")
	for _, s := range shapes {
		ours := results["ours "+best+s.name]
		if ours == 0 {
			continue
		}
		for _, c := range all {
			if v := results[c.name+s.name]; v > 0 {
				fmt.Fprintf(w, "%s\t%s\t%.0f\t%.2f×\t\n", s.name, c.name, v, ours/v)
			}
		}
	}
	fmt.Fprintf(w, "\nhead\tkernels\tproducts alone\tof that\twith what lies between\tof that\t\n")
	for _, s := range shapes {
		for _, name := range kernels.Names() {
			ours := results["ours "+name+s.name]
			if s.peer == "" || ours == 0 || name == "go" && name != best {
				continue
			}
			products := s.flops() / (limits[name]["Peak"] * 1e9) // seconds
			step := products
			for part, n := range s.parts() {
				step += float64(n) * limits[name]["Elements/"+part] / 1e9
			}
			fmt.Fprintf(w, "%s\t%s\t%.1f MFLOP: %.0f steps/s\t%.0f%%\t%.0f steps/s\t%.0f%%\t\n",
				s.name, name, s.flops()/1e6, 1/products, 100*ours*products, 1/step, 100*ours*step)
		}
	}
	return nil
}

// command runs a program on one thread of one core and returns what it prints.
func (t *trainBench) command(env []string, command ...string) ([]byte, error) {
	r, err := run(pinned(context.Background(), t.cpus(), append(withThreads(1), env...), command...), nil)
	return r.out, err
}

// cpus is the wanted core.
func (t *trainBench) cpus() string {
	if *t.core < 0 {
		return ""
	}
	return strconv.Itoa(*t.core)
}

// benchmark runs one of our benchmarks and returns the median of the unit.
func (t *trainBench) benchmark(binary, kernels, name, unit string) (float64, error) {
	const parts = 5
	out, err := t.command([]string{"MLRBFN_KERNELS=" + kernels}, binary, "-test.run", "^$", "-test.bench", "^Benchmark"+name+"$",
		"-test.count", strconv.Itoa(parts), "-test.benchtime", fmt.Sprintf("%gs", *t.seconds/parts))
	if err != nil {
		return 0, err
	}
	var found []float64
	for _, m := range regexp.MustCompile(`([0-9.]+) `+regexp.QuoteMeta(unit)).FindAllSubmatch(out, -1) {
		v, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			return 0, err
		}
		found = append(found, v)
	}
	if len(found) == 0 {
		return 0, fmt.Errorf("benchmark %s printed no %s", name, unit)
	}
	return median(found), nil
}

// peers lists the programs of the shared folder that the given Python can run, on
// one thread of one core.
func (t *trainBench) peers() []trainer {
	return t.peersBy("1", t.command, map[string][][]string{
		"torch":      {{"PyTorch eager", "torch_bench.py", "eager"}, {"PyTorch compiled, fused", "torch_bench.py", "compile fused"}},
		"jax, torch": {{"JAX jit", "jax_bench.py"}}, // which reads its head from PyTorch
	})
}

// peersBy lists programs by the modules that they need: a name, the file and its
// arguments. threads is their number of threads.
func (t *trainBench) peersBy(threads string, run func(env []string, command ...string) ([]byte, error), candidates map[string][][]string) []trainer {
	python := os.Getenv("MLRBFN_PEERS_PYTHON")
	if python == "" {
		log.Print("no peers: set MLRBFN_PEERS_PYTHON to a Python with torch and jax, or use --install")
		return nil
	}
	oracle, err := filepath.Abs(shared("oracle"))
	if err == nil {
		_, err = os.Stat(filepath.Join(oracle, "peers", "torch_bench.py"))
	}
	if err != nil {
		log.Printf("no peers: %v; set MLRBFN_SHARED", err)
		return nil
	}
	var found []trainer
	for _, modules := range slices.Sorted(maps.Keys(candidates)) {
		if _, err := run(nil, python, "-c", "import "+modules); err != nil {
			log.Printf("without %s, which needs %s: %v; use another MLRBFN_PEERS_PYTHON, or --install", candidates[modules][0][0], modules, err)
			continue
		}
		for _, c := range candidates[modules] {
			found = append(found, trainer{c[0], func(s shape) (float64, error) {
				command := append([]string{python, filepath.Join(oracle, "peers", c[1]), s.peer, threads}, c[2:]...)
				path := strings.Join([]string{oracle, filepath.Join(oracle, "peers"), os.Getenv("PYTHONPATH")}, string(os.PathListSeparator))
				out, err := run([]string{"PYTHONPATH=" + path}, append(command, fmt.Sprint(*t.seconds))...)
				if err != nil {
					return 0, err
				}
				var result struct{ Med float64 }
				err = json.Unmarshal(out, &result)
				return result.Med, err
			}})
		}
	}
	return found
}
