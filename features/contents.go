package features

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// Contents describes the rows of a set for Commit.
type Contents struct {
	// Units are what the set is made of, in order.
	Units []Unit
	// Classes are the names of the classes; nil for the labels that the images of Units have,
	// also those that failed.
	Classes []string
	// Class is the class of all images; "" for their labels.
	Class string
	// Failed are the images that have no row, and other files that could not be read.
	Failed []Failure
	// Part is for shards only: the whole set that the shard is part of.
	Part *Part
	// Row, where set, is told the label of each row.
	Row func(label int64)
}

// A Unit is some images of a set: those of a source, which need not be in memory, or others,
// such as those of a folder.
type Unit struct {
	Source string  // path of a source that AddSource or Source knows; "" for Images
	Images []Image // Path, Label, Bytes and MTime are used
	Place  int64   // in a shard: of the first image that has a row, in the whole set, if others follow it there
	Places []int64 // in a shard: those of all Images, if they do not
}

// entry is an image of Contents.
type entry struct {
	image        Image
	label, place int64
	at           location
	known        bool // at is valid
}

// entries gives the images of c that have not failed.
func (w *Writer) entries(c *Contents) iter.Seq2[entry, error] {
	left := make(map[string]bool, len(c.Failed))
	for _, f := range c.Failed {
		left[f.Path] = true
	}
	index := make(map[string]int64, len(c.Classes))
	for i, class := range c.Classes {
		index[class] = int64(i)
	}
	return func(yield func(entry, error) bool) {
		for _, unit := range c.Units {
			images, rows := each(unit.Images), w.known
			if unit.Source != "" {
				r := w.sources[unit.Source]
				if r == nil {
					yield(entry{}, fmt.Errorf("the images of %s are not known", unit.Source))
					return
				}
				var err error
				if rows, err = w.rowsOf(r); err != nil {
					yield(entry{}, err)
					return
				}
				images = w.imagesOf(r)
			}
			place, at := unit.Place, -1
			for img, err := range images {
				if err != nil {
					yield(entry{}, err)
					return
				}
				if at++; left[img.Path] {
					continue
				}
				if unit.Places != nil {
					place = unit.Places[at]
				}
				e := entry{image: img, label: -1, place: place}
				if c.Class != "" {
					e.image.Label = &c.Class
				}
				if e.image.Label != nil {
					var ok bool
					if e.label, ok = index[*e.image.Label]; !ok {
						err = fmt.Errorf("the label %q of %s is none of the %d classes", *e.image.Label, img.Path, len(c.Classes))
					}
				}
				e.at, e.known = rows[img.Path]
				if !yield(e, err) || err != nil {
					return
				}
				place++
			}
		}
	}
}

// name sets the classes of c, where they are not known, to the labels of the images of its
// units, those that failed too.
func (w *Writer) name(ctx context.Context, c *Contents) error {
	if c.Class != "" {
		c.Classes = []string{c.Class}
	}
	if c.Classes != nil {
		return nil
	}
	classes := map[string]bool{}
	for _, unit := range c.Units {
		images := each(unit.Images)
		if r := w.sources[unit.Source]; unit.Source != "" && r != nil {
			images = w.imagesOf(r)
		}
		for img, err := range images {
			if err := cmp.Or(err, ctx.Err()); err != nil {
				return err
			}
			if img.Label != nil {
				classes[*img.Label] = true
			}
		}
	}
	c.Classes = slices.Collect(maps.Keys(classes))
	SortClasses(c.Classes)
	return nil
}

// plan is a file with what each row of a set is made of: there may be millions.
type plan string

// planned is a row.
type planned struct {
	Row          int64 // see location
	Label, Place int64
}

const plannedSize = 3 * 8

// write writes the rows.
func (p plan) write(rows iter.Seq2[planned, error]) (err error) {
	f, err := disk.OpenForWriting(string(p), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	out := bufio.NewWriterSize(f, 1<<16)
	var b [plannedSize]byte
	for r, err := range rows {
		if err != nil {
			return err
		}
		for i, v := range [...]int64{r.Row, r.Label, r.Place} {
			binary.LittleEndian.PutUint64(b[8*i:], uint64(v))
		}
		if _, err := out.Write(b[:]); err != nil {
			return err
		}
	}
	return out.Flush()
}

// rows reads the rows.
func (p plan) rows() iter.Seq2[planned, error] {
	return func(yield func(planned, error) bool) {
		f, err := disk.Open(string(p), disk.Values)
		if err != nil {
			yield(planned{}, err)
			return
		}
		defer f.Close()
		in := bufio.NewReaderSize(f, 1<<16)
		var b [plannedSize]byte
		for {
			if _, err = io.ReadFull(in, b[:]); err != nil {
				break
			}
			number := func(i int) int64 { return int64(binary.LittleEndian.Uint64(b[8*i:])) }
			if !yield(planned{number(0), number(1), number(2)}, nil) {
				return
			}
		}
		if err != io.EOF {
			yield(planned{}, err)
		}
	}
}

// plan writes which row each image has, and says how many have one, and whether some are
// rows of the old set, or of the journal.
func (w *Writer) plan(ctx context.Context, c *Contents) (p plan, n int, fromOld, fromJournal bool, err error) {
	p = plan(w.partial(planFile))
	err = p.write(func(yield func(planned, error) bool) {
		for e, err := range w.entries(c) {
			img := e.image
			switch {
			case err != nil:
			case ctx.Err() != nil:
				err = ctx.Err()
			case !e.known || e.at.bytes != img.Bytes || e.at.mtime != img.MTime:
				err = fmt.Errorf("there is no row of %s as it is now, and it has not failed", img.Path)
			}
			if !yield(planned{int64(e.at.row), e.label, e.place}, err) {
				return
			}
			n++
			if _, old := e.at.inOld(); old {
				fromOld = true
			} else {
				fromJournal = true
			}
			if c.Row != nil {
				c.Row(e.label)
			}
		}
	})
	return p, n, fromOld, fromJournal, err
}

// machinesOf returns the machines that rows of the old set, or of the journal, are from.
func (w *Writer) machinesOf(old, journal bool) (machines []Machine) {
	if old {
		machines = union(machines, w.old.Machines)
	}
	if journal {
		machines = union(machines, w.machines)
	}
	return machines
}

// newBuild checks the arguments of Commit. The build that it returns reads them and
// the rows of w.
func (w *Writer) newBuild(ctx context.Context, c Contents) (*build, error) {
	if (c.Part == nil) != (w.header.Shard == Shard{}) || c.Part != nil && c.Part.Shard != w.header.Shard {
		return nil, fmt.Errorf("the contents are not those of shard %q", w.header.Shard)
	}
	for _, unit := range c.Units {
		if unit.Places != nil && len(unit.Places) != len(unit.Images) {
			return nil, fmt.Errorf("%d places for %d images", len(unit.Places), len(unit.Images))
		}
	}
	if err := w.name(ctx, &c); err != nil {
		return nil, err
	}
	plan, n, fromOld, fromJournal, err := w.plan(ctx, &c)
	if err != nil {
		return nil, err
	}
	matrix := func(first, columns int) iter.Seq2[[]float32, error] {
		return func(yield func([]float32, error) bool) {
			values := make([]float32, columns)
			for r, err := range plan.rows() {
				if err == nil {
					err = w.read(values, int(r.Row), first)
				}
				if !yield(values, err) || err != nil {
					return
				}
			}
		}
	}
	numbers := func(of func(planned) int64) iter.Seq2[int64, error] {
		return func(yield func(int64, error) bool) {
			for r, err := range plan.rows() {
				if !yield(of(r), err) {
					return
				}
			}
		}
	}
	h := w.header
	b := &build{
		meta: Meta{
			N: n, D: h.D, DType: h.DType, Classes: []string{}, Root: h.Root, Model: h.Model, ModelSHA256: h.ModelSHA256, Output: h.Output,
			Pool: h.Pool, Preprocess: h.Preprocess, Fingerprint: h.Fingerprint, Layers: h.Layers, Embedding: h.Embedding, Tool: h.Tool, Machines: w.machinesOf(fromOld, fromJournal), Probe: w.probeOf(fromOld, fromJournal), Shard: c.Part,
		},
		features: matrix(0, h.D),
		labels:   numbers(func(r planned) int64 { return r.Label }),
		images: func(yield func(Image, error) bool) {
			for e, err := range w.entries(&c) {
				e.image.SHA256 = hex.EncodeToString(e.at.sha256[:])
				if !yield(e.image, err) {
					return
				}
			}
		},
		failed:  slices.Clone(c.Failed),
		parquet: h.Parquet,
	}
	for _, unit := range c.Units {
		if unit.Source != "" {
			b.sources = append(b.sources, w.sources[unit.Source].line(unit.Source))
		}
	}
	b.patches = h.Patches
	if d := LayersDim(h.Layers); d > 0 {
		b.layers = matrix(h.D, d)
	}
	if h.LogitsDim > 0 {
		b.logits, b.columns = matrix(h.width(), h.LogitsDim), h.LogitsDim
	}
	if c.Part != nil {
		b.places = numbers(func(r planned) int64 { return r.Place })
	}
	for _, class := range c.Classes {
		b.meta.Classes = append(b.meta.Classes, readable(class))
	}
	return b, nil
}

// read fills values with the columns of a row from first on: 0 for its features, D for its
// layers, which its logits follow.
func (w *Writer) read(values []float32, at, first int) error {
	row, old := location{row: at}.inOld()
	if !old {
		return w.journal.read(values, at, first)
	}
	switch first {
	case 0:
		copy(values, w.old.Row(row))
	case w.header.width():
		copy(values, w.old.RowLogits(row))
	default:
		copy(values, w.old.RowLayers(row))
	}
	return nil
}
