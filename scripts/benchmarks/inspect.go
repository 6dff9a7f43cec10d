package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"

	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// inspecting measures the inspection of many made-up features, with time and memory of
// each step, and how many of the planted faults it finds.
type inspecting struct {
	thousand // makes the features

	wrong, copies float64
	test          int
}

func benchInspect(f *flag.FlagSet) func(ctx context.Context, dir string) error {
	b := &inspecting{thousand: thousand{memory: 2 << 30, apart: 2}}
	f.IntVar(&b.rows, "rows", 1_000_000, "rows to inspect")
	f.IntVar(&b.classes, "classes", 100, "classes")
	f.IntVar(&b.dim, "dim", 64, "features of a row")
	f.IntVar(&b.test, "test", 10_000, "rows of test features, of which a tenth are copies of rows")
	f.Float64Var(&b.wrong, "wrong", .02, "`share` of wrong labels")
	f.Float64Var(&b.copies, "copies", .001, "`share` of rows that are near copies of others")
	f.Var((*command.Bytes)(&b.memory), "memory", "what --memory of inspect is given, in `bytes`")
	f.StringVar(&b.folder, "folder", "", "`folder` for the features, 4 bytes a value (default: the system's for temporary files)")
	f.StringVar(&b.profile, "profile", "", "`file` to write a CPU profile to")
	return b.measure
}

func (b *inspecting) measure(ctx context.Context, _ string) (err error) {
	dir, err := os.MkdirTemp(b.folder, "inspect")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b.queries, b.others = b.test, b.test
	if err := b.make(ctx, dir); err != nil {
		return err
	}
	planted, err := b.plant(dir)
	if err != nil {
		return err
	}
	stop, err := profile(b.profile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	fmt.Printf("%d rows, %d features, %d classes, %d test rows; %d cores, kernels %s\n", b.rows, b.dim, b.classes, b.test, runtime.GOMAXPROCS(0), kernels.Name())
	w := watchSteps("", nil)
	r, err := pipeline.Inspect(ctx, pipeline.InspectOptions{
		Features: []string{filepath.Join(dir, "train")}, Test: []string{filepath.Join(dir, "id")}, Memory: b.memory, Scratch: b.folder,
		Progress: func(what string, _, _ int) { w.step(what) },
	})
	if err := errors.Join(err, w.close()); err != nil {
		return err
	}
	fmt.Printf("\naccuracy out of fold %.1f%%\n", 100*r.Accuracy)
	for _, kind := range []training.IssueKind{training.Label, training.Duplicate, training.Leak} {
		right, listed := map[int]bool{}, 0
		for _, issue := range r.Issues {
			if issue.Kind != kind {
				continue
			}
			if listed++; planted[kind][issue.Row] {
				right[issue.Row] = true
			}
		}
		fmt.Printf("%s: %d planted, %d of them found, %d others listed\n", kind, len(planted[kind]), len(right), listed-len(right))
	}
	return nil
}

// plant gives rows wrong labels, and makes some rows near copies of others, also of
// the test rows. It returns the rows.
func (b *inspecting) plant(dir string) (map[training.IssueKind]map[int]bool, error) {
	rng := rand.New(rand.NewPCG(3, 4))
	planted := map[training.IssueKind]map[int]bool{training.Label: {}, training.Duplicate: {}, training.Leak: {}}
	labels := make([]int64, b.rows)
	for i := range labels {
		labels[i] = b.labelOf(i, b.classes, b.rows)
		if rng.Float64() < b.wrong {
			labels[i] = (labels[i] + 1 + rng.Int64N(int64(b.classes-1))) % int64(b.classes)
			planted[training.Label][i] = true
		}
	}
	train, err := os.OpenFile(filepath.Join(dir, "train", "features.npy"), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer train.Close()
	test, err := os.OpenFile(filepath.Join(dir, "id", "features.npy"), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer test.Close()
	// Every other row, in a random order, may be copied: none is a copy itself.
	order := rng.Perm(b.rows / 2)
	for k := range int(b.copies * float64(b.rows)) {
		i := 2 * order[k]
		if err := b.copyRow(rng, train, i, train, i+1, b.rows); err != nil {
			return nil, err
		}
		labels[i+1] = labels[i]
		delete(planted[training.Label], i+1)
		if planted[training.Label][i] {
			planted[training.Label][i+1] = true
		}
		planted[training.Duplicate][i+1] = true
	}
	for k := range b.test / 10 {
		i := 2 * order[len(order)-1-k]
		if err := b.copyRow(rng, train, i, test, k, b.test); err != nil {
			return nil, err
		}
		planted[training.Leak][i] = true
	}
	return planted, npy.WriteFile(filepath.Join(dir, "train", "labels.npy"), labels, b.rows)
}

// copyRow writes row i of a file to row j of another with n rows, with a cosine of .999.
func (b *inspecting) copyRow(rng *rand.Rand, from *os.File, i int, to *os.File, j, n int) error {
	info, err := to.Stat()
	if err != nil {
		return err
	}
	size := int64(4 * b.dim)
	row := make([]byte, size)
	source, err := from.Stat()
	if err != nil {
		return err
	}
	rows := n
	if from != to {
		rows = b.rows
	}
	if _, err := from.ReadAt(row, source.Size()-int64(rows-i)*size); err != nil {
		return err
	}
	var square float64
	x := make([]float64, b.dim)
	for k := range x {
		x[k] = float64(math.Float32frombits(binary.LittleEndian.Uint32(row[4*k:])))
		square += x[k] * x[k]
	}
	noise := math.Sqrt(.002 * square / float64(b.dim))
	for k, v := range x {
		binary.LittleEndian.PutUint32(row[4*k:], math.Float32bits(float32(v+noise*rng.NormFloat64())))
	}
	_, err = to.WriteAt(row, info.Size()-int64(n-j)*size)
	return err
}
