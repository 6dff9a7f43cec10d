// Bench_scores shows how time and memory of the scores that go through all
// training rows grow with these: fitting RMDS++ (two covariances) and scoring
// queries by KNN, on synthetic features that are mapped from a file, as those of
// a feature set are.
//
//	go run ./scripts/bench_scores --rows 10000,20000,40000 --dim 768
//
// Time grows with rows·dim² and rows·queries·dim. Memory, the peak of what the
// program itself holds, does not grow with rows.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"runtime/pprof"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"mlrbfn/internal/cli"
	"mlrbfn/internal/npy"
	"mlrbfn/posthoc"
)

type options struct {
	rows                     []int
	evaluateDim              int
	dim, classes, queries, k int
	memory                   int64
	scratch                  string
}

func main() { cli.Main("bench_scores", run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o options
	flags := pflag.NewFlagSet("bench_scores", pflag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntSliceVar(&o.rows, "rows", []int{10_000, 20_000, 40_000}, "numbers of training rows")
	flags.IntVar(&o.dim, "dim", 768, "features of a row")
	flags.IntVar(&o.classes, "classes", 100, "classes of the rows")
	flags.IntVar(&o.queries, "queries", 1000, "rows to score")
	flags.IntVar(&o.k, "k", 50, "K of KNN")
	flags.IntVar(&o.evaluateDim, "evaluate", 0, "d")
	flags.Int64Var(&o.memory, "memory", 1<<30, "bytes that KNN may take")
	flags.StringVar(&o.scratch, "scratch", os.TempDir(), "`folder` for the features; they are deleted in the end")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return err
		}
		return cli.Usagef("%w", err)
	}
	if p := os.Getenv("PROF"); p != "" {
		f, _ := os.Create(p)
		pprof.StartCPUProfile(f)
		defer pprof.StopCPUProfile()
	}
	if o.evaluateDim > 0 {
		return o.evaluate(ctx, stdout)
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "rows\tfeatures MB\trmds++ fit s\tGflop/s\tpeak MB\tknn s\tGflop/s\tpeak MB\t")
	for _, n := range o.rows {
		if err := o.measure(ctx, table, n); err != nil {
			return err
		}
	}
	return table.Flush()
}

func (o options) measure(ctx context.Context, table io.Writer, n int) (err error) {
	dir, err := os.MkdirTemp(o.scratch, "bench_scores")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "features.npy")
	if err := o.write(ctx, path, n+o.queries); err != nil {
		return err
	}
	all, err := npy.Map(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, all.Close()) }()
	labels := make([]int64, n)
	for i := range labels {
		labels[i] = int64(i % o.classes)
	}
	data := posthoc.NewData(all.Data[:n*o.dim], o.dim, labels, o.classes)

	fitting, fitPeak, err := watch(func() error {
		_, err := posthoc.FitRMDS(ctx, data, true)
		return err
	})
	if err != nil {
		return err
	}
	// Data of its own: the other keeps the covariances.
	knn, err := posthoc.FitKNN(posthoc.NewData(all.Data[:n*o.dim], o.dim, nil, o.classes), o.k)
	if err != nil {
		return err
	}
	knn.Memory = o.memory
	scores := make([]float64, o.queries)
	scoring, scorePeak, err := watch(func() error {
		return knn.Score(ctx, scores, posthoc.Batch{Features: all.Data[n*o.dim:]})
	})
	if err != nil {
		return err
	}
	flop := float64(n) * float64(o.dim)
	_, err = fmt.Fprintf(table, "%d\t%d\t%.1f\t%.1f\t%d\t%.1f\t%.1f\t%d\t\n", n, 4*n*o.dim>>20,
		fitting.Seconds(), flop*float64(o.dim)/fitting.Seconds()/1e9, fitPeak>>20, // half of 2·N·D²: it is symmetric
		scoring.Seconds(), 2*flop*float64(o.queries)/scoring.Seconds()/1e9, scorePeak>>20)
	return err
}

// write makes n rows of normal features around the means of the classes.
func (o options) write(ctx context.Context, path string, n int) (err error) {
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

// watch returns how long do took and the most memory that the program itself
// held meanwhile; what is mapped from files is not the program's.
func watch(do func() error) (took time.Duration, peak uint64, err error) {
	runtime.GC()
	done := make(chan error)
	start := time.Now()
	go func() { done <- do() }()
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return time.Since(start), peak, err
		case <-tick.C:
			metrics.Read(sample)
			peak = max(peak, sample[0].Value.Uint64()+sample[1].Value.Uint64())
		}
	}
}
