package extractor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"image"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/internal/spill"
)

// maxIdle bounds the bytes of the file and of the picture, each, whose memory a
// worker keeps for the next.
const maxIdle = 1 << 24

// DefaultImageTimeout is how long one image may take to decode: far more than
// the largest does that is allowed.
const DefaultImageTimeout = 2 * time.Minute

// A Row holds the features of one image, or its error. Its slices are valid during the call
// that it is given to only.
type Row struct {
	// Index is the image's place in the stream.
	Index int
	// Item is the image, with the size and time of the file that was read.
	Item images.Item
	// SHA256 is the hash of the file's bytes, or of the pixels of an image in an
	// idx file, in hex; "" if it was not read, or with NoHash.
	SHA256 string
	// Features has as many finite values as the model's Dim says, and Logits
	// as its LogitsDim; both are nil where Err is not.
	Features, Logits []float32
	// Orientation is the EXIF orientation that the file has, 1 to 8, whether or not
	// it is applied; 0 where Err is not nil, 1 is upright.
	Orientation int
	// Enlarged says that the image is smaller than what the model reads, and was
	// scaled up or padded.
	Enlarged bool
	// Grey16 says that the file has greys of 16 bits; see preprocess.Reading.
	Grey16 bool
	// Map says how strange each place of the image is; nil without [Options.Patches].
	Map *PatchMap
	// Err says why the image has no features.
	Err error

	patches [][]float32 // that a model is to be fitted on
	area    [4]float64  // that the model sees of it
}

// Stats counts what an extraction did.
type Stats struct {
	// Done is the number of images with a result, Failed that of those of
	// them whose result is an error.
	Done, Failed int
}

// model computes the features of an extraction: a [Model], or [Pixels].
type model interface {
	// Batch is how many images a run has where batch are wanted.
	Batch(batch int) int
	// newRunner makes a runner for up to batch images a run.
	newRunner(batch int) (runner, error)
	// prepare writes what a run reads of an image.
	prepare(dst []float32, img *image.NRGBA) error
	// prepareCropped writes the same of an image that is cropped already.
	prepareCropped(dst []float32, img *preprocess.Cropped) error
	// decoding says how images are decoded for prepare.
	decoding() preprocess.DecodeOptions
	// threads is how many threads a run may use, or 0 where there is no
	// session and so nothing to choose. freeThreads tells whether it may be
	// chosen, and withThreads is the same model with another number, which
	// must be closed as well.
	threads() int
	freeThreads() bool
	withThreads(n int) (model, error)
	// planned names the model as far as the fastest plan depends on it.
	planned() string
	// batchSizes are the sizes of batches that may be worth a try, in order,
	// and exact whether their features must be the same as those of an image
	// alone, bit by bit.
	batchSizes() []int
	exact() bool
	Close() error
}

func (m *Model) newRunner(batch int) (runner, error) {
	r := m.kept.take(m.Batch(batch))
	if r == nil {
		var err error
		if r, err = m.NewRunner(batch); err != nil {
			return nil, err
		}
	}
	r.model = m // and not who had it before, who may have closed theirs
	return keptRunner{r, m.kept}, nil
}

func (m *Model) prepare(dst []float32, img *image.NRGBA) error {
	return m.Spec.Tensor(dst, img, m.input.layout)
}

func (m *Model) prepareCropped(dst []float32, img *preprocess.Cropped) error {
	return m.Spec.Normalise(dst, img, m.input.layout)
}

func (m *Model) decoding() preprocess.DecodeOptions {
	return preprocess.DecodeOptions{Reading: m.options.Reading, For: m.Spec}
}

// runner runs the batches of one worker; see [Runner].
type runner interface {
	Input(i int) []float32
	Run(ctx context.Context, n int) error
	took() time.Duration // by the last run
	Features(i int) []float32
	Logits(i int) []float32
	Close() error
}

// Extract computes the features of all images of a stream and gives each result to
// sink, one at a time, in the order in which they are done. An image that cannot be
// used is a result with an error and disturbs no other. Images are cut into batches
// by their index alone, so results do not depend on the number of workers.
//
// Images are independent of each other: a graph that would mix those of a batch
// gets them one by one.
//
// It stops early, and returns an error, when the context is cancelled (the
// context's error), when the stream or sink fails (its error), or when the model cannot
// run (naming the model). It returns when no worker runs any more.
func (m *Model) Extract(ctx context.Context, in images.Stream, opts Options, sink func(Row) error) (Stats, error) {
	return extract(ctx, m, in, opts, sink)
}

// extract is behind the Extract of both kinds of models.
func extract(ctx context.Context, m model, in images.Stream, opts Options, sink func(Row) error) (Stats, error) {
	if opts.Batch < 0 || opts.Workers < 0 || opts.MaxPixels < 0 || opts.ImageTimeout < 0 {
		return Stats{}, fmt.Errorf("batch %d, workers %d, pixels %d and time %v must be at least 1, or 0 for the default", opts.Batch, opts.Workers, opts.MaxPixels, opts.ImageTimeout)
	}
	if total, known := in.Total(); known {
		opts.Batch = min(opts.Batch, total) // more take room for nothing
	}
	opts.ImageTimeout = cmp.Or(opts.ImageTimeout, DefaultImageTimeout)
	opts.MaxPixels = cmp.Or(opts.MaxPixels, preprocess.DefaultMaxPixels)
	e := &extraction{model: m, in: in, opts: opts, sink: sink, tuning: usualTuning, plans: usualPlans()}
	err := e.run(ctx)
	return e.stats, err
}

// extraction is one run of Extract.
type extraction struct {
	model  model
	in     images.Stream
	opts   Options
	sink   func(Row) error
	tuning tuning
	plans  planFile

	measuring int          // images that were left when measuring began; 0 without
	taken     atomic.Int64 // images that workers have taken

	taking sync.Mutex // guards in and what follows
	ended  error      // of in

	mu    sync.Mutex // guards the sink and what follows
	stats Stats
}

// take hands out up to n consecutive items and the index of the first. There are
// none at the end.
func (e *extraction) take(ctx context.Context, n int) (items []images.Item, from int, err error) {
	e.taking.Lock()
	defer e.taking.Unlock()
	for e.ended == nil && len(items) < n {
		var item images.Item
		if item, e.ended = e.in.Next(ctx); e.ended == nil {
			items = append(items, item)
		}
	}
	if e.ended != nil && e.ended != io.EOF {
		return nil, 0, e.ended
	}
	to := int(e.taken.Add(int64(len(items))))
	return items, to - len(items), nil
}

// left is about how many items no worker has taken.
func (e *extraction) left() int {
	total, _ := e.in.Total()
	return max(0, total-int(e.taken.Load()))
}

// deliver hands one result to the sink.
func (e *extraction) deliver(r Row) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.sink(r); err != nil {
		return err
	}
	e.stats.Done++
	if r.Err != nil {
		e.stats.Failed++
	}
	if e.opts.Progress != nil {
		total, known := e.in.Total()
		if !known {
			total = -1
		}
		e.opts.Progress(e.stats.Done, e.stats.Failed, total)
	}
	return nil
}

// finish does all that is left.
func (e *extraction) finish(ctx context.Context, plan Plan) error {
	if plan.Measured && e.measuring > 0 {
		e.plans.keep(e.planKey(), remembered{Batch: plan.Batch, Threads: plan.Threads, Images: e.measuring})
	}
	if e.opts.Chosen != nil {
		e.opts.Chosen(plan)
	}
	return e.work(ctx, plan, func(ctx context.Context, w *worker) error {
		for {
			items, from, err := e.take(ctx, plan.Batch)
			if err != nil || len(items) == 0 {
				return err
			}
			if err := w.block(ctx, items, from); err != nil {
				return err
			}
		}
	})
}

// work lets a plan's workers do something.
func (e *extraction) work(ctx context.Context, plan Plan, do func(context.Context, *worker) error) error {
	group, ctx := parallel.WithContext(ctx)
	for range plan.Workers {
		group.Go(func() (err error) {
			runner, err := e.model.newRunner(plan.Batch)
			if err != nil {
				return err
			}
			defer func() {
				if closeErr := runner.Close(); err == nil {
					err = closeErr
				}
			}()
			room := rooms.Get().(*room)
			defer rooms.Put(room)
			w := &worker{
				extraction: e,
				runner:     runner,
				decode:     e.model.decoding(),
				file:       room.file,
			}
			w.decode.MaxPixels, w.decode.Reuse = e.opts.MaxPixels, room.picture
			err = do(ctx, w)
			room.file, room.picture = w.file, w.decode.Reuse
			return err
		})
	}
	return group.Wait()
}

// worker holds the memory of one goroutine of an extraction.
type worker struct {
	*extraction
	runner runner
	decode preprocess.DecodeOptions // with room for a picture
	file   []byte                   // room for one
}

// rooms keep the memory for a file and a picture for the next extraction.
var rooms = sync.Pool{New: func() any { return new(room) }}

type room struct {
	file    []byte
	picture *image.NRGBA
}

// block delivers the results of some items, the first of which has the index from.
func (w *worker) block(ctx context.Context, items []images.Item, from int) error {
	results, err := w.loadAll(ctx, items, from)
	if err != nil || len(results) == 0 {
		return err
	}
	err = w.runner.Run(ctx, len(results))
	if tookTooLong(err) {
		return w.oneByOne(ctx, results)
	}
	if err != nil {
		return stuckAt(err, results)
	}
	for i, r := range results {
		if err := w.finished(r, i); err != nil {
			return err
		}
	}
	return nil
}

// tookTooLong reports whether err is of a run that an image made too long, and that
// ended.
func tookTooLong(err error) bool { return errors.Is(err, ErrRunTimeout) && !errors.Is(err, errStuck) }

// oneByOne runs the images of a batch that took too long, whose inputs are in
// place, and delivers their results.
func (w *worker) oneByOne(ctx context.Context, results []Row) error {
	inputs := make([][]float32, len(results)) // a run with blanks clears the others
	for i := range results {
		inputs[i] = slices.Clone(w.runner.Input(i))
	}
	for i, r := range results {
		copy(w.runner.Input(0), inputs[i])
		if err := w.alone(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// alone runs the first image of the runner and delivers its result.
func (w *worker) alone(ctx context.Context, r Row) error {
	err := w.runner.Run(ctx, 1)
	if tookTooLong(err) {
		r.Err = err
		return w.deliver(r)
	}
	if err != nil {
		return stuckAt(err, []Row{r})
	}
	return w.finished(r, 0)
}

// stuckAt adds to the error of a run that took too much time or memory which images it
// was of.
func stuckAt(err error, results []Row) error {
	if !errors.Is(err, ErrRunTimeout) && !errors.Is(err, ErrRunMemory) {
		return err
	}
	name := func(r Row) string { return cmp.Or(r.Item.Path, r.Item.File) }
	if last := len(results) - 1; last > 0 {
		return fmt.Errorf("one of %d images from %s to %s: %w", last+1, name(results[0]), name(results[last]), err)
	}
	return fmt.Errorf("image %s: %w", name(results[0]), err)
}

// loadAll makes the runner's input of some items and returns their results so far.
// Images that fail are delivered and leave no gap.
func (w *worker) loadAll(ctx context.Context, items []images.Item, from int) ([]Row, error) {
	results := make([]Row, 0, len(items))
	for i, item := range items {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		r := Row{Index: from + i, Item: item}
		r.Err = w.load(ctx, &r, w.runner.Input(len(results)))
		item.Loaded()
		if r.Err != nil {
			if ctx.Err() != nil { // it is not the image's fault
				return nil, ctx.Err()
			}
			if err := w.deliver(r); err != nil {
				return nil, err
			}
			continue
		}
		results = append(results, r)
	}
	return results, nil
}

// finished delivers the result of image i of the last run.
func (w *worker) finished(r Row, i int) error {
	r.Features, r.Logits = w.runner.Features(i), w.runner.Logits(i)
	if of, ok := w.runner.(interface {
		described(i int) (*PatchMap, [][]float32)
	}); ok {
		if r.Map, r.patches = of.described(i); r.Map != nil {
			r.Map.Area = r.area
		}
	}
	err := npy.CheckValues(r.Features)
	if err == nil {
		err = npy.CheckValues(r.Logits)
	}
	if err != nil {
		r.Features, r.Logits, r.Orientation, r.Enlarged, r.Grey16 = nil, nil, 0, false, false
		r.Err = fmt.Errorf("the model's output for it: %w", err)
	}
	return w.deliver(r)
}

// DecodeMemory is how many bytes the images take together, about, that are decoded at once
// by all extractions; an image that takes more is decoded alone.
var DecodeMemory = sync.OnceValue(func() int64 { return min(spill.Default(), mostMapped()/2) / 2 })

var decoding = sync.OnceValue(func() *semaphore.Weighted { return semaphore.NewWeighted(DecodeMemory()) })

// load reads, hashes, decodes and preprocesses r's image into dst. While it does
// so it counts against the memory for decoding.
func (w *worker) load(ctx context.Context, r *Row, dst []float32) error {
	if crop := r.Item.Cropped(); crop != nil {
		return w.model.prepareCropped(dst, crop)
	}
	data, err := r.Item.Read(w.file)
	if err != nil {
		return err
	}
	if r.Item.FromFile() && len(data) <= maxIdle {
		w.file = data
	}
	if !w.opts.NoHash {
		if r.SHA256, err = images.Hash(ctx, data); err != nil {
			return err
		}
	}
	size := min(r.Item.Cost(data, w.decode.MaxPixels).Bytes, DecodeMemory())
	if err := decoding().Acquire(ctx, size); err != nil {
		return err
	}
	free := func() { decoding().Release(size) }
	defer func() { free() }()
	timed, cancel := context.WithTimeout(ctx, w.opts.ImageTimeout)
	defer cancel()
	img, err := r.Item.Decode(timed, data, w.decode)
	if err != nil {
		if timed.Err() != nil {
			w.file, w.decode.Reuse = nil, nil // a decoder that was left behind may still use them
			if left, ok := errors.AsType[*preprocess.LeftBehind](err); ok {
				release := free
				free = func() {
					parallel.Start(func() (none struct{}) {
						<-left.Done
						release()
						return none
					})
				}
			}
		}
		if timed.Err() != nil && ctx.Err() == nil {
			return options.Errorf("ImageTimeout", "decoding takes more than %v: %w", w.opts.ImageTimeout, err)
		}
		return err
	}
	if (r.Item.FromFile() || r.Item.Streams()) && cap(img.Pix) <= maxIdle {
		w.decode.Reuse = img
	}
	if err := w.model.prepare(dst, img); err != nil {
		return err
	}
	r.Grey16 = r.Item.Grey16(data)
	r.Orientation, r.Enlarged = r.Item.Orientation(data), w.decode.For != nil && w.decode.For.Enlarges(img.Rect.Dx(), img.Rect.Dy())
	if w.decode.For != nil {
		_, r.area = w.decode.For.Seen(img.Rect.Dx(), img.Rect.Dy())
	}
	return nil
}

// Backbone computes the features of images: a [Model] or [Pixels].
type Backbone interface {
	Dim() int
	LogitsDim() int
	Probe(context.Context) (*features.Probe, error) // nil without a model
	Extract(context.Context, images.Stream, Options, func(Row) error) (Stats, error)
	Close() error
}
