// Benchdetect measures what detection takes, in turn with what it cannot do
// without: decoding and the model's run for an image, loading the model at the
// start, extraction for a folder. It prints medians. Run it by
// scripts/bench_detect.

//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"image"
	"io"
	"io/fs"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	ort "github.com/yalue/onnxruntime_go"

	"mlrbfn/extractor"
	"mlrbfn/extractor/preprocess"
	"mlrbfn/internal/npy"
	"mlrbfn/pipeline"
)

var (
	modelDir = flag.String("model", filepath.Join("models", "efficientnet-lite0"), "folder of the model")
	images   = flag.String("images", "", "folder of photographs (default: MLRBFN_SHARED's, or else set-up's)")
	rounds   = flag.Int("rounds", 5, "times that everything is measured, in turn")
	copies   = flag.Int("copies", 1000, "images in the folder that is extracted and detected")
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench_detect: ")
	flag.Parse()
	if err := bench(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func bench(ctx context.Context) error {
	photos, err := findPhotos()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench_detect")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if out, err := exec.Command("go", "build", "-o", dir, "./cmd/extract", "./cmd/detect").CombinedOutput(); err != nil {
		return fmt.Errorf("building: %w\n%s", err, out)
	}
	model, err := extractor.OpenModel(*modelDir, extractor.ModelOptions{})
	if err != nil {
		return err
	}
	defer model.Close()
	detector, err := train(ctx, dir, model.Dim())
	if err != nil {
		return err
	}
	folder := filepath.Join(dir, "photos")
	if err := repeat(photos, folder); err != nil {
		return err
	}
	runner, err := model.NewRunner(1)
	if err != nil {
		return err
	}
	defer runner.Close()

	judging, err := newFilter(ctx, detector)
	if err != nil {
		return err
	}
	if err := judging.judge(photos[0]); err != nil { // which takes memory
		return err
	}

	measured, used := map[string][]float64{}, map[string][]float64{} // ms of each round, and of the processors
	note := func(round int, what string, per int, do func() error) error {
		start, before := time.Now(), processTime()
		if err := do(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		for _, table := range []map[string][]float64{measured, used} {
			if table[what] == nil {
				table[what] = make([]float64, *rounds)
			}
		}
		measured[what][round] += time.Since(start).Seconds() * 1000 / float64(per)
		used[what][round] += (processTime() - before).Seconds() * 1000 / float64(per)
		return nil
	}
	program := func(name string, args ...string) func() error {
		return func() error {
			var says bytes.Buffer
			cmd := exec.CommandContext(ctx, filepath.Join(dir, name), args...)
			cmd.Stderr = &says
			if err := cmd.Run(); err != nil {
				return fmt.Errorf("%w: %s", err, says.String())
			}
			return nil
		}
	}
	var img *image.NRGBA // reused, as detect does
	verdict := []string{"--detector", detector, "--model", *modelDir, "--json", "--quiet"}
	for round := range *rounds {
		log.Printf("round %d of %d", round+1, *rounds)
		features := filepath.Join(dir, "features")
		err := errors.Join(
			// In turn, so that a run finds the caches as any does that follows decoding.
			each(photos, func(photo extractor.Item) (err error) {
				return errors.Join(
					note(round, "decode", len(photos), func() error {
						img, err = decode(ctx, photo, preprocess.DecodeOptions{For: model.Spec, Reuse: img})
						return err
					}),
					note(round, "run", len(photos), func() error { return runner.Run(ctx, 1) }),
				)
			}),
			each(photos, func(photo extractor.Item) error {
				return note(round, "verdict", len(photos), func() error { return judging.judge(photo) })
			}),
			note(round, "load", 1, func() error { return load(model) }),
			note(round, "detect one", 1, program("detect", append(verdict, photos[0].File)...)),
			note(round, "extract folder", *copies, program("extract", "--model", *modelDir, "--images", folder, "--out", features, "--quiet")),
			note(round, "detect folder", *copies, program("detect", append(verdict, folder)...)),
			os.RemoveAll(features),
		)
		if err != nil {
			return err
		}
	}

	if err := judging.close(); err != nil {
		return err
	}

	ms := func(what string) float64 { return median(measured[what]) }
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	cpu := func(what string) float64 { return median(used[what]) }
	fmt.Fprintf(w, "one of %d photographs\tms\t\tprocessor ms\t\n", len(photos))
	fmt.Fprintf(w, "decoding\t%.2f\t\t%.2f\t\n", ms("decode"), cpu("decode"))
	fmt.Fprintf(w, "the model's own run\t%.2f\t\t%.2f\t\n", ms("run"), cpu("run"))
	fmt.Fprintf(w, "from file to verdict\t%.2f\t%.2f× of both together\t%.2f\t%.2f×\n",
		ms("verdict"), ms("verdict")/(ms("decode")+ms("run")), cpu("verdict"), cpu("verdict")/(cpu("decode")+cpu("run")))
	fmt.Fprintf(w, "\nstart of the program\tms\t\n")
	fmt.Fprintf(w, "onnxruntime loads the model\t%.0f\t\n", ms("load"))
	fmt.Fprintf(w, "detect judges one image\t%.0f\t%.0f ms beside loading and the verdict\n", ms("detect one"), ms("detect one")-ms("load")-ms("verdict"))
	fmt.Fprintf(w, "\na folder of %d photographs, all cores\timages/s\t\n", *copies)
	fmt.Fprintf(w, "extract\t%.0f\t\n", 1000/ms("extract folder"))
	fmt.Fprintf(w, "detect\t%.0f\t%.2f× of extract\n", 1000/ms("detect folder"), ms("extract folder")/ms("detect folder"))
	return w.Flush()
}

// findPhotos lists the photographs to judge.
func findPhotos() ([]extractor.Item, error) {
	root := *images
	if root == "" {
		shared := os.Getenv("MLRBFN_SHARED")
		if shared == "" {
			shared = filepath.Join("..", "shared")
		}
		root = filepath.Join(shared, "data", "images", "imagenet_samples")
		if _, err := os.Stat(root); errors.Is(err, fs.ErrNotExist) {
			root = filepath.Join(".setup", "photos")
		}
	}
	listing, err := extractor.List(extractor.ListOptions{Root: root})
	if err != nil {
		return nil, err
	}
	return listing.Items, nil
}

// repeat fills a folder with so many copies of the photographs.
func repeat(photos []extractor.Item, folder string) error {
	if err := os.Mkdir(folder, 0o777); err != nil {
		return err
	}
	for i := range *copies {
		from := photos[i%len(photos)].File
		data, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, fmt.Sprintf("%05d%s", i, filepath.Ext(from))), data, 0o666)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// train makes a detector of made-up features of ten classes, which takes as long
// to judge by as any.
func train(ctx context.Context, dir string, d int) (file string, err error) {
	const n, classes = 2000, 10
	rng := rand.New(rand.NewPCG(1, 2))
	x, labels := make([]float32, n*d), make([]int64, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64() + float64(i/d%classes*(i%d%classes))/5)
	}
	for i := range labels {
		labels[i] = int64(i % classes)
	}
	features := filepath.Join(dir, "made-up")
	err = errors.Join(os.Mkdir(features, 0o777),
		npy.WriteFile(filepath.Join(features, "features.npy"), x, n, d),
		npy.WriteFile(filepath.Join(features, "labels.npy"), labels, n))
	if err != nil {
		return "", err
	}
	detector, _, err := pipeline.Train(ctx, pipeline.TrainOptions{Features: []string{features}})
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "detector.safetensors")
	return file, detector.Save(file)
}

func each(photos []extractor.Item, do func(extractor.Item) error) error {
	for _, photo := range photos {
		if err := do(photo); err != nil {
			return err
		}
	}
	return nil
}

func decode(ctx context.Context, photo extractor.Item, opts preprocess.DecodeOptions) (*image.NRGBA, error) {
	data, err := os.ReadFile(photo.File)
	if err != nil {
		return nil, err
	}
	return preprocess.Decode(ctx, data, opts)
}

// filter is a detection that is given one photograph at a time, as detect is by
// a list on standard input.
type filter struct {
	paths  chan string
	judged chan error // of each, and how it ended
}

func newFilter(ctx context.Context, file string) (*filter, error) {
	detector, err := pipeline.LoadDetector(file)
	if err != nil {
		return nil, err
	}
	f := &filter{make(chan string), make(chan error)}
	more := func(ctx context.Context) ([]string, error) {
		select {
		case path, ok := <-f.paths:
			if !ok {
				return nil, io.EOF
			}
			return []string{path}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	go func() {
		_, err := pipeline.Detect(ctx, pipeline.DetectOptions{Detector: detector, Model: *modelDir, More: more}, func(j pipeline.Judgement) error {
			f.judged <- j.Err
			return nil
		})
		f.judged <- err
	}()
	return f, nil
}

// judge takes a photograph from its file to the verdict.
func (f *filter) judge(photo extractor.Item) error {
	select {
	case f.paths <- photo.File:
		return <-f.judged
	case err := <-f.judged: // it cannot go on
		return err
	}
}

func (f *filter) close() error {
	close(f.paths)
	return <-f.judged
}

// load makes a session of the model's graph and nothing else.
func load(model *extractor.Model) error {
	options, err := ort.NewSessionOptions()
	if err != nil {
		return err
	}
	defer options.Destroy()
	if err := options.SetIntraOpNumThreads(1); err != nil {
		return err
	}
	var inputs, outputs []string
	for _, in := range model.Inputs {
		inputs = append(inputs, in.Name)
	}
	for _, out := range model.Outputs {
		outputs = append(outputs, out.Name)
	}
	session, err := ort.NewDynamicAdvancedSession(model.File, inputs, outputs, options)
	if err != nil {
		return fmt.Errorf("model %s: %w", strings.TrimSpace(model.File), err)
	}
	return session.Destroy()
}

// processTime is what this process has used of the processor.
func processTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}
