// Package dataset holds labelled rows of features in the form that everything
// that learns reads, chooses among them, and keeps what does not fit into
// memory in temporary files.
package dataset

import (
	"fmt"
	"maps"
	"slices"

	"mlrbfn/internal/spill"
)

// Rows are some of the rows of a matrix, with their labels. The zero value has
// none.
type Rows struct {
	X      []float32 // [N, D] row-major; read only, so it may be a memory map
	D      int       // features of a row
	Labels []int64   // [N], the class of each row
	Index  []int     // the rows to use, each with a label in [0, C); nil means none

	pages *spill.Matrix // what X are the rows of, where these may be in a file
}

// All returns all rows of x, which is read only, for rows of d features.
func All(x []float32, d int, labels []int64) Rows {
	r := Rows{X: x, D: d, Labels: labels, Index: make([]int, len(labels))}
	for i := range r.Index {
		r.Index[i] = i
	}
	return r
}

// Len returns how many rows are to be used.
func (r Rows) Len() int { return len(r.Index) }

// Row returns row i of the matrix.
func (r Rows) Row(i int) []float32 { return r.X[i*r.D : (i+1)*r.D] }

// With returns other rows of the same matrix.
func (r Rows) With(index []int) Rows {
	r.Index = index
	return r
}

// Check reports what would take a reader of the rows out of its arrays, or a
// label that is none of the classes. what names the rows in the error.
func (r Rows) Check(what string, classes int) error {
	if len(r.Index) == 0 {
		return nil
	}
	if r.D < 1 || len(r.X)%r.D != 0 || len(r.X)/r.D != len(r.Labels) {
		return fmt.Errorf("%s data: %d values and %d labels do not make rows of %d features", what, len(r.X), len(r.Labels), r.D)
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

// Gather copies the rows that index names, and their labels, to the beginning
// of x and labels.
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

// ByClass lists the rows of each class that has any, in the order of the
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

// Window returns how many rows there is memory for at a time where they lie in
// a file that is larger than memory, and 0 where they do not: so many rows
// should be read before others are begun with.
func (r Rows) Window() int { return r.pages.Window() }

// Prefetch tells the system that the rows from … to−1 of the matrix will be
// read soon.
func (r Rows) Prefetch(from, to int) { r.pages.Need(from, to) }

// Close frees what a Space holds of the rows, which must not be read any more.
// Rows of no Space have nothing to free.
func (r Rows) Close() error { return r.pages.Close() }
