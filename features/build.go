package features

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/mlrbfn/mlrbfn/internal/atomicfile"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/pathtext"
	"github.com/mlrbfn/mlrbfn/internal/regular"
	"github.com/mlrbfn/mlrbfn/options"
)

// build gives the contents of a set's files row by row, so that they need not be in
// memory. Each sequence has meta.N values and is read once; it ends after an error.
type build struct {
	meta     Meta
	features iter.Seq2[[]float32, error]
	logits   iter.Seq2[[]float32, error] // nil if there are none
	columns  int                         // of logits
	labels   iter.Seq2[int64, error]
	images   iter.Seq2[Image, error]
	places   iter.Seq2[int64, error] // nil except for a shard
	failed   []Failure
	parquet  bool
	sources  []sourceLine
}

// write writes and syncs all files of the set in a new folder and completes meta.
// It copies the classifier from old, a set of the same model, unless old is nil.
func (b *build) write(ctx context.Context, dir string, old *Set) error {
	if err := disk.RemoveAll(dir); err != nil {
		return err
	}
	if err := disk.Mkdir(dir); err != nil {
		return err
	}
	b.meta.Version, b.meta.Files = max(needsVersion(b.meta.Root), needsVersion(b.meta.Model)), map[string]Sum{}
	if b.meta.DType != "" {
		b.meta.Version = Version
	}
	file := func(name string, fill func(w io.Writer) error) (err error) {
		b.meta.Files[name], err = create(ctx, filepath.Join(dir, name), fill)
		return err
	}
	sortFailures(b.failed)
	// Rows and images first: their errors name what is missing.
	err := file(featuresFile, func(w io.Writer) error { return writeRows(w, b.features, b.meta.N, b.meta.D, b.meta.DType) })
	if err == nil && b.logits != nil {
		err = file(logitsFile, func(w io.Writer) error { return writeRows(w, b.logits, b.meta.N, b.columns, "") })
	}
	if err == nil {
		err = file(imagesFile, func(w io.Writer) error { return writeLines(w, b.images, b.imageLine) })
	}
	if err == nil {
		err = file(labelsFile, func(w io.Writer) error { return writeNumbers(w, b.labels, b.meta.N) })
	}
	if err == nil && b.places != nil {
		err = file(placesFile, func(w io.Writer) error { return writeNumbers(w, b.places, b.meta.N) })
	}
	if err == nil {
		err = file(errorsFile, func(w io.Writer) error { return writeLines(w, each(b.failed), b.failureLine) })
	}
	if err == nil && b.parquet {
		err = file(parquetFile, b.writeParquet)
	}
	if err == nil && len(b.sources) > 0 {
		err = file(sourcesFile, func(w io.Writer) error { return writeLines(w, each(b.sources), func(l sourceLine) any { return l }) })
	}
	if err == nil && old != nil {
		err = errors.Join(copyFile(filepath.Join(dir, weightFile), old.path(weightFile)), copyFile(filepath.Join(dir, biasFile), old.path(biasFile)))
	}
	if err != nil {
		return err
	}
	text, err := b.meta.encode()
	if err == nil {
		b.meta, err = parseMeta(text) // as a reader sees it
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Join(dir, metaFile), err)
	}
	err = atomicfile.Create(filepath.Join(dir, metaFile), func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
	if err != nil {
		return err
	}
	return atomicfile.SyncDir(dir)
}

// each makes a sequence of a slice.
func each[T any](all []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, v := range all {
			if !yield(v, nil) {
				return
			}
		}
	}
}

// sortFailures sorts failures, so that their order does not depend on the speed of
// the workers.
func sortFailures(failed []Failure) {
	slices.SortFunc(failed, func(a, b Failure) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Error, b.Error))
	})
}

// imageLine returns the line of images.jsonl for an image.
func (b *build) imageLine(img Image) any {
	b.meta.Version = max(b.meta.Version, needsVersion(img.Path))
	if img.Label != nil {
		label := readable(*img.Label)
		img.Label = &label
	}
	return imageLine{pathtext.Encode(img.Path), pathtext.Bytes(img.Path), img.Label, img.Bytes, img.MTime, img.SHA256}
}

// failureLine returns the line of errors.jsonl for a failure.
func (b *build) failureLine(f Failure) any {
	b.meta.Version = max(b.meta.Version, needsVersion(f.Path))
	return failureLine{pathtext.Encode(f.Path), pathtext.Bytes(f.Path), f.Error}
}

// readable converts the name of a folder, which may have any bytes, to UTF-8.
func readable(name string) string {
	if utf8.ValidString(name) {
		return name
	}
	return pathtext.EncodePercent(name)
}

// writeRows writes a matrix [n, columns] of float32 or of Float16.
func writeRows(w io.Writer, rows iter.Seq2[[]float32, error], n, columns int, dtype string) error {
	var out interface {
		Write([]float32) error
		Close() error
	}
	var err error
	if dtype == Float16 {
		out, err = npy.NewHalfWriter(w, n, columns)
	} else {
		out, err = npy.NewWriter[float32](w, n, columns)
	}
	if err != nil {
		return err
	}
	at := 0
	for row, err := range rows {
		if err == nil {
			err = out.Write(row)
		}
		if at++; errors.Is(err, npy.ErrHalf) {
			err = options.Errorf("DType", "row %d: %w; extract float32", at-1, err)
		}
		if err != nil {
			return err
		}
	}
	return out.Close()
}

// writeNumbers writes n numbers.
func writeNumbers(w io.Writer, numbers iter.Seq2[int64, error], n int) error {
	out, err := npy.NewWriter[int64](w, n)
	if err != nil {
		return err
	}
	one := make([]int64, 1)
	for v, err := range numbers {
		if one[0] = v; err == nil {
			err = out.Write(one)
		}
		if err != nil {
			return err
		}
	}
	return out.Close()
}

// writeLines writes one JSON object a line.
func writeLines[T any](w io.Writer, all iter.Seq2[T, error], line func(T) any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for v, err := range all {
		if err == nil {
			err = enc.Encode(line(v))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyFile copies a file, if it exists.
func copyFile(to, from string) error {
	f, err := regular.Open(from, regular.Values)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return atomicfile.Create(to, func(w io.Writer) error {
		_, err := io.Copy(w, f)
		return err
	})
}

// Contents describes the rows of a set for Commit.
type Contents struct {
	// Images are those of the listing that belong to the set, in its order.
	// Path, Label, Bytes and MTime are used.
	Images []Image
	// Labels are those of Images: −1 or an index into Classes.
	Labels  []int64
	Classes []string
	// Failed are the images that have no row, and other files that could not be read.
	Failed []Failure
	// Part and Places are for shards only: the whole set that the shard is part of,
	// and the place of each of Images in that.
	Part   *Part
	Places []int64
	// Sources are the files of many images that Images are from, in order.
	Sources []Source
}

// newBuild checks the arguments of Commit. The build that it returns reads them and
// the rows of w.
func (w *Writer) newBuild(c Contents) (*build, error) {
	if len(c.Labels) != len(c.Images) {
		return nil, fmt.Errorf("%d labels for %d images", len(c.Labels), len(c.Images))
	}
	if c.Part != nil && len(c.Places) != len(c.Images) {
		return nil, fmt.Errorf("%d places for %d images", len(c.Places), len(c.Images))
	}
	if (c.Part == nil) != (w.header.Shard == Shard{}) || c.Part != nil && c.Part.Shard != w.header.Shard {
		return nil, fmt.Errorf("the contents are not those of shard %q", w.header.Shard)
	}
	left := make(map[string]bool, len(c.Failed))
	for _, f := range c.Failed {
		left[f.Path] = true
	}
	n := 0
	var fromOld, fromJournal bool
	for i, img := range c.Images {
		if left[img.Path] {
			continue
		}
		n++
		l, ok := w.known[img.Path]
		if !ok || l.bytes != img.Bytes || l.mtime != img.MTime {
			return nil, fmt.Errorf("there is no row of %s as it is now, and it has not failed", img.Path)
		}
		if _, old := l.inOld(); old {
			fromOld = true
		} else {
			fromJournal = true
		}
		if c.Labels[i] < -1 || c.Labels[i] >= int64(len(c.Classes)) {
			return nil, fmt.Errorf("label %d of %s is none of the %d classes", c.Labels[i], img.Path, len(c.Classes))
		}
	}
	// rows calls yield with the place in c.Images of each row.
	rows := func(yield func(int) bool) {
		for i, img := range c.Images {
			if !left[img.Path] && !yield(i) {
				return
			}
		}
	}
	matrix := func(first, columns int) iter.Seq2[[]float32, error] {
		return func(yield func([]float32, error) bool) {
			values := make([]float32, columns)
			for i := range rows {
				err := w.read(values, w.known[c.Images[i].Path], first)
				if !yield(values, err) || err != nil {
					return
				}
			}
		}
	}
	numbers := func(of []int64) iter.Seq2[int64, error] {
		return func(yield func(int64, error) bool) {
			for i := range rows {
				if !yield(of[i], nil) {
					return
				}
			}
		}
	}
	var machines []Machine
	if fromOld {
		machines = union(machines, w.old.Machines)
	}
	if fromJournal {
		machines = union(machines, w.machines)
	}
	h := w.header
	b := &build{
		meta: Meta{
			N: n, D: h.D, DType: h.DType, Classes: []string{}, Root: h.Root, Model: h.Model, ModelSHA256: h.ModelSHA256, Output: h.Output,
			Pool: h.Pool, Preprocess: h.Preprocess, Fingerprint: h.Fingerprint, Tool: h.Tool, Machines: machines, Probe: w.probeOf(fromOld, fromJournal), Shard: c.Part,
		},
		features: matrix(0, h.D),
		labels:   numbers(c.Labels),
		images: func(yield func(Image, error) bool) {
			for i := range rows {
				img := c.Images[i]
				sha := w.known[img.Path].sha256
				img.SHA256 = hex.EncodeToString(sha[:])
				if !yield(img, nil) {
					return
				}
			}
		},
		failed:  slices.Clone(c.Failed),
		parquet: h.Parquet,
	}
	for _, s := range c.Sources {
		b.sources = append(b.sources, newSourceLine(s))
	}
	if h.LogitsDim > 0 {
		b.logits, b.columns = matrix(h.D, h.LogitsDim), h.LogitsDim
	}
	if c.Part != nil {
		b.places = numbers(c.Places)
	}
	for _, class := range c.Classes {
		b.meta.Classes = append(b.meta.Classes, readable(class))
	}
	return b, nil
}

// read fills values with the columns of a row from first on: 0 for its features,
// D for its logits.
func (w *Writer) read(values []float32, l location, first int) error {
	row, old := l.inOld()
	if !old {
		return w.journal.read(values, l.row, first)
	}
	if first > 0 {
		copy(values, w.old.RowLogits(row))
	} else {
		copy(values, w.old.Row(row))
	}
	return nil
}
