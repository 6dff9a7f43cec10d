package native

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/command"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

type trainArguments struct {
	Features []path   `json:"features"` // folders; or
	Columns  int      `json:"columns"`  // of the buffers x [n, columns] and labels [n]
	Classes  []string `json:"classes"`  // of labels
	Like     path     `json:"like"`     // a feature set of the model that x comes from; "" if that is not known
	// ClassType is of what type the classes are where not text; see detector.TrainingRecord.
	ClassType string           `json:"class_type"`
	Settings  command.Settings `json:"settings"`
}

func train(c *call, a trainArguments, buffers []Buffer) (any, error) {
	opts, err := command.TrainSettings(a.Settings)
	if err != nil {
		return nil, err
	}
	opts.Features = texts(a.Features)
	if len(a.Features) == 0 {
		x, err := view[float32](buffers, 0)
		if err != nil {
			return nil, err
		}
		labels, err := view[int64](buffers, 1)
		if err != nil {
			return nil, err
		}
		if opts.Rows, err = features.InMemory(x, a.Columns, labels, a.Classes); err != nil {
			return nil, &command.UsageError{Err: err}
		}
		if err := errors.Join(checkRows(x, a.Columns), c.like(opts.Rows, a.Like.String())); err != nil {
			return nil, err
		}
	}
	c.follow(&opts)
	d, r, err := pipeline.Train(c.ctx, opts)
	if err != nil {
		return nil, err
	}
	d.Training.ClassType = a.ClassType
	for _, w := range r.Warnings {
		c.warn(command.WarningInWords("train", w))
	}
	r.Warnings = []string{}
	return map[string]any{"detector": hold(d), "result": r, "about": command.Describe(d, r)}, nil
}

// checkRows refuses rows with values that no features have.
func checkRows(x []float32, columns int) error {
	for i := 0; i < len(x); i += columns {
		if err := npy.CheckValues(x[i : i+columns]); err != nil {
			return command.Usagef("row %d: %w", i/columns, err)
		}
	}
	return nil
}

// like has rows in memory come from the model of the feature set in a folder, "" for none.
func (c *call) like(rows *features.Set, folder string) error {
	if folder == "" {
		return nil
	}
	set, err := features.Open(c.ctx, folder)
	if err != nil {
		return err
	}
	meta := set.Meta
	if meta.D != rows.D {
		return errors.Join(command.Usagef("the model has %d features, and the rows have %d", meta.D, rows.D), set.Close())
	}
	meta.Version, meta.N, meta.Classes, meta.Root, meta.DType, meta.Shard, meta.Files, meta.SHA256 = 0, rows.N, rows.Classes, "", "", nil, nil, ""
	rows.Meta = meta
	return set.Close()
}

// follow notes how far a training is.
func (c *call) follow(opts *pipeline.TrainOptions) {
	var mu sync.Mutex
	behind, total := make([]int, max(1, len(opts.Seeds))), -1
	opts.Stage = func(what string, done, all int) {
		if what == training.TrainingStage {
			mu.Lock()
			total = all
			mu.Unlock()
		}
		c.progress(what, done, all, "")
	}
	opts.Progress = func(i int, e head.Epoch) {
		mu.Lock()
		defer mu.Unlock()
		behind[i] = e.Epoch
		done := 0
		for _, n := range behind {
			done += n
		}
		c.progress(training.TrainingStage, done, total, fmt.Sprintf("loss %.4f, validation loss %.4f", e.TrainLoss, e.ValLoss))
	}
}

type loadArguments struct {
	File      path   `json:"file"`
	PublicKey string `json:"public_key"`
	Told      bool   `json:"told"` // what there is to say of it was said before
}

func load(c *call, a loadArguments, _ []Buffer) (any, error) {
	d, err := pipeline.LoadDetector(a.File.String())
	if a.PublicKey != "" {
		d, err = pipeline.LoadSignedDetector(a.File.String(), a.PublicKey)
	}
	if err != nil {
		return nil, err
	}
	if math.IsInf(d.Threshold, -1) && !a.Told {
		c.warn(command.NoThreshold())
	}
	return hold(d), nil
}

type saveArguments struct {
	handleArguments
	File path `json:"file"`
}

func save(_ *call, o *opened, a saveArguments, _ []Buffer) (any, error) {
	return nil, o.Save(a.File.String())
}

func info(_ *call, o *opened, _ handleArguments, _ []Buffer) (any, error) {
	var threshold *float64
	if !math.IsInf(o.Threshold, 0) {
		threshold = &o.Threshold
	}
	return map[string]any{
		"classes": o.Classes, "features": o.Dim(), "threshold": threshold, "target_tpr": o.TargetTPR, "scores": o.ScoreName(), "seeds": o.Seeds,
		"assessment": o.Assessment, "false_alarms": o.FalseAlarms(), "rows": o.Training.Rows, "model": path(o.Source.Model), "tool": o.Training.Tool,
		"fingerprint": o.Source.Space(), "class_type": o.Training.ClassType,
		"by_class": o.ByClass != nil, "folds": len(o.Folds),
	}, nil
}

// rowsArguments say of rows in a buffer which model they are of.
type rowsArguments struct {
	handleArguments
	Fingerprint string `json:"fingerprint"` // "" where nobody knows it
}

// rowsOf returns the rows of features that a call is about.
func rowsOf(o *opened, a rowsArguments, buffers []Buffer) ([]float32, error) {
	if !features.Comparable(a.Fingerprint, o.Source.Space()) {
		return nil, fmt.Errorf("the features and those of the detector cannot be used together: one was %w than the other", features.ErrFingerprint)
	}
	x, err := view[float32](buffers, 0)
	if err != nil {
		return nil, err
	}
	if len(x)%o.Dim() != 0 {
		return nil, command.Usagef("%d values are no rows of the %d features that the detector reads", len(x), o.Dim())
	}
	return x, checkRows(x, o.Dim())
}

// setArguments name a feature set.
type setArguments struct {
	handleArguments
	Folder path `json:"folder"`
}

// columns reads what the detector reads of a feature set, its layers too, into a buffer.
func columns(c *call, o *opened, a setArguments, buffers []Buffer) (_ any, err error) {
	set, err := features.Open(c.ctx, a.Folder.String())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, set.Close()) }()
	if err := set.With(o.Source.Layers); err != nil {
		return nil, err
	}
	if set.D != o.Dim() {
		return nil, command.Usagef("the detector reads rows of %d features, and these have %d", o.Dim(), set.D)
	}
	x, err := roomFor[float32](buffers, 0, set.N*set.D)
	if err != nil {
		return nil, err
	}
	for i := range set.N {
		x = x[copy(x, set.Row(i)):]
	}
	return nil, nil
}

// verdicts judges rows of features [n, D]. The results go to the buffers after them, as of
// fillVerdicts.
func verdicts(c *call, o *opened, a rowsArguments, buffers []Buffer) (any, error) {
	x, err := rowsOf(o, a, buffers)
	if err != nil || len(x) == 0 {
		return nil, err
	}
	judge := *o.Detector
	if len(buffers) == 4 { // scores alone, of which folds know nothing
		judge.Folds = nil
	}
	all, err := judge.Verdicts(c.ctx, x)
	if err != nil {
		return nil, err
	}
	return nil, fillVerdicts(buffers[1:], all)
}

// fillVerdicts fills buffers: labels (int64), confidences, scores (float64), whether an image
// is out of distribution (uint8), and p-values (float64).
func fillVerdicts(buffers []Buffer, all []pipeline.Verdict) error {
	n := len(all)
	labels, err1 := roomFor[int64](buffers, 0, n)
	confidences, err2 := roomFor[float64](buffers, 1, n)
	scores, err3 := roomFor[float64](buffers, 2, n)
	flagged, err4 := roomFor[uint8](buffers, 3, n)
	p, err5 := roomFor[float64](buffers, 4, n)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return err
	}
	for i, v := range all {
		put(labels, i, int64(v.Label))
		put(confidences, i, v.Confidence)
		put(scores, i, v.Score)
		put(p, i, v.PValue)
		if v.OOD {
			put(flagged, i, 1)
		} else {
			put(flagged, i, 0)
		}
	}
	return nil
}

// put puts a value into a buffer, unless the caller left it out.
func put[T number](to []T, i int, value T) {
	if to != nil {
		to[i] = value
	}
}

// confidences puts the logarithms of the confidences [n, C] of rows into the buffer after them.
func confidences(c *call, o *opened, a rowsArguments, buffers []Buffer) (any, error) {
	x, err := rowsOf(o, a, buffers)
	if err != nil || len(x) == 0 {
		return nil, err
	}
	out, err := view[float64](buffers, 1)
	if err != nil {
		return nil, err
	}
	if want := len(x) / o.Dim() * len(o.Classes); len(out) != want {
		return nil, fmt.Errorf("the buffer has room for %d confidences, and there are %d", len(out), want)
	}
	return nil, o.EachOwn(c.ctx, x, func(own head.Outputs) { out = out[copy(out, own.LogConfidences):] })
}

// answer is what there is to say of one image.
type answer struct {
	Path  path `json:"path"`
	Index int  `json:"label"` // of the class; −1 with an error
	pipeline.Verdict
	Error string `json:"error,omitempty"`
}

func answerOf(of path, v pipeline.Verdict, err error) answer {
	if err != nil {
		return answer{Path: of, Index: -1, Error: cmp.Or(command.InWords("detect", err), "unknown")}
	}
	return answer{Path: of, Index: v.Label, Verdict: v}
}

// picture is an image to judge: a file, or what a buffer has: the bytes of a file or,
// with a width and a height, pixels of three bytes.
type picture struct {
	Path   *path `json:"path"`
	Buffer int   `json:"buffer"`
	Width  int   `json:"width"`
	Height int   `json:"height"`
	Turn   int   `json:"turn"` // the EXIF orientation of pixels, 0 where none is known
}

// in returns the bytes of a file that a buffer has, or pixels.
func (p picture) in(buffers []Buffer) (data []byte, pixels *images.RGB, err error) {
	if p.Buffer < 0 || p.Buffer >= len(buffers) {
		return nil, nil, fmt.Errorf("there is no buffer %d", p.Buffer)
	}
	data = buffers[p.Buffer]
	if p.Width == 0 && p.Height == 0 {
		return data, nil, nil
	}
	if p.Width < 1 || p.Height < 1 || len(data)/3/p.Width != p.Height || len(data) != 3*p.Width*p.Height {
		return nil, nil, fmt.Errorf("%d bytes are not %d×%d pixels of three bytes", len(data), p.Width, p.Height)
	}
	return nil, &images.RGB{Pix: data, Width: p.Width, Height: p.Height}, nil
}

func (p picture) of(buffers []Buffer) (pipeline.Picture, error) {
	if p.Path != nil {
		return pipeline.File(p.Path.String()), nil
	}
	data, pixels, err := p.in(buffers)
	if pixels != nil {
		return pipeline.Decoded(pixels).Turned(p.Turn), err
	}
	return pipeline.Encoded(data), err
}

// item returns the image as one of a listing of images below root. An image in memory has
// name for a path.
func (p picture) item(root, name string, buffers []Buffer) (images.Item, error) {
	if p.Path != nil {
		file := p.Path.String()
		name, err := filepath.Rel(root, file)
		return images.Item{Path: filepath.ToSlash(name), File: file}, err
	}
	data, pixels, err := p.in(buffers)
	if pixels != nil {
		return images.PixelsItem(name, pixels).Turned(p.Turn), err
	}
	return images.EncodedItem(name, data), err
}

type imagesArguments struct {
	handleArguments
	Images   []picture        `json:"images"`
	Model    path             `json:"model"`
	Settings command.Settings `json:"settings"`
}

// judgeImages judges images wherever they are, and keeps the backbone open for the next call.
func judgeImages(c *call, o *opened, a imagesArguments, buffers []Buffer) (any, error) {
	answers := []answer{}
	err := o.use(c, a.Model, a.Settings, func(judge *pipeline.Judge, _ extractor.Options) error {
		const together = 64 // images, between which the progress is told
		for from := 0; from < len(a.Images); from += together {
			part := a.Images[from:min(from+together, len(a.Images))]
			c.progress("images", from, len(a.Images), "")
			var pictures []pipeline.Picture
			for _, p := range part {
				picture, err := p.of(buffers)
				if err != nil {
					return err
				}
				pictures = append(pictures, picture)
			}
			said, err := judge.Images(c.ctx, pictures...)
			if err != nil {
				return err
			}
			for i, s := range said {
				var of path
				if part[i].Path != nil {
					of = *part[i].Path
				}
				answers = append(answers, answerOf(of, s.Verdict, s.Err))
			}
		}
		return nil
	})
	return answers, err
}

type detectArguments struct {
	handleArguments
	Paths    []path           `json:"paths"`
	Model    path             `json:"model"`
	Settings command.Settings `json:"settings"`
}

// detect judges files, and all images in folders.
func detect(c *call, o *opened, a detectArguments, _ []Buffer) (any, error) {
	answers := []answer{}
	if len(a.Paths) == 1 && !images.AreSources(false, a.Paths[0].String()) { // what cannot be is told before a model is opened
		if _, err := os.Stat(a.Paths[0].String()); err != nil {
			return nil, fmt.Errorf("nothing to look at: %w", err)
		}
	}
	err := o.use(c, a.Model, a.Settings, func(judge *pipeline.Judge, run extractor.Options) error {
		run.Progress = func(done, _, total int) { c.progress("images", done, total, "") }
		_, err := pipeline.Detect(c.ctx, pipeline.DetectOptions{Judge: judge, Paths: texts(a.Paths), Options: run}, func(j pipeline.Judgement) error {
			answers = append(answers, answerOf(path(j.Path), j.Verdict, j.Err))
			return nil
		})
		return err
	})
	return answers, err
}
