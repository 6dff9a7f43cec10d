package main

import (
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
	commands := []func(what string) []string{func(what string) []string {
		return []string{own, "scores", "--measure", what, "--in", path, "--train", fmt.Sprint(o.train), "--classes", fmt.Sprint(o.classes), "--k", fmt.Sprint(o.k), "--memory", fmt.Sprint(o.memory)}
	}}
	python, env := numpy(ctx)
	if python == "" {
		log.Print("no numpy to compare with: set MLRBFN_PEERS_PYTHON to a Python that has it, or run `make setup`")
	} else {
		commands = append(commands, func(what string) []string {
			return []string{python, "-c", scoresPeer, what, path, fmt.Sprint(o.train), fmt.Sprint(o.classes), fmt.Sprint(o.k)}
		})
	}
	env = append(env, withThreads(o.threads)...)
	// Both print wall-clock and processor time.
	var contenders []contender
	for i, command := range commands {
		contenders = append(contenders, contender{[]string{"ours", "numpy"}[i], func() ([]float64, error) {
			figures := make([]float64, 0, 2*len(compared))
			for _, what := range compared {
				r, err := run(pinned(ctx, firstCores(o.threads), env, command(what)...), nil)
				var wall, cpu float64
				if err == nil {
					_, err = fmt.Sscan(string(r.out), &wall, &cpu)
				}
				if err != nil {
					return nil, fmt.Errorf("%s: %w", what, err)
				}
				figures = append(figures, wall, cpu)
			}
			return figures, nil
		}})
	}
	format := strings.Repeat("%.3f s (processor %.3f s) ", len(compared))
	medians, err := byTurns(o.rounds, strings.Join(compared, ", "), format, contenders)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "%d × %d × %d, %d threads\tours s\tnumpy s\tours is\tours CPU s\tnumpy CPU s\tours is\t\n", o.train, o.queries, o.dim, o.threads)
	for i, what := range compared {
		fmt.Fprintf(table, "%s\t", what)
		for k := range 2 {
			ours, theirs := medians[0][2*i+k], 0.
			if len(medians) > 1 {
				theirs = medians[1][2*i+k]
			}
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

// firstCores lists the first n processors.
func firstCores(n int) string { return fmt.Sprintf("0-%d", n-1) }

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
