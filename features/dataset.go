package features

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/spill"
)

// This file holds labelled rows of features for training and fitting. It
// splits and samples rows, and moves rows that do not fit into memory to temporary
// files.

// Rows selects rows of a matrix, with their labels. The zero value has no rows.
type Rows struct {
	X      []float32 // [N, D] row-major; read only, so it may be a memory map; nil for rows of a Space that lie in several files, which Row and Block give
	D      int       // features of a row
	Labels []int64   // [N], the class of each row
	Index  []int     // the selected rows, each with a label in [0, C); nil means none

	pages *spill.Matrix // that X belongs to, if the rows may be in a file
	set   *Set          // that has the rows, where X is nil
}

// All returns all rows of x [N, d], which it does not change.
func All(x []float32, d int, labels []int64) Rows {
	r := Rows{X: x, D: d, Labels: labels, Index: make([]int, len(labels))}
	for i := range r.Index {
		r.Index[i] = i
	}
	return r
}

// Len returns the number of selected rows.
func (r Rows) Len() int { return len(r.Index) }

// Row returns row i of the matrix.
func (r Rows) Row(i int) []float32 {
	if r.set != nil {
		return r.set.Row(i)
	}
	return r.X[i*r.D : (i+1)*r.D]
}

// Block returns the rows from … to−1 of the matrix, copied where they do not follow each
// other in memory.
func (r Rows) Block(from, to int) []float32 {
	if r.set != nil {
		return r.set.Block(from, to)
	}
	return r.X[from*r.D : to*r.D]
}

// Chunks gives all rows of the matrix in order: at once where they follow each other in
// memory or in a memory map, else in blocks.
func (r Rows) Chunks() iter.Seq[[]float32] {
	return func(yield func([]float32) bool) {
		if r.set == nil {
			yield(r.X)
			return
		}
		for from := 0; from < r.set.N; from += 8 * BlockRows {
			if !yield(r.Block(from, min(from+8*BlockRows, r.set.N))) {
				return
			}
		}
	}
}

// With returns other rows of the same matrix.
func (r Rows) With(index []int) Rows {
	r.Index = index
	return r
}

// Labelled returns the rows of the same matrix that have a label.
func (r Rows) Labelled() Rows {
	r.Index = nil
	for row, y := range r.Labels {
		if y >= 0 {
			r.Index = append(r.Index, row)
		}
	}
	return r
}

// Chosen returns the labels of the selected rows.
func (r Rows) Chosen() []int64 {
	labels := make([]int64, len(r.Index))
	for i, row := range r.Index {
		labels[i] = r.Labels[row]
	}
	return labels
}

// Check returns an error if the arrays do not fit together, or if an index or a
// label is out of range. what names the rows in the error.
func (r Rows) Check(what string, classes int) error {
	if len(r.Index) == 0 {
		return nil
	}
	if r.set == nil && (r.D < 1 || len(r.X)%r.D != 0 || len(r.X)/r.D != len(r.Labels)) {
		return fmt.Errorf("%s data: %d values and %d labels do not fit rows of %d features", what, len(r.X), len(r.Labels), r.D)
	}
	for _, i := range r.Index {
		if i < 0 || i >= len(r.Labels) {
			return fmt.Errorf("%s data: there is no row %d among %d", what, i, len(r.Labels))
		}
		if y := r.Labels[i]; y < 0 || y >= int64(classes) {
			return fmt.Errorf("%s data: row %d has label %d outside the %d classes", what, i, y, classes)
		}
	}
	return nil
}

// Gather copies the rows listed in index, and their labels, to the beginning of x
// and labels.
func (r Rows) Gather(x []float32, labels []int, index []int) error {
	paged := r.Window() > 0
	for i, at := range index {
		row := x[i*r.D : (i+1)*r.D]
		if !paged {
			copy(row, r.Row(at))
		} else if err := r.pages.Read(row, at); err != nil {
			return err
		}
		labels[i] = int(r.Labels[at])
	}
	return nil
}

// InMemory returns the selected rows, and no others, as rows in memory. It copies them,
// which saves time where they are read many times from a file that is larger than
// memory.
func (r Rows) InMemory() (Rows, error) {
	x := make([]float32, len(r.Index)*r.D)
	if err := r.Gather(x, make([]int, len(r.Index)), r.Index); err != nil {
		return Rows{}, err
	}
	return All(x, r.D, r.Chosen()), nil
}

// ByClass lists the selected rows of each class that has any, in the order of the
// classes.
func (r Rows) ByClass() [][]int {
	classes := make(map[int64][]int)
	for _, i := range r.Index {
		classes[r.Labels[i]] = append(classes[r.Labels[i]], i)
	}
	var lists [][]int
	for _, y := range slices.Sorted(maps.Keys(classes)) {
		lists = append(lists, classes[y])
	}
	return lists
}

// Balanced returns the numbers of about most of the rows, ascending, and of as many of each class
// where they are not all.
func (r Rows) Balanced(most int) []int {
	if r.Len() <= most {
		return r.Index
	}
	var some []int
	classes := r.ByClass()
	for _, class := range classes {
		some = append(some, Spread(class, max(1, most/len(classes)))...)
	}
	slices.Sort(some)
	return some
}

// Window returns how many rows fit into memory at a time if they lie in a file
// that is larger than memory, else 0. A caller should finish with one window of
// rows before it reads the next.
func (r Rows) Window() int { return r.pages.Window() }

// Prefetch asks the system to read ahead the rows from … to−1 of the matrix.
func (r Rows) Prefetch(from, to int) { r.pages.Need(from, to) }

// Close frees rows that a Space made. They must not be read afterwards. For other
// rows it does nothing.
func (r Rows) Close() error { return r.pages.Close() }
