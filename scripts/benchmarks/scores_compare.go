package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

//go:embed peer_scores.py
var scoresPeer string

// compared lists the measurements of our program and of numpy.
var compared = []string{"knn", "mds fit", "mds score", "eigen"}

// compare prints the times of our program and of numpy, measured alternately on
// the same cores with the same number of threads.
func (o *scoring) compare(ctx context.Context, stdout io.Writer) (err error) {
	path, remove, err := o.features(ctx, o.train)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	own, err := os.Executable()
	if err != nil {
		return err
	}
	contenders := map[string]func(what string) []string{
		"ours": func(what string) []string {
			return []string{own, "scores", "--measure", what, "--in", path, "--train", fmt.Sprint(o.train), "--classes", fmt.Sprint(o.classes), "--k", fmt.Sprint(o.k), "--memory", fmt.Sprint(o.memory)}
		},
	}
	if python, env := numpy(ctx); python == "" {
		log.Print("no numpy to compare with: set MLRBFN_PEERS_PYTHON to a Python that has it, or run `make setup`")
	} else {
		o.env = env
		contenders["numpy"] = func(what string) []string {
			return []string{python, "-c", scoresPeer, what, path, fmt.Sprint(o.train), fmt.Sprint(o.classes), fmt.Sprint(o.k)}
		}
	}
	wall, cpu := map[[2]string][]float64{}, map[[2]string][]float64{}
	for range o.rounds {
		for _, what := range compared {
			for name, command := range contenders {
				var w, c float64
				out, err := o.pinned(ctx, command(what)...)
				if err == nil {
					_, err = fmt.Sscan(string(out), &w, &c)
				}
				if err != nil {
					return fmt.Errorf("%s, %s: %w", name, what, err)
				}
				key := [2]string{name, what}
				wall[key], cpu[key] = append(wall[key], w), append(cpu[key], c)
			}
		}
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "%d × %d × %d, %d threads\tours s\tnumpy s\tours is\tours CPU s\tnumpy CPU s\tours is\t\n", o.train, o.queries, o.dim, o.threads)
	for _, what := range compared {
		fmt.Fprintf(table, "%s\t", what)
		for _, of := range []map[[2]string][]float64{wall, cpu} {
			ours, theirs := median(of[[2]string{"ours", what}]), median(of[[2]string{"numpy", what}])
			fmt.Fprintf(table, "%.3f\t%.3f\t%.2f×\t", ours, theirs, theirs/ours)
		}
		fmt.Fprintln(table)
	}
	return table.Flush()
}

// numpy returns a Python that has numpy, and the environment variables that it needs.
func numpy(ctx context.Context) (python string, env []string) {
	try := func(python string, env ...string) bool {
		cmd := exec.CommandContext(ctx, python, "-c", "import numpy")
		cmd.Env = append(os.Environ(), env...)
		return cmd.Run() == nil
	}
	if python := os.Getenv("MLRBFN_PEERS_PYTHON"); python != "" && try(python) {
		return python, nil
	}
	packages, err := filepath.Abs(filepath.Join(".setup", "python"))
	if err == nil && try("python3", "PYTHONPATH="+packages) {
		return "python3", []string{"PYTHONPATH=" + packages}
	}
	return "", nil
}

// pinned runs a program on the first cores and returns what it prints.
func (o *scoring) pinned(ctx context.Context, command ...string) ([]byte, error) {
	if taskset, err := exec.LookPath("taskset"); err == nil {
		command = append([]string{taskset, "-c", fmt.Sprintf("0-%d", o.threads-1)}, command...)
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), o.env...)
	for _, name := range []string{"GOMAXPROCS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"} {
		cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", name, o.threads))
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil && stderr.Len() > 0 {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return out, err
}

// measureOne prints the wall-clock and the processor time of one measurement.
func (o *scoring) measureOne(ctx context.Context, stdout io.Writer) (err error) {
	all, err := npy.Map(o.in)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.Close()) }()
	o.dim = all.Shape[1]
	split := o.train * o.dim
	data := posthoc.NewData(slices.Clone(all.Data[:split]), o.dim, o.labels(o.train), o.classes)
	queries := posthoc.Batch{Features: slices.Clone(all.Data[split:])}
	scores := make([]float64, len(queries.Features)/o.dim)
	var do func() error
	switch o.what {
	case "knn":
		knn, err := posthoc.FitKNN(data, o.k)
		if err != nil {
			return err
		}
		knn.Memory = o.memory
		do = func() error { return knn.Score(ctx, scores, queries) }
	case "mds fit":
		do = func() error {
			_, err := posthoc.FitMDS(ctx, data, false)
			return err
		}
	case "mds score":
		mds, err := posthoc.FitMDS(ctx, data, false)
		if err != nil {
			return err
		}
		do = func() error { return mds.Score(ctx, scores, queries) }
	case "eigen":
		sigma, err := covariance(ctx, data)
		if err != nil {
			return err
		}
		do = func() error {
			_, _, err := linalg.Eigen(sigma)
			return err
		}
	default:
		return fmt.Errorf("%q is not measured: it is one of %q", o.what, compared)
	}
	runtime.GC()
	before := used()
	if err := do(); err != nil {
		return err
	}
	took := used().minus(before)
	_, err = fmt.Fprintln(stdout, took.wall.Seconds(), took.cpu.Seconds())
	return err
}
