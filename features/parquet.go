package features

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/columns"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/npy"
)

// parquetKey is the key of the Meta in a Parquet file's metadata.
const parquetKey = "mlrbfn"

// writeParquet writes features.parquet. The row of a shard is its image's place in the
// whole listing.
func (b *build) writeParquet(w io.Writer) error {
	meta := b.meta
	meta.Files = nil
	text, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	out := columns.NewWriter(w, meta.D, b.thumbnails != nil, parquetKey, string(text))
	images, stop := iter.Pull2(b.images)
	defer stop()
	thumbnails := func() ([]byte, bool) { return nil, false }
	if b.thumbnails != nil {
		var stop func()
		thumbnails, stop = iter.Pull(b.thumbnails)
		defer stop()
	}
	places := func() (int64, error, bool) { return 0, nil, false }
	if b.places != nil {
		var stop func()
		places, stop = iter.Pull2(b.places)
		defer stop()
	}
	row := int64(0)
	for values, err := range b.features {
		img, imageErr, ok := images()
		place, placeErr, placed := places()
		if err = errors.Join(err, imageErr, placeErr); err == nil && !ok {
			err = fmt.Errorf("%w: row %d has no image", ErrDamaged, row)
		}
		if err != nil {
			return err
		}
		if meta.DType == Float16 {
			values = slices.Clone(values)
			npy.Round(values)
		}
		line := columns.Row{Row: row, Path: disk.EncodePath(img.Path), Hash: img.SHA256, Bytes: img.Bytes, MTime: img.MTime, Embedding: values}
		if placed {
			line.Row = place
		}
		if img.Label != nil {
			label := readable(*img.Label)
			line.Label = &label
		}
		thumbnail, _ := thumbnails()
		if err := out.Write(line, thumbnail); err != nil {
			return err
		}
		row++
	}
	return out.Close()
}

// Conversion says how Convert writes a set.
type Conversion struct {
	DType   string // Float16, or "" for float32
	Parquet bool   // write features.parquet too
	// Thumbnails, where set, gives the file of a small picture of each row, in order, nil where
	// there is none, for features.parquet. A Parquet file is converted without.
	Thumbnails func(*Set) (iter.Seq[[]byte], error)
	Options
}

// Convert writes the features of another set, or of a Parquet file whose name ends in
// .parquet, as the feature set in the folder dir. A set of parts becomes one set, and a
// shard stays one.
func Convert(ctx context.Context, dir, from string, c Conversion) (_ Meta, err error) {
	var b *build
	if strings.HasSuffix(from, ".parquet") {
		file, err := columns.Open(from)
		if err != nil {
			return Meta{}, err
		}
		defer file.Close()
		if b, err = buildOfParquet(file, from); err != nil {
			return Meta{}, err
		}
	} else {
		s, err := Open(ctx, from)
		if err != nil {
			return Meta{}, err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		if err := s.Verify(ctx); err != nil && !errors.Is(err, ErrNoChecksums) {
			return Meta{}, err
		}
		if b, err = buildOf(s); err != nil {
			return Meta{}, err
		}
		if c.Thumbnails != nil {
			if b.thumbnails, err = c.Thumbnails(s); err != nil {
				return Meta{}, err
			}
		}
	}
	b.meta.DType, b.parquet = c.DType, c.Parquet
	header := Header{D: b.meta.D, DType: c.DType, Root: b.meta.Root, Fingerprint: b.meta.Fingerprint}
	if b.meta.Shard != nil {
		header.Shard = b.meta.Shard.Shard
	}
	w, err := begin(dir, header, c.Options)
	if err != nil {
		return Meta{}, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	return w.finish(ctx, b)
}

// buildOf gives the contents of a set.
func buildOf(s *Set) (*build, error) {
	b := &build{meta: s.Meta, columns: s.LogitsDim()}
	rows := func(of func(i int) []float32) iter.Seq2[[]float32, error] {
		return func(yield func([]float32, error) bool) {
			for i := range s.N {
				if !yield(of(i), nil) {
					return
				}
			}
		}
	}
	b.features, b.labels = rows(s.Row), each(s.labels)
	if b.columns > 0 {
		b.logits = rows(s.RowLogits)
	}
	if len(s.Layers) > 0 {
		b.layers = rows(s.RowLayers)
	}
	var err error
	if b.patches, err = s.Patches(); err != nil {
		return nil, err
	}
	if s.Shard != nil {
		places, _, err := npy.ReadUpTo[int64](s.path(placesFile), s.N)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		b.places = each(places)
	}
	if b.failed, err = s.Errors(); err != nil {
		return nil, err
	}
	sets := s.parts
	if sets == nil {
		sets = []*Set{s}
	}
	if b.sources, err = sourcesOf(sets); err != nil {
		return nil, err
	}
	b.images = s.eachImage()
	if images, stop := iter.Pull2(b.images); s.N > 0 {
		_, err, ok := images()
		stop()
		if err != nil {
			return nil, err
		}
		if !ok { // another program's
			b.images = func(yield func(Image, error) bool) {
				for i, y := range s.labels {
					img := Image{Path: fmt.Sprintf("row-%d", i), SHA256: noSum}
					if y >= 0 {
						img.Label = &s.Classes[y]
					}
					if !yield(img, nil) {
						return
					}
				}
			}
		}
	}
	return b, nil
}

// buildOfParquet gives the contents of a Parquet file. What another program wrote has no
// more than path and embedding, perhaps.
func buildOfParquet(file *columns.File, name string) (*build, error) {
	b := &build{}
	if text, ok := file.Metadata(parquetKey); ok {
		if err := json.Unmarshal([]byte(text), &b.meta); err != nil {
			return nil, fmt.Errorf("%s: %w: %w", name, ErrDamaged, err)
		}
		if b.meta.Version > Version {
			return nil, fmt.Errorf("%s: %w", name, ErrVersion)
		}
	}
	// The first time for what must be known before rows are written.
	known := map[string]int64{}
	for i, class := range b.meta.Classes {
		known[class] = int64(i)
	}
	var names []string
	var labels, places []int64
	var images []Image
	d := -1
	err := file.Each(func(r columns.Row) error {
		if d < 0 {
			d = len(r.Embedding)
		}
		if len(r.Embedding) != d || d == 0 {
			return fmt.Errorf("%s: %w: row %d has %d features, and the first has %d", name, ErrDamaged, len(images), len(r.Embedding), d)
		}
		img := Image{Path: disk.DecodePath(strings.Clone(r.Path)), Bytes: r.Bytes, MTime: r.MTime, SHA256: strings.Clone(r.Hash)}
		if img.SHA256 == "" {
			img.SHA256 = noSum
		}
		if r.Label != nil {
			label := strings.Clone(*r.Label)
			if _, ok := known[label]; !ok {
				known[label] = 0
				names = append(names, label)
			}
			img.Label = &label
		}
		images, places = append(images, img), append(places, r.Row)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(images) == 0 {
		return nil, fmt.Errorf("%s: %w: it has no rows", name, ErrDamaged)
	}
	slices.Sort(names)
	for _, class := range names {
		known[class] = int64(len(b.meta.Classes))
		b.meta.Classes = append(b.meta.Classes, class)
	}
	if b.meta.Classes == nil {
		b.meta.Classes = []string{}
	}
	for _, img := range images {
		y := int64(-1)
		if img.Label != nil {
			y = known[*img.Label]
		}
		labels = append(labels, y)
	}
	b.meta.N, b.meta.D = len(images), d
	b.labels, b.images = each(labels), each(images)
	if b.meta.Shard != nil {
		b.places = each(places)
	}
	b.features = embeddingsOf(name)
	return b, nil
}

// embeddingsOf reads the embeddings of a Parquet file.
func embeddingsOf(name string) iter.Seq2[[]float32, error] {
	return func(yield func([]float32, error) bool) {
		file, err := columns.Open(name)
		if err == nil {
			enough := errors.New("enough")
			err = file.Each(func(r columns.Row) error {
				if !yield(r.Embedding, nil) {
					return enough
				}
				return nil
			})
			file.Close()
			if err == enough {
				return
			}
		}
		if err != nil {
			yield(nil, err)
		}
	}
}
