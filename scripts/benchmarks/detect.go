package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"image"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	ort "github.com/yalue/onnxruntime_go"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// detection compares the time of detection with the time of its necessary parts:
// for an image, decoding and the model's run; for the start, loading the model; for
// a folder, extraction.
type detection struct {
	model, program *string
	rounds, images *int
}

func benchDetect(f *flag.FlagSet) func(ctx context.Context, dir string) error {
	d := &detection{
		model:   f.String("model", filepath.Join("models", "efficientnet-lite0"), "`folder` of the model"),
		rounds:  addRounds(f, 5),
		images:  f.Int("images", 1000, "images in the folder that is extracted and detected"),
		program: addProgram(f),
	}
	return d.measure
}

func (d *detection) measure(ctx context.Context, dir string) (err error) {
	photos, err := photographs(filepath.Join(dir, "photographs"), "")
	if err != nil {
		return err
	}
	file, err := build(*d.program, dir)
	if err != nil {
		return err
	}
	model, err := extractor.OpenModel(ctx, *d.model, extractor.Options{})
	if err != nil {
		return err
	}
	defer model.Close()
	detector, err := madeUpDetector(ctx, dir, *d.model, model)
	if err != nil {
		return err
	}
	folder, err := repeat(photos, filepath.Join(dir, "folder"), *d.images)
	if err != nil {
		return err
	}
	runner, err := model.NewRunner(1)
	if err != nil {
		return err
	}
	defer runner.Close()

	judging, err := newFilter(ctx, detector, *d.model)
	if err != nil {
		return err
	}
	if err := judging.judge(photos[0]); err != nil { // which takes memory
		return err
	}

	// The figures of a round are ms and processor ms of each of these.
	timed := []string{"decode", "run", "verdict", "load", "detect one", "extract folder", "detect folder", "why", "where"}
	var figures []float64
	note := func(what string, per int, do func() error) error {
		before := used()
		if err := do(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		took, at := used().minus(before), 2*slices.Index(timed, what)
		figures[at] += took.wall.Seconds() * 1000 / float64(per)
		figures[at+1] += took.cpu.Seconds() * 1000 / float64(per)
		return nil
	}
	program := func(args ...string) func() error {
		return func() error {
			_, err := run(exec.CommandContext(ctx, file, args...), nil)
			return err
		}
	}
	mapped := photos[:min(len(photos), 16)]
	explain, closeJudge, err := flagging(ctx, detector, *d.model, mapped)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeJudge()) }()
	var img *image.NRGBA // reused, as detect does
	verdict := []string{"detect", "--detector", detector, "--model", *d.model, "--json", "--quiet"}
	features := filepath.Join(dir, "features")
	round := contender{"all", func() ([]float64, error) {
		figures = make([]float64, 2*len(timed))
		err := errors.Join(
			// Alternately, so that the caches are as after decoding.
			each(photos, func(photo string) (err error) {
				return errors.Join(
					note("decode", len(photos), func() error {
						img, err = decode(ctx, photo, preprocess.DecodeOptions{For: model.Spec, Reuse: img})
						return err
					}),
					note("run", len(photos), func() error { return runner.Run(ctx, 1) }),
				)
			}),
			each(photos, func(photo string) error {
				return note("verdict", len(photos), func() error { return judging.judge(photo) })
			}),
			note("load", 1, func() error { return load(model) }),
			note("detect one", 1, program(append(verdict, photos[0])...)),
			note("extract folder", *d.images, program("extract", "--model", *d.model, "--images", folder, "--out", features, "--quiet")),
			note("detect folder", *d.images, program(append(verdict, folder)...)),
			note("why", len(mapped), func() error { return explain(false) }),
			note("where", len(mapped), func() error { return explain(true) }),
			os.RemoveAll(features),
		)
		return figures, err
	}}
	medians, err := byTurns(*d.rounds, "ms and processor ms of "+strings.Join(timed, ", "), strings.Repeat("%.2f (%.2f) ", len(timed)), []contender{round})
	if err != nil {
		return err
	}

	if err := judging.close(); err != nil {
		return err
	}

	ms := func(what string) float64 { return medians[0][2*slices.Index(timed, what)] }
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	cpu := func(what string) float64 { return medians[0][2*slices.Index(timed, what)+1] }
	fmt.Fprintf(w, "one of %d photographs\tms\t\tprocessor ms\t\n", len(photos))
	fmt.Fprintf(w, "decoding\t%.2f\t\t%.2f\t\n", ms("decode"), cpu("decode"))
	fmt.Fprintf(w, "the model's own run\t%.2f\t\t%.2f\t\n", ms("run"), cpu("run"))
	fmt.Fprintf(w, "from file to verdict\t%.2f\t%.2f× of both together\t%.2f\t%.2f×\n",
		ms("verdict"), ms("verdict")/(ms("decode")+ms("run")), cpu("verdict"), cpu("verdict")/(cpu("decode")+cpu("run")))
	fmt.Fprintf(w, "\nreasons for %d flagged photographs, all cores\tms each\t\tprocessor ms\t\n", len(mapped))
	for _, l := range []struct{ text, what string }{{"parts of the score (--explain)", "why"}, {"and a map (--explain where)", "where"}} {
		fmt.Fprintf(w, "%s\t%.1f\t\t%.1f\t%.1f× a verdict\n", l.text, ms(l.what), cpu(l.what), cpu(l.what)/cpu("verdict"))
	}
	fmt.Fprintf(w, "\nstart of the program\tms\t\n")
	fmt.Fprintf(w, "onnxruntime loads the model\t%.0f\t\n", ms("load"))
	fmt.Fprintf(w, "detect judges one image\t%.0f\t%.0f ms beside loading and the verdict\n", ms("detect one"), ms("detect one")-ms("load")-ms("verdict"))
	fmt.Fprintf(w, "\na folder of %d photographs, all cores\timages/s\t\n", *d.images)
	fmt.Fprintf(w, "extract\t%.0f\t\n", 1000/ms("extract folder"))
	fmt.Fprintf(w, "detect\t%.0f\t%.2f× of extract\n", 1000/ms("detect folder"), ms("extract folder")/ms("detect folder"))
	return w.Flush()
}

// madeUpDetector makes a detector of made-up features of ten classes, as if the model in
// the folder had made them. It is as fast as a real one.
func madeUpDetector(ctx context.Context, dir, folder string, model *extractor.Model) (file string, err error) {
	const n, classes = 2000, 10
	d := model.Dim()
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
	trained, _, err := pipeline.Train(ctx, pipeline.TrainOptions{Features: []string{features}})
	if err != nil {
		return "", err
	}
	if trained.Source, err = detector.ModelSource(model, folder, preprocess.Reading{}); err != nil {
		return "", err
	}
	file = filepath.Join(dir, "detector.safetensors")
	return file, trained.Save(file)
}

// flagging returns a function that flags all photographs and says why, with maps or
// without.
func flagging(ctx context.Context, file, model string, photos []string) (explain func(where bool) error, done func() error, err error) {
	detector, err := pipeline.LoadDetector(file)
	if err != nil {
		return nil, nil, err
	}
	detector.SetThreshold(math.MaxFloat64)
	explainer, err := pipeline.NewExplainer(ctx, detector, pipeline.ExplainOptions{Nearest: -1})
	if err != nil {
		return nil, nil, err
	}
	judge, err := pipeline.NewJudge(ctx, detector, model, extractor.Options{})
	if err != nil {
		return nil, nil, errors.Join(err, explainer.Close())
	}
	var pictures []pipeline.Picture
	for _, photo := range photos {
		pictures = append(pictures, pipeline.File(photo))
	}
	explain = func(where bool) error {
		answers, err := judge.Explain(ctx, explainer, where, pictures...)
		for _, a := range answers {
			err = errors.Join(err, a.Err)
			if where && err == nil {
				if a.Explanation.Where == nil {
					err = errors.Join(errors.New("an image has no map"), a.Explanation.WhereErr)
				}
			}
		}
		return err
	}
	return explain, func() error { return errors.Join(judge.Close(), explainer.Close()) }, nil
}

func each(photos []string, do func(photo string) error) error {
	for _, photo := range photos {
		if err := do(photo); err != nil {
			return err
		}
	}
	return nil
}

// filter is a detection that gets one photograph at a time, as detect gets them
// from a list on standard input.
type filter struct {
	paths  chan string
	judged chan error // the error of each, and of the end
}

func newFilter(ctx context.Context, file, model string) (*filter, error) {
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
		_, err := pipeline.Detect(ctx, pipeline.DetectOptions{Detector: detector, Model: model, More: more}, func(j pipeline.Judgement) error {
			f.judged <- j.Err
			return nil
		})
		f.judged <- err
	}()
	return f, nil
}

// judge computes the verdict of a photograph from its file.
func (f *filter) judge(photo string) error {
	select {
	case f.paths <- photo:
		return <-f.judged
	case err := <-f.judged: // it cannot continue
		return err
	}
}

func (f *filter) close() error {
	close(f.paths)
	return <-f.judged
}

// load only makes a session of the model's graph.
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
