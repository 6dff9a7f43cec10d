package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"image"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
)

// extraction measures images per second from JPEG photographs to features.npy, and
// compares with Python and with onnxruntime alone on prepared tensors.
type extraction struct {
	rounds, images, cores, memory *int
	seconds                       *float64
	model, program                *string

	file string // the program
}

func benchExtract(f *flag.FlagSet) func(ctx context.Context, dir string) error {
	e := &extraction{
		rounds:  addRounds(f, 3),
		images:  f.Int("images", 1000, "photographs that an extraction has; large models get a quarter"),
		seconds: f.Float64("seconds", 4, "time of a measurement of onnxruntime alone, which large models get thrice"),
		cores:   f.Int("cores", runtime.NumCPU(), "workers of ours, processes of the peer"),
		model:   f.String("model", "", "measure this model `folder` alone (default: EfficientNet-Lite0 and a ViT-B/16 of random weights)"),
		memory:  f.Int("memory", 0, "instead, show the memory of an extraction of so many photographs"),
		program: addProgram(f),
	}
	return e.measure
}

// subject is a model to measure with.
type subject struct {
	name, folder string
	images       int
	seconds      float64
	batches      []int // batch sizes of the peer; the best result is used
}

// A contender is one way to extract. It is measured once per round.
type contender struct {
	name    string
	measure func() (speed, error)
}

// speed is the speed of a contender.
type speed struct {
	rate float64 // images per second
	cost float64 // milliseconds of processor time per image
}

func (e *extraction) measure(ctx context.Context, dir string) (err error) {
	if e.file, err = build(*e.program, dir); err != nil {
		return err
	}
	photos, err := photographs(filepath.Join(dir, "photographs"))
	if err != nil {
		return err
	}
	subjects := []subject{
		{"EfficientNet-Lite0", "models/efficientnet-lite0", *e.images, *e.seconds, []int{1, 4, 16}},
		{"ViT-B/16", ".setup/vit-b-16", *e.images / 4, 3 * *e.seconds, []int{1}},
	}
	if *e.model != "" {
		subjects = []subject{{filepath.Base(*e.model), *e.model, *e.images, *e.seconds, []int{1, 4, 16}}}
	}
	if *e.memory > 0 {
		all, err := repeat(photos, filepath.Join(dir, "many"), *e.memory)
		if err != nil {
			return err
		}
		return e.showMemory(subjects[0].folder, all, filepath.Join(dir, "features"))
	}
	python := peersPython("onnxruntime, PIL, numpy")
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer w.Flush()
	fmt.Fprintf(w, "model\twhat\timages/s\tours is\tprocessor ms\tours takes\t\n")
	if err := e.preprocess(ctx, w, subjects[0], photos, filepath.Join(dir, "alike"), python); err != nil {
		return err
	}
	for i, s := range subjects {
		all, err := repeat(photos, filepath.Join(dir, strconv.Itoa(i)), s.images)
		if err != nil {
			return err
		}
		one, err := repeat(photos, filepath.Join(dir, strconv.Itoa(i)+"one"), 1)
		if err != nil {
			return err
		}
		contenders := []contender{{"ours", func() (speed, error) {
			start, used, err := e.extract(s.folder, one, filepath.Join(dir, "features"))
			if err != nil {
				return speed{}, err
			}
			took, usedAll, err := e.extract(s.folder, all, filepath.Join(dir, "features"))
			n := float64(s.images - 1)
			return speed{n / (took - start).Seconds(), 1000 * (usedAll - used).Seconds() / n}, err
		}}}
		for _, batch := range []int{1, 4} {
			contenders = append(contenders, contender{fmt.Sprintf("onnxruntime alone, from Go, batch %d", batch), func() (speed, error) {
				return e.alone(ctx, s, photos[0], batch)
			}})
		}
		if python != "" {
			processes, folder := strconv.Itoa(*e.cores), filepath.Dir(photos[0])
			for _, batch := range s.batches {
				b := strconv.Itoa(batch)
				contenders = append(contenders,
					contender{fmt.Sprintf("onnxruntime alone, from Python, batch %d", batch), func() (speed, error) {
						return peer(python, "alone", s.folder, folder, processes, b, fmt.Sprint(s.seconds))
					}},
					contender{fmt.Sprintf("Python, %d processes, batch %d", *e.cores, batch), func() (speed, error) {
						return peer(python, "extract", s.folder, all, processes, b)
					}})
			}
		}
		if err := e.race(w, s.name, contenders); err != nil {
			return err
		}
	}
	return nil
}

// race measures each contender in every round. It prints the medians, and the
// ratios of ours, the first, to each and to the best of each kind.
func (e *extraction) race(w *tabwriter.Writer, what string, contenders []contender) error {
	rates, costs := make([][]float64, len(contenders)), make([][]float64, len(contenders))
	for round := range *e.rounds {
		for i, c := range contenders {
			v, err := c.measure()
			if err != nil {
				return fmt.Errorf("%s, %s: %w", what, c.name, err)
			}
			log.Printf("round %d of %d: %-20s %-40s %8.1f images/s %8.2f ms of processor", round+1, *e.rounds, what, c.name, v.rate, v.cost)
			rates[i], costs[i] = append(rates[i], v.rate), append(costs[i], v.cost)
		}
	}
	var ours speed
	best := map[string]speed{}
	show := func(name string, v speed) {
		fmt.Fprintf(w, "%s\t%s\t%.1f\t%.2f×\t%.2f\t%.2f×\t\n", what, name, v.rate, ours.rate/v.rate, v.cost, ours.cost/v.cost)
	}
	for i, c := range contenders {
		v := speed{median(rates[i]), median(costs[i])}
		if i == 0 {
			ours = v
		}
		show(c.name, v)
		kind, _, _ := strings.Cut(c.name, ",")
		if before, ok := best[kind]; ok {
			v = speed{max(v.rate, before.rate), min(v.cost, before.cost)}
		}
		best[kind] = v
	}
	for _, kind := range []string{"onnxruntime alone", "Python"} {
		if v, ok := best[kind]; ok {
			show("the best of "+kind, v)
		}
	}
	return nil
}

// command is our program on a folder of images, with a fresh result.
func (e *extraction) command(model, images, out string, flags ...string) (*exec.Cmd, error) {
	if err := os.RemoveAll(out); err != nil {
		return nil, err
	}
	cmd := exec.Command(e.file, append([]string{"extract"}, append(flags, "--model", model, "--images", images, "--out", out)...)...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", *e.cores))
	return cmd, nil
}

// extract runs our program and returns its wall-clock and its processor time.
func (e *extraction) extract(model, images, out string) (took, used time.Duration, err error) {
	cmd, err := e.command(model, images, out, "--quiet")
	if err != nil {
		return 0, 0, err
	}
	cmd.Stderr = os.Stderr
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return 0, 0, err
	}
	return time.Since(start), cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

// peer runs the Python program, which prints a speed.
func peer(python string, args ...string) (v speed, err error) {
	cmd := exec.Command(python, append([]string{"scripts/benchmarks/peer_extract.py"}, args...)...)
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return v, err
	}
	_, err = fmt.Sscan(string(out), &v.rate, &v.cost)
	return v, err
}

// alone measures the session on all cores with prepared tensors.
func (e *extraction) alone(ctx context.Context, s subject, photograph string, batch int) (v speed, err error) {
	model, err := extractor.OpenModel(s.folder, extractor.ModelOptions{})
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	img, err := decode(ctx, photograph, preprocess.DecodeOptions{})
	if err != nil {
		return v, err
	}
	runners := make([]*extractor.Runner, *e.cores)
	for i := range runners {
		r, err := model.NewRunner(batch)
		if err != nil {
			return v, err
		}
		defer func() { err = errors.Join(err, r.Close()) }()
		for n := range r.Batch() {
			err = errors.Join(err, model.Spec.Tensor(r.Input(n), img, model.Layout()))
		}
		if err = errors.Join(err, r.Run(ctx, r.Batch())); err != nil {
			return v, err
		}
		runners[i] = r
	}
	var (
		group errgroup.Group
		mu    sync.Mutex
		total int
		used  = processTime()
	)
	for _, r := range runners {
		group.Go(func() error {
			done, start := 0, time.Now()
			for time.Since(start).Seconds() < s.seconds {
				if err := r.Run(ctx, r.Batch()); err != nil {
					return err
				}
				done += r.Batch()
			}
			mu.Lock()
			defer mu.Unlock()
			total += done
			v.rate += float64(done) / time.Since(start).Seconds()
			return nil
		})
	}
	err = group.Wait()
	v.cost = 1000 * (processTime() - used).Seconds() / float64(total)
	return v, err
}

func decode(ctx context.Context, file string, opts preprocess.DecodeOptions) (*image.NRGBA, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return preprocess.Decode(ctx, data, opts)
}

// preprocess measures the processor time from a photograph of 500×375 to its
// tensor, on one core.
func (e *extraction) preprocess(ctx context.Context, w *tabwriter.Writer, s subject, photos []string, dir, python string) error {
	spec, err := preprocess.Load(s.folder)
	if err != nil {
		return err
	}
	var alike []string
	for _, file := range photos {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if w, h, err := preprocess.Size(data); err == nil && w == 500 && h == 375 {
			alike = append(alike, file)
		}
	}
	if len(alike) == 0 {
		return errors.New("none of the photographs is 500×375")
	}
	folder, err := repeat(alike, dir, len(alike))
	if err != nil {
		return err
	}
	tensor := make([]float32, spec.Channels()*spec.Height*spec.Width)
	contenders := []contender{{"ours", func() (speed, error) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		const turns = 10
		var img *image.NRGBA // as each worker of an extraction has
		start := processTime()
		for range turns {
			for _, file := range alike {
				var err error
				if img, err = decode(ctx, file, preprocess.DecodeOptions{For: spec, Reuse: img}); err != nil {
					return speed{}, err
				}
				if err := spec.Tensor(tensor, img, preprocess.NCHW); err != nil {
					return speed{}, err
				}
			}
		}
		return onOneCore(1000 * (processTime() - start).Seconds() / turns / float64(len(alike))), nil
	}}}
	if python != "" {
		contenders = append(contenders, contender{"Pillow and numpy", func() (speed, error) {
			v, err := peer(python, "preprocess", s.folder, folder)
			return onOneCore(v.cost), err
		}})
	}
	return e.race(w, "500×375 to tensor", contenders)
}

// onOneCore is the speed of a task that takes a number of milliseconds of one processor.
func onOneCore(cost float64) speed { return speed{1000 / cost, cost} }

// showMemory prints the resident memory of an extraction with its progress.
func (e *extraction) showMemory(model, images, out string) error {
	cmd, err := e.command(model, images, out)
	if err != nil {
		return err
	}
	progress, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(progress)
	for lines.Scan() {
		fmt.Printf("%s: %s\n", resident(cmd.Process.Pid), lines.Text())
	}
	return cmd.Wait()
}

// resident returns the resident memory of a process on Linux.
func resident(pid int) string {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return err.Error()
	}
	for line := range strings.Lines(string(status)) {
		if size, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return strings.TrimSpace(size)
		}
	}
	return "ended"
}
