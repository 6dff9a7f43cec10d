package features

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/npy"
)

// BlockRows is how many rows of a [Table] are read at once.
const BlockRows = 512

// Table is the rows of one or several feature sets as one matrix, with the
// union of their classes.
type Table struct {
	Dirs    []string
	Rows             // all rows; a label is an index into Classes, −1 for none
	Classes []string // sorted, unless they are one set's own
	Sets    []*Set
}

// OpenTable opens feature sets that were made by the same model in the same
// way, and checks that no value is absurd. Several become one in space; nil
// means in memory. Close it when no row is in use.
func OpenTable(ctx context.Context, space *Space, dirs ...string) (*Table, error) {
	var sets []*Set
	for _, dir := range dirs {
		set, err := Open(ctx, dir)
		if err != nil {
			return nil, errors.Join(err, closeAll(sets))
		}
		sets = append(sets, set)
	}
	return NewTable(ctx, space, sets...)
}

// OpenTableLike is [OpenTable] of sets whose rows can be used together with those of another.
func OpenTableLike(ctx context.Context, space *Space, like *Set, dirs ...string) (*Table, error) {
	t, err := OpenTable(ctx, space, dirs...)
	if err != nil {
		return nil, err
	}
	if err := SameSpace(like, t.Sets[0]); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// NewTable is OpenTable for sets that are open. The table closes them, even if there is
// an error.
func NewTable(ctx context.Context, space *Space, sets ...*Set) (_ *Table, err error) {
	t := &Table{Sets: sets}
	defer disk.OnError(&err, t.Close)
	for _, set := range sets {
		t.Dirs = append(t.Dirs, set.Dir)
		if err := SameSpace(sets[0], set); err != nil {
			return nil, err
		}
	}
	first := t.Sets[0]
	if len(t.Sets) == 1 {
		t.Rows, t.Classes = space.Features(first), first.Classes
		return t, checkValues(ctx, first, nil)
	}
	for _, set := range t.Sets {
		t.Classes = append(t.Classes, set.Classes...)
	}
	slices.Sort(t.Classes)
	t.Classes = slices.Compact(t.Classes)
	var labels []int64
	for _, set := range t.Sets {
		own, err := Relabel(set, t.Classes)
		if err != nil {
			return nil, err
		}
		labels = append(labels, own...)
	}
	t.Rows, err = space.Make(first.D, labels, func(write func(int, []float32) error) error {
		at := 0
		for _, set := range t.Sets {
			file := space.Features(set)
			move := func(row int, rows []float32) error { return write(at+row, rows) }
			if err := errors.Join(checkValues(ctx, set, move), file.Close()); err != nil {
				return err
			}
			at += set.N
		}
		return nil
	})
	return t, err
}

// checkValues checks every value of a set and gives blocks of its rows, from row
// on, to each, where that is set.
func checkValues(ctx context.Context, set *Set, each func(row int, rows []float32) error) error {
	largest := make([]float32, 0, set.N) // absolute value of each row
	for from := 0; from < set.N; from += BlockRows {
		if err := ctx.Err(); err != nil {
			return err
		}
		block := set.Block(from, min(from+BlockRows, set.N))
		for row := range slices.Chunk(block, set.D) {
			most := float32(0)
			for _, v := range row {
				if v = max(v, -v); v > most || v != v { // NaN stays
					most = v
				}
			}
			if !(most <= npy.MostValue) {
				return badRow(set, len(largest), npy.CheckValues(row))
			}
			largest = append(largest, most)
		}
		if each != nil {
			if err := each(from, block); err != nil {
				return err
			}
		}
	}
	return checkOutliers(set, largest)
}

// outlier is how many times the usual largest value of a row may be exceeded. Rows
// beyond it would decide alone how all others are conditioned.
const outlier = 1e6

// checkOutliers refuses a row whose largest value is absurd beside those of the
// others.
func checkOutliers(set *Set, largest []float32) error {
	usual := slices.Clone(largest)
	slices.Sort(usual)
	if len(usual) == 0 || usual[len(usual)/2] == 0 {
		return nil
	}
	middle := float64(usual[len(usual)/2])
	if row := slices.IndexFunc(largest, func(v float32) bool { return float64(v) > outlier*middle }); row >= 0 {
		return badRow(set, row, fmt.Errorf("the value ±%g is %.2g times the largest value of the usual row", largest[row], float64(largest[row])/middle))
	}
	return nil
}

// badRow names the row and its image.
func badRow(set *Set, row int, err error) error {
	image := ""
	if path := set.ImagePath(row); path != "" {
		image = fmt.Sprintf(" (%s)", path)
	}
	return fmt.Errorf("features %s: row %d%s: %w; extract the image again, or leave it out", set.Dir, row, image, err)
}

// Distinct refuses a folder that stands in for two sets of images that must
// have none in common.
func Distinct(dirs []string) error {
	var infos []os.FileInfo
	for i, dir := range dirs {
		if bucket.IsURL(dir) && slices.Contains(dirs[:i], dir) {
			return fmt.Errorf("features %s are given twice: images to train on, to validate and to calibrate with must differ", dir)
		}
		info, err := os.Stat(dir)
		if err != nil {
			continue // OpenTable says it better
		}
		for _, other := range infos {
			if os.SameFile(info, other) {
				return fmt.Errorf("features %s are given twice: images to train on, to validate and to calibrate with must differ", dir)
			}
		}
		infos = append(infos, info)
	}
	return nil
}

// Relabel returns a set's labels as indices into other class names.
func Relabel(set *Set, classes []string) ([]int64, error) {
	to := make([]int64, len(set.Classes))
	for i, name := range set.Classes {
		to[i] = int64(slices.Index(classes, name))
	}
	labels := make([]int64, set.N)
	for i, y := range set.Labels() {
		labels[i] = -1
		if y < 0 {
			continue
		}
		if labels[i] = to[y]; labels[i] < 0 {
			return nil, fmt.Errorf("features %s have the class %q, which the training features do not have", set.Dir, set.Classes[y])
		}
	}
	return labels, nil
}

// Close lets go of the sets' files.
func (t *Table) Close() error { return errors.Join(t.Rows.Close(), closeAll(t.Sets)) }

// Gather returns the features of rows, ascending; without copying where they follow each
// other.
func (t *Table) Gather(rows []int) []float32 {
	n := len(rows)
	if n == 0 {
		return nil
	}
	if rows[n-1]-rows[0] == n-1 {
		return t.Block(rows[0], rows[0]+n)
	}
	x := make([]float32, 0, n*t.D)
	for _, r := range rows {
		x = append(x, t.Row(r)...)
	}
	return x
}

// WithLayers returns the features of rows, each followed by all its layers.
func (t *Table) WithLayers(rows []int) (x []float32) {
	for _, r := range rows {
		x = append(append(x, t.Row(r)...), t.Layers(r)...)
	}
	return x
}

// ChunksWithLayers gives all rows in order, each followed by all its layers, in blocks.
func (t *Table) ChunksWithLayers() iter.Seq[[]float32] {
	return func(yield func([]float32) bool) {
		for from := range (len(t.Labels) + BlockRows - 1) / BlockRows {
			rows := make([]int, min(BlockRows, len(t.Labels)-from*BlockRows))
			for i := range rows {
				rows[i] = from*BlockRows + i
			}
			if !yield(t.WithLayers(rows)) {
				return
			}
		}
	}
}

// Layer returns a layer of the rows from … to−1, [·, D]; nil if the table lacks it.
func (t *Table) Layer(name string, from, to int) (x []float32) {
	at := slices.IndexFunc(t.Sets[0].Layers, func(l Layer) bool { return l.Name == name })
	if at < 0 {
		return nil
	}
	first, d := LayersDim(t.Sets[0].Layers[:at]), t.Sets[0].Layers[at].D
	for row := from; row < to; row++ {
		x = append(x, t.Layers(row)[first:first+d]...)
	}
	return x
}

// Layers returns the layers of a row, one after another.
func (t *Table) Layers(row int) []float32 {
	set, at := t.setOf(row)
	return set.RowLayers(at)
}

// BackboneLogits returns the logits of a row that the feature set has.
func (t *Table) BackboneLogits(row int) []float32 {
	set, at := t.setOf(row)
	return set.RowLogits(at)
}

// setOf returns the set that has a row, and the number of the row there.
func (t *Table) setOf(row int) (*Set, int) {
	for _, set := range t.Sets {
		if row < set.N {
			return set, row
		}
		row -= set.N
	}
	panic("features: a row beyond the sets")
}

// CheckLogits says whether all sets of a table have logits of so many classes.
func (t *Table) CheckLogits(classes int) error {
	for _, set := range t.Sets {
		switch c := set.LogitsDim(); c {
		case classes:
		case 0:
			return fmt.Errorf("features %s have no logits of the backbone's (logits.npy)", set.Dir)
		default:
			return fmt.Errorf("features %s have logits of %d classes, and there are %d in-distribution classes", set.Dir, c, classes)
		}
	}
	return nil
}
