package extractor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"image"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"mlrbfn/extractor/preprocess"
)

// maxFileBytes bounds what is read of one file into memory.
const maxFileBytes = 1 << 30

// DefaultBatch is the number of images that go through the session at once: more
// do not make a core faster, and leave cores idle when there are few images.
const DefaultBatch = 4

// DefaultImageTimeout is how long one image may take to decode: far more than
// the largest does that is allowed.
const DefaultImageTimeout = 2 * time.Minute

// ExtractOptions tunes an extraction; the zero value is the usual way. None of
// it but Batch can change a feature.
type ExtractOptions struct {
	// Workers is how many images are worked on at once; 0 is one for each
	// processor.
	Workers int
	// Batch is how many images go through the session at once; 0 is
	// [DefaultBatch]. It may change the last bits of features.
	Batch int
	// MaxPixels bounds the size of a decoded image, and of all those that are
	// in memory together; 0 is preprocess's bound.
	MaxPixels int64
	// ImageTimeout bounds how long one image may take to decode; 0 is
	// [DefaultImageTimeout]. A decoder that takes longer is left behind, with
	// its memory until it ends.
	ImageTimeout time.Duration
	// Progress is called after every image with the numbers of those done,
	// of those of them that failed, and of all. Calls do not overlap.
	Progress func(done, failed, total int)
}

// A Result is what became of one image. Its slices are valid during the call
// that it is given to only.
type Result struct {
	// Index is the item's place among those given.
	Index int
	// Item is that item, with the size and time of the file that was read.
	Item Item
	// SHA256 is the hash of the file's bytes, or of the pixels of an image in an
	// idx file, in hex; "" if it was not read.
	SHA256 string
	// Features has as many finite values as the model's Dim says, and Logits
	// as its LogitsDim; both are nil where Err is not.
	Features, Logits []float32
	// Err says why the image has no features.
	Err error
}

// Stats counts what an extraction did.
type Stats struct {
	// Done is the number of images with a result, Failed that of those of
	// them whose result is an error.
	Done, Failed int
}

// model is what an extraction runs images through: a [Model], or [Pixels].
type model interface {
	// Batch is how many images a run has where batch are wanted.
	Batch(batch int) int
	// newRunner makes a runner for up to batch images a run.
	newRunner(batch int) (runner, error)
	// prepare writes what a run reads of an image.
	prepare(dst []float32, img *image.NRGBA) error
	// upright tells whether images are turned as their EXIF orientation says.
	upright() bool
}

// runner is what one worker runs images with; see [Runner].
type runner interface {
	Input(i int) []float32
	Run(ctx context.Context, n int) error
	Features(i int) []float32
	Logits(i int) []float32
	Close() error
}

// Extract computes the features of all items and gives each result to sink, one
// at a time, in the order in which they are done. An image that cannot be used
// is a result with an error and disturbs no other. Items are cut into batches
// by their index alone, so results do not depend on the number of workers.
//
// Images are independent of each other: a graph that would mix those of a batch
// gets them one by one.
//
// It stops early, and returns an error, when the context is cancelled (the
// context's error), when sink fails (its error), or when the model cannot run
// (naming the model). It returns when no worker runs any more.
func (m *Model) Extract(ctx context.Context, items []Item, opts ExtractOptions, sink func(Result) error) (Stats, error) {
	return extract(ctx, m, items, opts, sink)
}

// extract is the one loop behind the models' Extract.
func extract(ctx context.Context, m model, items []Item, opts ExtractOptions, sink func(Result) error) (Stats, error) {
	if opts.Batch == 0 {
		opts.Batch = DefaultBatch
	}
	if opts.Workers == 0 {
		opts.Workers = runtime.GOMAXPROCS(0)
	}
	if opts.Batch < 0 || opts.Workers < 0 || opts.MaxPixels < 0 || opts.ImageTimeout < 0 {
		return Stats{}, fmt.Errorf("batch %d, workers %d, pixels %d and time %v must be at least 1, or 0 for the default", opts.Batch, opts.Workers, opts.MaxPixels, opts.ImageTimeout)
	}
	if opts.ImageTimeout == 0 {
		opts.ImageTimeout = DefaultImageTimeout
	}
	var (
		mu    sync.Mutex
		stats Stats
		next  atomic.Int64
	)
	deliver := func(r Result) error {
		mu.Lock()
		defer mu.Unlock()
		if err := sink(r); err != nil {
			return err
		}
		stats.Done++
		if r.Err != nil {
			stats.Failed++
		}
		if opts.Progress != nil {
			opts.Progress(stats.Done, stats.Failed, len(items))
		}
		return nil
	}
	if opts.MaxPixels == 0 {
		opts.MaxPixels = preprocess.DefaultMaxPixels
	}
	pixels := semaphore.NewWeighted(opts.MaxPixels)
	batch := m.Batch(opts.Batch)
	blocks := (len(items) + batch - 1) / batch
	group, groupCtx := errgroup.WithContext(ctx)
	for range min(opts.Workers, blocks) {
		group.Go(func() (err error) {
			runner, err := m.newRunner(batch)
			if err != nil {
				return err
			}
			defer func() {
				if closeErr := runner.Close(); err == nil {
					err = closeErr
				}
			}()
			w := worker{m, runner, preprocess.DecodeOptions{MaxPixels: opts.MaxPixels, ApplyEXIF: m.upright()}, pixels, opts.ImageTimeout}
			for {
				from := int(next.Add(1)-1) * batch
				if from >= len(items) {
					return nil
				}
				if err := w.block(groupCtx, from, items[from:min(from+batch, len(items))], deliver); err != nil {
					return err
				}
			}
		})
	}
	err := group.Wait()
	return stats, err
}

// worker is what one goroutine of an extraction owns.
type worker struct {
	model  model
	runner runner
	decode preprocess.DecodeOptions
	pixels *semaphore.Weighted // all workers' images together have at most decode.MaxPixels
	limit  time.Duration       // for decoding an image
}

// block delivers the results of consecutive items, the first of which has the
// given index. Images that fail leave no gap in the batch.
func (w *worker) block(ctx context.Context, index int, items []Item, deliver func(Result) error) error {
	results := make([]Result, 0, len(items))
	for i, item := range items {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r := Result{Index: index + i, Item: item}
		if r.Err = w.load(ctx, &r, w.runner.Input(len(results))); r.Err != nil {
			if ctx.Err() != nil { // it is not the image's fault
				return ctx.Err()
			}
			if err := deliver(r); err != nil {
				return err
			}
			continue
		}
		results = append(results, r)
	}
	if len(results) == 0 {
		return nil
	}
	if err := w.runner.Run(ctx, len(results)); err != nil {
		return err
	}
	for i, r := range results {
		r.Features, r.Logits = w.runner.Features(i), w.runner.Logits(i)
		if !finite(r.Features) || !finite(r.Logits) {
			r.Features, r.Logits = nil, nil
			r.Err = errors.New("the model's output for it is not finite")
		}
		if err := deliver(r); err != nil {
			return err
		}
	}
	return nil
}

// load reads, hashes, decodes and preprocesses r's image into dst. While it does
// so the image's pixels count against those that all workers may hold.
func (w *worker) load(ctx context.Context, r *Result, dst []float32) error {
	data, err := read(&r.Item)
	if err != nil {
		return err
	}
	if r.SHA256, err = hash(ctx, data); err != nil {
		return err
	}
	width, height, err := r.Item.size(data)
	if size := int64(width) * int64(height); err == nil && size <= w.decode.MaxPixels { // else decode says why
		if err := w.pixels.Acquire(ctx, size); err != nil {
			return err
		}
		defer w.pixels.Release(size)
	}
	timed, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	img, err := r.Item.decode(timed, data, w.decode)
	if err != nil {
		if timed.Err() != nil && ctx.Err() == nil {
			return fmt.Errorf("decoding takes more than %v, which --image-timeout can raise: %w", w.limit, err)
		}
		return err
	}
	return w.model.prepare(dst, img)
}

// hash returns the SHA-256 of data in hex, or ctx's error once it is cancelled.
func hash(ctx context.Context, data []byte) (string, error) {
	const block = 1 << 22
	h := sha256.New()
	for part := range slices.Chunk(data, block) {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// size returns the width and height of an image, given what read returned.
func (item *Item) size(data []byte) (width, height int, err error) {
	if item.idx != nil {
		return item.idx.Cols, item.idx.Rows, nil
	}
	return preprocess.Size(data)
}

// decode returns the image, given what read returned.
func (item *Item) decode(ctx context.Context, data []byte, opts preprocess.DecodeOptions) (*image.NRGBA, error) {
	if item.idx == nil {
		return preprocess.Decode(ctx, data, opts)
	}
	if item.Bytes > opts.MaxPixels { // which for it is its pixels
		return nil, fmt.Errorf("image of %d×%d pixels is above the limit of %d", item.idx.Cols, item.idx.Rows, opts.MaxPixels)
	}
	return fromIDX(item.idx, item.number), nil
}

// SHA256 returns the hash of the item's content as a [Result] has it, and the
// item with the size and time of the file that was read.
func (item Item) SHA256() (string, Item, error) {
	data, err := read(&item)
	if err != nil {
		return "", item, err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), item, nil
}

// read reads the item's file and notes its size and time; of an idx file, which
// is in memory, it returns the item's pixels.
func read(item *Item) ([]byte, error) {
	if item.idx != nil {
		return item.idx.At(item.number), nil
	}
	// Opening a pipe would wait for its writer, so it is looked at first.
	info, err := os.Stat(item.File)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	if info.Size() > maxFileBytes {
		return nil, fmt.Errorf("%d bytes are more than an image may have (%d)", info.Size(), maxFileBytes)
	}
	f, err := os.Open(item.File)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data := make([]byte, info.Size())
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, fmt.Errorf("the file changed while it was read: %w", err)
	}
	item.Bytes, item.MTime = info.Size(), info.ModTime().UnixNano()
	return data, nil
}

// finite tells whether no value is infinite or NaN.
func finite(values []float32) bool {
	for _, v := range values {
		if f := float64(v); math.IsInf(f, 0) || math.IsNaN(f) {
			return false
		}
	}
	return true
}
