package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"

	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// scoring compares scores on made-up features with numpy: KNN, Mahalanobis
// distances and eigenvectors, on the same cores with the same number of threads.
// The Python is MLRBFN_PEERS_PYTHON, or python3 with the packages of set-up.
type scoring struct {
	train, dim, classes, queries, k int
	threads, rounds                 int
	memory                          int64
	scratch, profile                string

	evaluateDim int

	what, in string // for one measurement
}

func benchScores(f *flag.FlagSet) func(ctx context.Context, dir string) error {
	o := &scoring{memory: 1 << 30}
	f.IntVar(&o.train, "train", 50_000, "training rows")
	f.IntVar(&o.queries, "queries", 10_000, "rows to score")
	f.IntVar(&o.dim, "dim", 768, "features of a row")
	f.IntVar(&o.classes, "classes", 100, "classes of the rows")
	f.IntVar(&o.k, "k", 50, "K of KNN")
	f.IntVar(&o.threads, "threads", runtime.NumCPU(), "threads and cores, of ours and of numpy")
	f.IntVar(&o.rounds, "rounds", 3, "how often each candidate is measured")
	f.Var((*command.Bytes)(&o.memory), "memory", "memory that scoring takes, about, in `bytes`")
	f.StringVar(&o.scratch, "scratch", os.TempDir(), "`folder` for the features, which are deleted at the end")
	f.IntVar(&o.evaluateDim, "evaluate", 0, `instead, measure evaluate of all methods with three seeds on sets of the sizes of
OpenOOD's CIFAR-10 benchmark, of so many features; the time of relation is in knn's
line, and most of that of rmds, rmds++ and vim in those of mds, mds++ and residual`)
	f.StringVar(&o.profile, "profile", "", "`file` to write a CPU profile to")
	f.StringVar(&o.what, "measure", "", "for the program itself: measure this alone")
	f.StringVar(&o.in, "in", "", "for the program itself: file of the features")
	return o.run
}

func (o *scoring) run(ctx context.Context, _ string) (err error) {
	stop, err := profile(o.profile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	stdout := os.Stdout
	switch {
	case o.what != "":
		return o.measureOne(ctx, stdout)
	case o.evaluateDim > 0:
		return o.evaluate(ctx, stdout)
	}
	return o.compare(ctx, stdout)
}

// features makes a file of n rows and the queries.
func (o *scoring) features(ctx context.Context, n int) (path string, remove func() error, err error) {
	dir, err := os.MkdirTemp(o.scratch, "bench")
	if err != nil {
		return "", nil, err
	}
	remove = func() error { return os.RemoveAll(dir) }
	path = filepath.Join(dir, "features.npy")
	if err := o.write(ctx, path, n+o.queries); err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return path, remove, nil
}

// labels are those of n rows.
func (o *scoring) labels(n int) []int64 {
	labels := make([]int64, n)
	for i := range labels {
		labels[i] = int64(i % o.classes)
	}
	return labels
}

// write makes n rows of normal features around the means of the classes.
func (o *scoring) write(ctx context.Context, path string, n int) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	buffer := bufio.NewWriterSize(f, 1<<20)
	w, err := npy.NewWriter[float32](buffer, n, o.dim)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(1, 2))
	means := make([]float32, o.classes*o.dim)
	for i := range means {
		means[i] = float32(rng.NormFloat64())
	}
	row := make([]float32, o.dim)
	for i := range n {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for j := range row {
			row[j] = means[i%o.classes*o.dim+j] + float32(rng.NormFloat64())
		}
		if err := w.Write(row); err != nil {
			return err
		}
	}
	return buffer.Flush()
}

// covariance is the within-class covariance.
func covariance(ctx context.Context, data *posthoc.Data) (*mat.SymDense, error) {
	r := linalg.Rows{
		D: data.D, Index: make([]int, data.N), Classes: data.Classes,
		Label: func(row int) int { return int(data.Labels[row]) },
		Read: func(dst []float64, row int) {
			for j, v := range data.Features(row, row+1) {
				dst[j] = float64(v)
			}
		},
	}
	for i := range r.Index {
		r.Index[i] = i
	}
	m, err := linalg.Means(ctx, r)
	if err != nil {
		return nil, err
	}
	return m.Within(ctx, r)
}
