package extractor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"mlrbfn/extractor/preprocess"
)

// maxFileBytes bounds what is read of one file into memory.
const maxFileBytes = 1 << 30

// DefaultBatch is the number of images that go through the session at once: more
// do not make a core faster, and leave cores idle when there are few images.
const DefaultBatch = 4

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
	// SHA256 is the hash of the file's bytes in hex, "" if it was not read.
	SHA256 string
	// Features has [Model.Dim] finite values, and Logits [Model.LogitsDim] or
	// none; both are nil where Err is not.
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
	if opts.Batch == 0 {
		opts.Batch = DefaultBatch
	}
	if opts.Workers == 0 {
		opts.Workers = runtime.GOMAXPROCS(0)
	}
	if opts.Batch < 0 || opts.Workers < 0 || opts.MaxPixels < 0 {
		return Stats{}, fmt.Errorf("batch %d, workers %d and pixels %d must be at least 1, or 0 for the default", opts.Batch, opts.Workers, opts.MaxPixels)
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
			runner, err := m.NewRunner(batch)
			if err != nil {
				return err
			}
			defer func() {
				if closeErr := runner.Close(); err == nil {
					err = closeErr
				}
			}()
			w := worker{runner, preprocess.DecodeOptions{MaxPixels: opts.MaxPixels, ApplyEXIF: m.applyEXIF}, pixels}
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
	runner *Runner
	decode preprocess.DecodeOptions
	pixels *semaphore.Weighted // all workers' images together have at most decode.MaxPixels
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
	sum := sha256.Sum256(data)
	r.SHA256 = hex.EncodeToString(sum[:])
	width, height, err := preprocess.Size(data)
	if size := int64(width) * int64(height); err == nil && size <= w.decode.MaxPixels { // else Decode says why
		if err := w.pixels.Acquire(ctx, size); err != nil {
			return err
		}
		defer w.pixels.Release(size)
	}
	img, err := preprocess.Decode(ctx, data, w.decode)
	if err != nil {
		return err
	}
	m := w.runner.model
	return m.Spec.Tensor(dst, img, m.input.layout)
}

// read reads the item's file and notes its size and time.
func read(item *Item) ([]byte, error) {
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
