// Benchextract measures images per second from JPEG photographs to
// features.npy, ours beside Python's and beside onnxruntime alone on ready
// tensors, interleaved, and prints medians and ratios. Run it by
// scripts/bench_extract.

//go:build unix

package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"image"
	"image/jpeg"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/disintegration/imaging"
	"golang.org/x/sync/errgroup"

	"mlrbfn/extractor"
	"mlrbfn/extractor/preprocess"
)

var (
	rounds  = flag.Int("rounds", 3, "times that everything is measured, in turn")
	images  = flag.Int("images", 1000, "photographs that an extraction has; large models get a quarter")
	seconds = flag.Float64("seconds", 4, "time of a measurement of onnxruntime alone, which large models get thrice")
	cores   = flag.Int("cores", runtime.NumCPU(), "workers of ours, processes of the peer")
	only    = flag.String("model", "", "measure this model `FOLDER` alone (default: EfficientNet-Lite0 and a ViT-B/16)")
	memory  = flag.Int("memory", 0, "instead, show the memory of an extraction of so many photographs")
)

// subject is a model to measure with.
type subject struct {
	name, folder string
	images       int
	seconds      float64
	batches      []int // that the peer is given, of which the best counts
}

// A contender is what is measured once a round.
type contender struct {
	name    string
	measure func() (speed, error)
}

// speed is what a contender reaches.
type speed struct {
	rate float64 // images per second
	cost float64 // milliseconds that an image takes of the processors
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench_extract: ")
	flag.Parse()
	if err := bench(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func bench(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "bench_extract")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "extract")
	if out, err := exec.Command("go", "build", "-o", program, "./cmd/extract").CombinedOutput(); err != nil {
		return fmt.Errorf("building extract: %w\n%s", err, out)
	}
	photographs, err := collect(filepath.Join(dir, "photographs"))
	if err != nil {
		return err
	}
	subjects := []subject{
		{"EfficientNet-Lite0", "models/efficientnet-lite0", *images, *seconds, []int{1, 4, 16}},
		{"ViT-B/16", ".setup/vit-b-16", *images / 4, 3 * *seconds, []int{1}},
	}
	if *only != "" {
		subjects = []subject{{filepath.Base(*only), *only, *images, *seconds, []int{1, 4, 16}}}
	}
	if *memory > 0 {
		all, err := repeat(photographs, filepath.Join(dir, "many"), *memory)
		if err != nil {
			return err
		}
		return showMemory(program, subjects[0].folder, all, filepath.Join(dir, "features"))
	}
	python := os.Getenv("MLRBFN_PEERS_PYTHON")
	if python == "" {
		log.Print("no peer: set MLRBFN_PEERS_PYTHON to a Python with onnxruntime, pillow and numpy, or use --install")
	} else if out, err := exec.Command(python, "-c", "import onnxruntime, PIL, numpy").CombinedOutput(); err != nil {
		log.Printf("no peer: %v: %s", err, out)
		python = ""
	}

	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer w.Flush()
	fmt.Fprintf(w, "model\twhat\timages/s\tours is\tprocessor ms\tours takes\t\n")
	if err := benchPreprocess(ctx, w, subjects[0], photographs, filepath.Join(dir, "alike"), python); err != nil {
		return err
	}
	for i, s := range subjects {
		all, err := repeat(photographs, filepath.Join(dir, strconv.Itoa(i)), s.images)
		if err != nil {
			return err
		}
		one, err := repeat(photographs, filepath.Join(dir, strconv.Itoa(i)+"one"), 1)
		if err != nil {
			return err
		}
		contenders := []contender{{"ours", func() (speed, error) {
			start, used, err := extract(program, s.folder, one, filepath.Join(dir, "features"))
			if err != nil {
				return speed{}, err
			}
			took, usedAll, err := extract(program, s.folder, all, filepath.Join(dir, "features"))
			n := float64(s.images - 1)
			return speed{n / (took - start).Seconds(), 1000 * (usedAll - used).Seconds() / n}, err
		}}}
		for _, batch := range []int{1, 4} {
			contenders = append(contenders, contender{fmt.Sprintf("onnxruntime alone, from Go, batch %d", batch), func() (speed, error) {
				return alone(ctx, s, photographs[0], batch)
			}})
		}
		if python != "" {
			processes, folder := strconv.Itoa(*cores), filepath.Dir(photographs[0])
			for _, batch := range s.batches {
				b := strconv.Itoa(batch)
				contenders = append(contenders,
					contender{fmt.Sprintf("onnxruntime alone, from Python, batch %d", batch), func() (speed, error) {
						return peer(python, "alone", s.folder, folder, processes, b, fmt.Sprint(s.seconds))
					}},
					contender{fmt.Sprintf("Python, %d processes, batch %d", *cores, batch), func() (speed, error) {
						return peer(python, "extract", s.folder, all, processes, b)
					}})
			}
		}
		if err := race(w, s.name, contenders); err != nil {
			return err
		}
	}
	return nil
}

// race measures each contender in every round and prints the medians, and how
// ours, the first, compares with each and with the best of a kind.
func race(w *tabwriter.Writer, what string, contenders []contender) error {
	rates, costs := make([][]float64, len(contenders)), make([][]float64, len(contenders))
	for round := range *rounds {
		for i, c := range contenders {
			v, err := c.measure()
			if err != nil {
				return fmt.Errorf("%s, %s: %w", what, c.name, err)
			}
			log.Printf("round %d of %d: %-20s %-40s %8.1f images/s %8.2f ms of processor", round+1, *rounds, what, c.name, v.rate, v.cost)
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

func median(x []float64) float64 {
	slices.Sort(x)
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

// collect copies photographs into a folder and returns their files: those of
// the shared folder or, without it, set-up's, cut to 500×375 and made JPEGs.
func collect(to string) ([]string, error) {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return nil, err
	}
	shared := os.Getenv("MLRBFN_SHARED")
	if shared == "" {
		shared = filepath.Join("..", "shared")
	}
	var files []string
	err := filepath.WalkDir(filepath.Join(shared, "data", "images", "imagenet_samples"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files = append(files, filepath.Join(to, fmt.Sprintf("%04d.jpg", len(files))))
		return os.WriteFile(files[len(files)-1], data, 0o644)
	})
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return files, err
	}
	found, err := filepath.Glob(filepath.Join(".setup", "photos", "*"))
	if err != nil {
		return nil, err
	}
	for _, path := range found {
		img, err := imaging.Open(path)
		if err != nil || img.Bounds().Dx() < 300 || img.Bounds().Dy() < 225 {
			continue
		}
		files = append(files, filepath.Join(to, fmt.Sprintf("%04d.jpg", len(files))))
		f, err := os.Create(files[len(files)-1])
		if err != nil {
			return nil, err
		}
		photograph := imaging.Fill(img, 500, 375, imaging.Center, imaging.CatmullRom)
		if err := errors.Join(jpeg.Encode(f, photograph, &jpeg.Options{Quality: 90}), f.Close()); err != nil {
			return nil, err
		}
	}
	if len(files) == 0 {
		return nil, errors.New("no photographs: run `make setup`, or set MLRBFN_SHARED")
	}
	return files, nil
}

// repeat makes a folder of n photographs by linking them again and again.
func repeat(photographs []string, dir string, n int) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for i := range n {
		if err := os.Link(photographs[i%len(photographs)], filepath.Join(dir, fmt.Sprintf("%07d.jpg", i))); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// command is our program on a folder of images, with a fresh result.
func command(program, model, images, out string, flags ...string) (*exec.Cmd, error) {
	if err := os.RemoveAll(out); err != nil {
		return nil, err
	}
	cmd := exec.Command(program, append(flags, "--model", model, "--images", images, "--out", out)...)
	cmd.Env = append(os.Environ(), fmt.Sprintf("GOMAXPROCS=%d", *cores))
	return cmd, nil
}

// extract runs our program and returns how long it took, and how long of the
// processors.
func extract(program, model, images, out string) (took, used time.Duration, err error) {
	cmd, err := command(program, model, images, out, "--quiet")
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

// peer runs Python's part, which prints a speed.
func peer(python string, args ...string) (v speed, err error) {
	cmd := exec.Command(python, append([]string{"scripts/peer_extract.py"}, args...)...)
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return v, err
	}
	_, err = fmt.Sscan(string(out), &v.rate, &v.cost)
	return v, err
}

// alone is the speed of the session on all cores when the tensors are ready.
func alone(ctx context.Context, s subject, photograph string, batch int) (v speed, err error) {
	model, err := extractor.OpenModel(s.folder, extractor.ModelOptions{})
	if err != nil {
		return v, err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	img, err := decode(ctx, photograph, preprocess.DecodeOptions{})
	if err != nil {
		return v, err
	}
	runners := make([]*extractor.Runner, *cores)
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

// benchPreprocess measures the way from a photograph of 500×375 to its tensor
// on one core, as time of the processor.
func benchPreprocess(ctx context.Context, w *tabwriter.Writer, s subject, photographs []string, dir, python string) error {
	spec, err := preprocess.Load(s.folder)
	if err != nil {
		return err
	}
	var alike []string
	for _, file := range photographs {
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
		var img *image.NRGBA // as a worker of an extraction has one
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
	return race(w, "500×375 to tensor", contenders)
}

// onOneCore is the speed of what takes so many milliseconds of one processor.
func onOneCore(cost float64) speed { return speed{1000 / cost, cost} }

// processTime is what this process has used of the processor.
func processTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// showMemory prints the resident memory of an extraction with its progress.
func showMemory(program, model, images, out string) error {
	cmd, err := command(program, model, images, out)
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

// resident is the memory of a process, as Linux tells it.
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
