package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"image"
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
	model, photos, program        *string

	file string // the program
}

func benchExtract(f *flag.FlagSet) func(ctx context.Context, dir string) error {
	e := &extraction{
		rounds:  addRounds(f, 3),
		images:  f.Int("images", 1000, "photographs that an extraction has; large models get a quarter"),
		seconds: f.Float64("seconds", 4, "time of a measurement of onnxruntime alone, which large models get thrice"),
		cores:   f.Int("cores", runtime.NumCPU(), "workers of ours, processes of the peer"),
		model:   f.String("model", "", "measure this model `folder` alone (default: EfficientNet-Lite0 and a ViT-B/16 of random weights)"),
		photos:  f.String("photographs", "", "measure with the JPEGs of this `folder`"),
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

func (e *extraction) measure(ctx context.Context, dir string) (err error) {
	if e.file, err = build(*e.program, dir); err != nil {
		return err
	}
	photos, err := photographs(filepath.Join(dir, "photographs"), *e.photos)
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
	if *e.photos == "" {
		if err := e.preprocess(ctx, w, subjects[0], photos, filepath.Join(dir, "alike"), python); err != nil {
			return err
		}
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
		var whole usage
		figures := func(took usage, n int) []float64 {
			return []float64{float64(n) / took.wall.Seconds(), 1000 * took.cpu.Seconds() / float64(n)}
		}
		contenders := []contender{{"ours", func() ([]float64, error) {
			began, err := e.extract(s.folder, one, dir)
			if err == nil {
				whole, err = e.extract(s.folder, all, dir)
			}
			return figures(whole.minus(began), s.images-1), err
		}}, {"ours with its start", func() ([]float64, error) {
			return figures(whole, s.images), nil
		}}, {"ours with its start, without a remembered plan", func() ([]float64, error) {
			if err := os.RemoveAll(filepath.Join(dir, "cache")); err != nil {
				return nil, err
			}
			took, err := e.extract(s.folder, all, dir)
			return figures(took, s.images), err
		}}}
		for _, batch := range []int{1, 4} {
			contenders = append(contenders, contender{fmt.Sprintf("onnxruntime alone, from Go, batch %d", batch), func() ([]float64, error) {
				return e.alone(ctx, s, photos[0], batch)
			}})
		}
		if python != "" {
			processes, folder := strconv.Itoa(*e.cores), filepath.Dir(photos[0])
			for _, batch := range s.batches {
				b := strconv.Itoa(batch)
				contenders = append(contenders,
					contender{fmt.Sprintf("onnxruntime alone, from Python, batch %d", batch), func() ([]float64, error) {
						return peer(python, "alone", s.folder, folder, processes, b, fmt.Sprint(s.seconds))
					}},
					contender{fmt.Sprintf("Python, %d processes, batch %d", *e.cores, batch), func() ([]float64, error) {
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

// race prints the images per second and the milliseconds of processor time per image of
// contenders, and the ratios of ours, the first, to each and to the best of each kind.
func (e *extraction) race(w *tabwriter.Writer, what string, contenders []contender) error {
	medians, err := byTurns(*e.rounds, what, "%.1f images/s, %.2f ms of processor", contenders)
	if err != nil {
		return err
	}
	ours, best := medians[0], map[string][]float64{}
	show := func(name string, v []float64) {
		fmt.Fprintf(w, "%s\t%s\t%.1f\t%.2f×\t%.2f\t%.2f×\t\n", what, name, v[0], ours[0]/v[0], v[1], ours[1]/v[1])
	}
	for i, c := range contenders {
		v := medians[i]
		show(c.name, v)
		kind, _, _ := strings.Cut(c.name, ",")
		if before, ok := best[kind]; ok {
			v = []float64{max(v[0], before[0]), min(v[1], before[1])}
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

// extract runs our program, whose plans are remembered in dir.
func (e *extraction) extract(model, images, dir string) (usage, error) {
	cmd, err := e.command(model, images, filepath.Join(dir, "features"), "--quiet")
	if err != nil {
		return usage{}, err
	}
	cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	r, err := run(cmd, nil)
	return r.usage, err
}

// peer runs the Python program, which prints images per second and milliseconds of
// processor time per image.
func peer(python string, args ...string) ([]float64, error) {
	args = append([]string{python, "scripts/benchmarks/peer_extract.py"}, args...)
	r, err := run(pinned(context.Background(), "", []string{"OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1"}, args...), nil)
	v := make([]float64, 2)
	if err == nil {
		_, err = fmt.Sscan(string(r.out), &v[0], &v[1])
	}
	return v, err
}

// alone measures the session on all cores with prepared tensors.
func (e *extraction) alone(ctx context.Context, s subject, photograph string, batch int) (v []float64, err error) {
	model, err := extractor.OpenModel(ctx, s.folder, extractor.Options{})
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
		rate  float64
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
			rate += float64(done) / time.Since(start).Seconds()
			return nil
		})
	}
	err = group.Wait()
	return []float64{rate, 1000 * (processTime() - used).Seconds() / float64(total)}, err
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
	contenders := []contender{{"ours", func() ([]float64, error) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		const turns = 10
		var img *image.NRGBA // as each worker of an extraction has
		start := processTime()
		for range turns {
			for _, file := range alike {
				var err error
				if img, err = decode(ctx, file, preprocess.DecodeOptions{For: spec, Reuse: img}); err != nil {
					return nil, err
				}
				if err := spec.Tensor(tensor, img, preprocess.NCHW); err != nil {
					return nil, err
				}
			}
		}
		return onOneCore(1000 * (processTime() - start).Seconds() / turns / float64(len(alike))), nil
	}}}
	if python != "" {
		contenders = append(contenders, contender{"Pillow and numpy", func() ([]float64, error) {
			v, err := peer(python, "preprocess", s.folder, folder)
			return onOneCore(v[1]), err
		}})
	}
	return e.race(w, "500×375 to tensor", contenders)
}

// onOneCore is the speed of a task that takes a number of milliseconds of one processor.
func onOneCore(cost float64) []float64 { return []float64{1000 / cost, cost} }

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
		fmt.Printf("%d kB: %s\n", proc(cmd.Process.Pid, "status", "VmRSS:"), lines.Text())
	}
	return cmd.Wait()
}
