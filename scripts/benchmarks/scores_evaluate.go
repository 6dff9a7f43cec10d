package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// openOOD are the sets of OpenOOD's CIFAR-10 benchmark, and the training set,
// with their numbers of images.
var openOOD = []struct {
	name, group string
	n           int
}{
	{"train", "", 50_000}, {"id", "", 10_000},
	{"cifar100", pipeline.Near, 9_000}, {"tin", pipeline.Near, 7_793},
	{"mnist", pipeline.Far, 70_000}, {"svhn", pipeline.Far, 26_032}, {"texture", pipeline.Far, 5_640}, {"places365", pipeline.Far, 35_195},
}

// evaluate compares all methods on synthetic sets of these sizes and prints how
// long each took. Heads train for one epoch.
func (o *scoring) evaluate(ctx context.Context, stdout io.Writer) (err error) {
	dir, err := os.MkdirTemp(o.scratch, "bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	opts := pipeline.EvaluateOptions{Out: filepath.Join(dir, "report"), Memory: o.memory}
	for i, set := range openOOD {
		path := filepath.Join(dir, set.name)
		if err := writeSet(ctx, path, uint64(i), set.n, o.evaluateDim, set.group); err != nil {
			return err
		}
		switch {
		case set.name == "train":
			opts.Train.Features = []string{path}
		case set.group == "":
			opts.ID = path
		default:
			opts.OOD = append(opts.OOD, pipeline.OODSet{Group: set.group, Name: set.name, Features: path})
		}
	}
	opts.Train.Train = head.TrainOptions{Epochs: 1}

	const training = "training"
	took := map[string]usage{}
	var names []string
	var mu sync.Mutex
	last := used()
	spent := func(on string) {
		now := used()
		if _, ok := took[on]; !ok {
			names = append(names, on)
		}
		took[on] = took[on].plus(now.minus(last))
		last = now
	}
	opts.Progress = func(what string, _, _ int) {
		mu.Lock()
		defer mu.Unlock()
		name, phase, _ := strings.Cut(what, ":")
		if strings.TrimSpace(phase) == training {
			name = training
		}
		name, _, _ = strings.Cut(name, ",")
		spent(name)
	}
	_, err = pipeline.Evaluate(ctx, opts)
	spent("report")
	var all usage
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "evaluate\ts\tCPU s\t")
	for _, name := range names {
		fmt.Fprintf(table, "%s\t%.2f\t%.2f\t\n", name, took[name].wall.Seconds(), took[name].cpu.Seconds())
		if name != training {
			all = all.plus(took[name])
		}
	}
	fmt.Fprintf(table, "all but training\t%.2f\t%.2f\t\n", all.wall.Seconds(), all.cpu.Seconds())
	return errors.Join(err, table.Flush())
}

// writeSet makes a set of n rows that cycle through ten classes. Features are
// positive, as after an activation, and are distributed around the class means,
// which all sets without a group share. Near rows are between two of these means,
// far rows around other means.
func writeSet(ctx context.Context, dir string, seed uint64, n, d int, group string) error {
	const classes = 10
	random := rand.New(rand.NewPCG(0, 1))
	means := make([]float32, classes*d)
	for i := range means {
		means[i] = float32(random.NormFloat64())
	}
	random = rand.New(rand.NewPCG(seed, 2))
	if group == pipeline.Far {
		for i := range means {
			means[i] = float32(random.NormFloat64())
		}
	}
	x, labels := make([]float32, n*d), make([]int64, n)
	for i := range n {
		if i%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		labels[i] = int64(i % classes)
		a, b := means[i%classes*d:], means[i%classes*d:]
		if group == pipeline.Near {
			b = means[(i+1+i/classes%(classes-1))%classes*d:]
		}
		for j := range d {
			x[i*d+j] = max((a[j]+b[j])/2+float32(random.NormFloat64())*2, 0)
		}
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if err := npy.WriteFile(filepath.Join(dir, "features.npy"), x, n, d); err != nil || group != "" {
		return err
	}
	return npy.WriteFile(filepath.Join(dir, "labels.npy"), labels, n)
}
