package pipeline

import (
	"context"
	"errors"
	"fmt"
	"image"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/internal/setaside"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// DetectOptions says which images to judge by what.
type DetectOptions struct {
	Detector *detector.Detector
	Model    string // folder of the backbone; "" takes the detector's own
	// Judge, unless nil, is an open detector to judge by, in the place of Detector and Model.
	// It stays open.
	Judge *Judge
	// Paths are image files, folders of them, and idx files of images. If one is a tar, a
	// Parquet file or a URL, package images reads them all, sorted, and SetAside and More
	// do not go with it.
	Paths []string

	// More, unless nil, is asked for further paths when those before are judged. It waits
	// until there are some, and returns io.EOF at the end.
	More func(context.Context) ([]string, error)

	// SetAside, unless "", is a folder into which the files of images that are out of
	// distribution are moved or, with Copy, copied; see internal/setaside. One in
	// a folder of Paths keeps its path within, another its own path if that is
	// relative, or else its name. Images that lie in SetAside already are passed over.
	// A file that lies outside the folder of Paths that it was found in (that of its
	// name where it was named itself), since a link leads out, is judged and
	// stays where it is; SetAsideErr says so.
	SetAside string
	Copy     bool

	// Explain, unless nil, explains every verdict, many at once; with Where it also
	// finds which region of a flagged image made the score fall. Neither changes a
	// verdict.
	Explain *Explainer
	Where   bool
	// MostMaps is how many flagged images get such a map, the first ones; 0 means
	// DefaultMaps. [DetectStats].Unmapped counts the others.
	MostMaps int

	// Options say how to open the backbone and how to run it; what would change features
	// does not count. With More the total of Progress is −1 until all paths are known.
	extractor.Options
}

// Judgement is the result for one image: a verdict, or an error.
type Judgement struct {
	Path string // as the image was named, or folder and path within, with forward slashes; its bytes are the file system's and need not be UTF-8
	detector.Verdict
	Err error // why there is no verdict

	SetAside    string // where the image was moved or copied to; "" if it was not
	SetAsideErr error  // why not, though it should have been

	Explanation *Explanation // nil without DetectOptions.Explain
	Features    []float32    // of the image, as the detector reads them; nil without a verdict

	item images.Item
}

// Image reads and decodes the image, wherever it is by now.
func (j Judgement) Image(ctx context.Context, opts preprocess.DecodeOptions) (image.Image, error) {
	item := j.item
	if j.SetAside != "" {
		item = images.Item{Path: item.Path, File: j.SetAside, Label: -1}
	}
	img, _, err := item.Image(ctx, opts)
	if err != nil {
		return nil, err // not an interface that holds nil
	}
	return img, nil
}

// DetectStats counts judgements.
type DetectStats struct {
	Images, OOD, Failed int
	Kept                int // out of distribution, but not set aside as they should have been
	Unmapped            int // out of distribution, but without a map, see DetectOptions.MostMaps
}

// Detect judges all images under opts.Paths and gives each judgement to sink,
// in the order of the paths and, within a folder, of the names, as soon as those
// before it are done. An image that cannot be read is a judgement with an error
// and stops nothing; an idx file that cannot is an error.
func Detect(ctx context.Context, opts DetectOptions, sink func(Judgement) error) (DetectStats, error) {
	if slices.ContainsFunc(opts.Paths, func(path string) bool { return images.AreSources(false, path) }) {
		return detectSources(ctx, opts, sink)
	}
	// Paths that cannot be are told before a model is loaded.
	items, err := listPaths(ctx, opts.Paths, opts.SetAside, opts.More == nil)
	if err != nil {
		return DetectStats{}, err
	}
	return detect(ctx, opts, images.Of(items...), sink)
}

// detect is Detect with the images of opts.Paths.
func detect(ctx context.Context, opts DetectOptions, in images.Stream, sink func(Judgement) error) (_ DetectStats, err error) {
	var aside *setaside.Target
	if opts.SetAside != "" {
		if aside, err = setaside.Open(opts.SetAside); err != nil {
			return DetectStats{}, fmt.Errorf("folder for images that are set aside: %w", err)
		}
		defer func() { err = errors.Join(err, aside.Close()) }()
	}
	model, err := opts.backbone(ctx)
	if err != nil {
		return DetectStats{}, err
	}
	if opts.Judge == nil {
		defer func() { err = errors.Join(err, model.Close()) }()
	}

	var stats DetectStats
	conclude := func(r extractor.Row, v Verdict, why *Explanation) error {
		return sink(stats.add(opts.conclude(aside, r, v, why)))
	}
	judged := func(_ context.Context, r extractor.Row, v Verdict) error { return conclude(r, v, nil) }
	var reasons *explaining
	if opts.Explain != nil {
		reasons = newExplaining(&opts, model, conclude)
		judged = reasons.add
	}
	b := newBatcher(ctx, opts.Detector, judged)
	err = b.wait(func(ctx context.Context) error {
		done, failed := 0, 0
		for {
			run := opts.Options
			run.NoHash = true
			if progress := run.Progress; progress != nil {
				run.Progress = func(n, failedNow, total int) {
					if total += done; opts.More != nil {
						total = -1 // nobody knows
					}
					progress(done+n, failed+failedNow, total)
				}
			}
			through, err := model.Extract(ctx, in, run, func(r extractor.Row) error {
				r.Index += done
				return b.add(ctx, r)
			})
			done, failed = done+through.Done, failed+through.Failed
			if err == nil {
				err = b.flush(ctx)
			}
			if err == nil && reasons != nil {
				err = reasons.drain(ctx, done)
			}
			if err != nil || opts.More == nil {
				return err
			}
			more, err := opts.More(ctx)
			if err == io.EOF {
				if progress := opts.Progress; progress != nil && done > 0 {
					progress(done, failed, done)
				}
				return nil
			}
			if i := slices.IndexFunc(more, bucket.IsURL); err == nil && i >= 0 {
				err = fmt.Errorf("%s: URLs are named as paths, and not among the further ones", more[i])
			}
			var items []images.Item
			if err == nil {
				items, err = listPaths(ctx, more, opts.SetAside, false)
			}
			if err != nil {
				return err
			}
			in = images.Of(items...)
		}
	})
	if reasons != nil {
		stats.Unmapped = reasons.unmapped
	}
	return stats, err
}

// backbone returns the backbone, which it opens unless there is a Judge.
func (opts *DetectOptions) backbone(ctx context.Context) (extractor.Backbone, error) {
	if opts.Judge == nil {
		return opts.Detector.OpenBackbone(ctx, opts.Model, opts.Options)
	}
	opts.Detector = opts.Judge.detector
	return opts.Judge.backbone, nil
}

// detectSources is Detect for what package images reads.
func detectSources(ctx context.Context, opts DetectOptions, sink func(Judgement) error) (DetectStats, error) {
	if opts.SetAside != "" {
		return DetectStats{}, options.Errorf("SetAside", "images in tars, tables and buckets stay where they are")
	}
	if opts.More != nil {
		return DetectStats{}, fmt.Errorf("further paths (-) go with images on the disk, and not with tars, tables and buckets")
	}
	listing, err := images.ListSources(ctx, opts.Paths...)
	if err != nil {
		return DetectStats{}, err
	}
	in := listing.Stream(ctx, lists.UpTo(len(listing.Units)), images.StreamOptions{Failures: true})
	defer in.Close()
	return detect(ctx, opts, in, sink)
}

// add counts a judgement and returns it.
func (s *DetectStats) add(j Judgement) Judgement {
	s.Images++
	switch {
	case j.Err != nil:
		s.Failed++
	case j.OOD:
		s.OOD++
		if j.SetAsideErr != nil {
			s.Kept++
		}
	}
	return j
}

// conclude returns the judgement for an image, after setting the image aside if asked for.
func (opts *DetectOptions) conclude(aside *setaside.Target, r extractor.Row, v detector.Verdict, why *Explanation) Judgement {
	j := Judgement{Path: pathOf(r.Item), Verdict: v, Err: r.Err, Explanation: why, Features: r.Features, item: r.Item}
	if j.Err == nil && j.OOD && aside != nil {
		j.SetAside, j.SetAsideErr = opts.setAside(aside, r.Item)
	}
	return j
}

// setAside moves or copies an image's file, unless it is another by now or lies
// outside the folder that was named.
func (opts *DetectOptions) setAside(aside *setaside.Target, item images.Item) (to string, err error) {
	root, name, err := item.Locate()
	if err != nil {
		return "", err
	}
	defer root.Close()
	file := setaside.File{Root: root, Name: name, Size: item.Bytes, MTime: item.MTime}
	if opts.Copy {
		return aside.Copy(file, item.Path)
	}
	return aside.Move(file, item.Path)
}

// pathOf returns the path that names an image in judgements. An item's own path names it
// in the folder for images that are set aside.
func pathOf(item images.Item) string {
	if item.InIDX() {
		return path.Join(path.Dir(filepath.ToSlash(item.File)), item.Path)
	}
	return filepath.ToSlash(item.File)
}

// batcher judges images on all cores, several at once, and passes the verdicts on in order.
type batcher struct {
	batches chan batch
	group   *parallel.Group
	ctx     context.Context

	next batch     // what is to be judged together
	last time.Time // when an image came
}

// batch is images that are judged together.
type batch struct {
	results []extractor.Row
	rows    []float32 // [n, D], the features of those that have any
}

// patience is the longest time between two images that makes the former wait for
// others to be judged with. Where images take longer, it gains little.
const patience = 20 * time.Millisecond

// newBatcher starts it; sink gets the result, with features that are its own, and, where
// there are any, the verdict on each image, in the order of their indices, one at a time.
func newBatcher(ctx context.Context, d *detector.Detector, sink func(context.Context, extractor.Row, detector.Verdict) error) *batcher {
	workers := runtime.GOMAXPROCS(0)
	b := &batcher{batches: make(chan batch, workers)}
	b.group, b.ctx = parallel.WithContext(ctx)
	type judged struct {
		extractor.Row
		detector.Verdict
	}
	var mu sync.Mutex
	inOrder := ordered(func(v judged) error { return sink(b.ctx, v.Row, v.Verdict) })
	deliver := func(i int, v judged) error {
		mu.Lock()
		defer mu.Unlock() // after a panic of sink, too
		return inOrder(i, v)
	}
	for range workers {
		b.group.Go(func() error {
			var judge func(rows []float32) []detector.Verdict // takes memory, and not all may be needed
			for some := range b.batches {
				var verdicts []detector.Verdict
				if len(some.rows) > 0 {
					if judge == nil {
						judge = d.VerdictFunc()
					}
					verdicts = judge(some.rows)
				}
				for _, r := range some.results {
					v := judged{Row: r}
					if r.Err == nil {
						v.Verdict, verdicts = verdicts[0], verdicts[1:]
						v.Features, some.rows = some.rows[:d.Dim():d.Dim()], some.rows[d.Dim():]
					}
					if err := deliver(r.Index, v); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	return b
}

// add takes the result of an image, whose slices it copies. Of images that
// come quickly some wait for others until flush is called. Calls of both do not
// overlap.
func (b *batcher) add(ctx context.Context, r extractor.Row) error {
	b.next.rows = append(b.next.rows, r.Features...)
	r.Features, r.Logits = nil, nil
	b.next.results = append(b.next.results, r)
	now := time.Now()
	slow := now.Sub(b.last) > patience
	b.last = now
	if slow || len(b.next.results) == detector.VerdictRows {
		return b.flush(ctx)
	}
	return nil
}

// flush lets all images be judged that were taken.
func (b *batcher) flush(ctx context.Context) error {
	if len(b.next.results) == 0 {
		return nil
	}
	select {
	case b.batches <- b.next:
		b.next = batch{}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait runs what gives the results and returns when all are judged.
func (b *batcher) wait(feed func(context.Context) error) error {
	b.group.Go(func() error {
		defer close(b.batches)
		return feed(b.ctx)
	})
	return b.group.Wait()
}

// ordered returns a function that takes values in any order and gives them to
// sink in that of their indices, from 0 without gaps.
func ordered[T any](sink func(T) error) func(index int, v T) error {
	next, early := 0, map[int]T{}
	return func(index int, v T) error {
		early[index] = v
		for {
			v, ok := early[next]
			if !ok {
				return nil
			}
			delete(early, next)
			next++
			if err := sink(v); err != nil {
				return err
			}
		}
	}
}

// listPaths lists image files as they are named, and folders and idx files with
// all the images in them, but those in the folder apart, unless "". A path that
// is absent is an image that cannot be read; where these are all paths, one of
// them must be there.
func listPaths(ctx context.Context, paths []string, apart string, all bool) ([]images.Item, error) {
	var items []images.Item
	var missing error
	found := false
	for _, p := range paths {
		info, err := os.Stat(p)
		switch {
		case err != nil:
			missing = err
			items = append(items, images.Item{Path: named(p), File: p, Label: -1})
		case !info.IsDir() && !images.IsIDX(p):
			found = true
			item, err := images.NamedItem(p, named(p))
			if err != nil {
				missing = err
			}
			items = append(items, item)
		default:
			listing, err := images.List(ctx, images.ListOptions{Root: p, Except: apart})
			if err != nil && !(errors.Is(err, images.ErrNoImages) && (len(paths) > 1 || !all)) {
				return nil, err
			}
			if listing == nil {
				continue
			}
			found = true
			items = append(items, listing.Items...)
			for _, e := range listing.Errors {
				items = append(items, images.Item{Path: e.Path, File: filepath.Join(p, filepath.FromSlash(e.Path)), Label: -1})
			}
		}
	}
	if apart != "" {
		apart, err := filepath.Abs(apart)
		if err != nil {
			return nil, err
		}
		items = slices.DeleteFunc(items, func(item images.Item) bool {
			file, err := filepath.Abs(item.File)
			if err == nil {
				file, err = filepath.Rel(apart, file)
			}
			return err == nil && filepath.IsLocal(file)
		})
		if all && len(items) == 0 {
			return nil, fmt.Errorf("%w but those in %s, where images are set aside", images.ErrNoImages, apart)
		}
	}
	switch {
	case !all:
	case !found && errors.Is(missing, fs.ErrNotExist):
		return nil, fmt.Errorf("nothing to look at: %w", missing)
	case !found && missing != nil:
		return nil, missing
	case len(items) == 0:
		return nil, fmt.Errorf("%w under the given paths", images.ErrNoImages)
	}
	return items, nil
}

// named returns the name under which an image that was given by its own path is set
// aside.
func named(p string) string {
	if p = filepath.Clean(p); !filepath.IsLocal(p) {
		p = filepath.Base(p)
	}
	return filepath.ToSlash(p)
}
