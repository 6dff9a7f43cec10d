package features

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"unicode/utf8"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// build gives the contents of a set's files row by row, so that they need not be in
// memory. Each sequence has meta.N values and is read once; it ends after an error.
type build struct {
	meta     Meta
	features iter.Seq2[[]float32, error]
	logits   iter.Seq2[[]float32, error] // nil if there are none
	columns  int                         // of logits
	layers   iter.Seq2[[]float32, error] // nil if there are none
	patches  []byte                      // likewise
	labels   iter.Seq2[int64, error]
	images   iter.Seq2[Image, error]
	places   iter.Seq2[int64, error] // nil except for a shard
	failed   []Failure
	parquet  bool
	sources  []sourceLine

	thumbnails iter.Seq[[]byte] // for Parquet; nil if there are none
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
	sortFailures(b.failed)
	// Rows and images first: their errors name what is missing.
	var err error
	for _, f := range slices.Concat(b.matrices(), b.lists()) {
		if err == nil && f.wanted {
			b.meta.Files[f.name], err = create(ctx, filepath.Join(dir, f.name), f.fill)
		}
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
	if err := disk.Create(filepath.Join(dir, metaFile), disk.Bytes(text)); err != nil {
		return err
	}
	return disk.SyncDir(dir)
}

// content is what a file of the set holds, if it has it.
type content struct {
	name   string
	wanted bool
	fill   func(w io.Writer) error
}

// matrices are the files that people do not change.
func (b *build) matrices() []content {
	return []content{
		{featuresFile, true, func(w io.Writer) error { return writeRows(w, b.features, b.meta.N, b.meta.D, b.meta.DType) }},
		{logitsFile, b.logits != nil, func(w io.Writer) error { return writeRows(w, b.logits, b.meta.N, b.columns, "") }},
		{layersFile, b.layers != nil, func(w io.Writer) error {
			return writeRows(w, b.layers, b.meta.N, LayersDim(b.meta.Layers), b.meta.DType)
		}},
		{patchesFile, b.patches != nil, disk.Bytes(b.patches)},
	}
}

// lists are those that depend on the images and their labels alone, and Parquet's, for which
// the others must be written before.
func (b *build) lists() []content {
	return []content{
		{imagesFile, true, func(w io.Writer) error { return writeLines(w, b.images, b.imageLine) }},
		{labelsFile, true, func(w io.Writer) error { return writeNumbers(w, b.labels, b.meta.N) }},
		{placesFile, b.places != nil, func(w io.Writer) error { return writeNumbers(w, b.places, b.meta.N) }},
		{errorsFile, true, func(w io.Writer) error { return writeLines(w, each(b.failed), b.failureLine) }},
		{sourcesFile, len(b.sources) > 0, func(w io.Writer) error { return writeLines(w, each(b.sources), func(l sourceLine) any { return l }) }},
		{parquetFile, b.parquet, b.writeParquet},
	}
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
	return imageLine{disk.EncodePath(img.Path), disk.PathBytes(img.Path), img.Label, img.Bytes, img.MTime, img.SHA256}
}

// failureLine returns the line of errors.jsonl for a failure.
func (b *build) failureLine(f Failure) any {
	b.meta.Version = max(b.meta.Version, needsVersion(f.Path))
	return failureLine{disk.EncodePath(f.Path), disk.PathBytes(f.Path), f.Error}
}

// readable converts the name of a folder, which may have any bytes, to UTF-8.
func readable(name string) string {
	if utf8.ValidString(name) {
		return name
	}
	return disk.EncodePercent(name)
}

// writeRows writes a matrix [n, columns] of float32 or of Float16.
func writeRows(w io.Writer, rows iter.Seq2[[]float32, error], n, columns int, dtype string) error {
	begin := npy.NewWriter[float32]
	if dtype == Float16 {
		begin = npy.NewHalfWriter
	}
	out, err := begin(w, n, columns)
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
	if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return disk.Create(to, func(w io.Writer) error { return disk.Copy(context.Background(), w, from, disk.Values) })
}
