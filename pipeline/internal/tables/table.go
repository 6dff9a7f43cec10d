package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"mlrbfn/features"
	"mlrbfn/internal/spill"
)

// table is the rows of one or several feature sets as one matrix, with the
// union of their classes.
type table struct {
	dirs    []string
	x       []float32 // [N, d]; the set's own memory map where there is only one
	d       int
	pages   *spill.Matrix // what x is the rows of
	labels  []int64       // [N], indices into classes; −1 for none
	classes []string      // sorted, unless they are one set's own
	sets    []*features.Set
}

// openTable opens feature sets that were made by the same model in the same
// way, and checks that every value is finite. Several become one in space; nil
// means in memory. Close it when no row is in use.
func openTable(ctx context.Context, space *spill.Space, dirs ...string) (_ *table, err error) {
	t := &table{dirs: dirs}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.Close())
		}
	}()
	for _, dir := range dirs {
		set, err := features.Open(dir)
		if err != nil {
			return nil, err
		}
		t.sets = append(t.sets, set)
		if err := features.SameSpace(t.sets[0], set); err != nil {
			return nil, err
		}
	}
	first := t.sets[0]
	t.d = first.D
	if len(t.sets) == 1 {
		t.pages = space.File(first.Map(), t.d)
		t.x, t.labels, t.classes = t.pages.X, first.Labels(), first.Classes
		return t, t.checkFinite(ctx, first, nil)
	}
	for _, set := range t.sets {
		t.classes = append(t.classes, set.Classes...)
	}
	slices.Sort(t.classes)
	t.classes = slices.Compact(t.classes)
	n := 0
	for _, set := range t.sets {
		n += set.N
	}
	if t.pages, err = space.Matrix(n, t.d); err != nil {
		return nil, err
	}
	for _, set := range t.sets {
		at := len(t.labels)
		labels, err := relabel(set, t.classes)
		if err != nil {
			return nil, err
		}
		t.labels = append(t.labels, labels...)
		file := space.File(set.Map(), t.d)
		write := func(row int, rows []float32) error { return t.pages.Write(at+row, rows) }
		if err := errors.Join(t.checkFinite(ctx, set, write), file.Close()); err != nil {
			return nil, err
		}
	}
	err = t.pages.Done()
	t.x = t.pages.X
	return t, err
}

// checkFinite checks every value of a set and gives blocks of its rows, from row
// on, to each, where that is set.
func (t *table) checkFinite(ctx context.Context, set *features.Set, each func(row int, rows []float32) error) error {
	row := 0
	for block := range slices.Chunk(set.Features(), verdictBlock*t.d) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if i := slices.IndexFunc(block, notFinite); i >= 0 {
			return fmt.Errorf("features %s: row %d holds a value that is not finite", set.Dir, row+i/t.d)
		}
		if each != nil {
			if err := each(row, block); err != nil {
				return err
			}
		}
		row += len(block) / t.d
	}
	return nil
}

// Verify reads feature sets wholly and compares every file with its checksum. Its
// errors are those of features.Open and [features.Set.Verify].
func Verify(ctx context.Context, dirs ...string) error {
	for _, dir := range dirs {
		set, err := features.Open(dir)
		if err != nil {
			return err
		}
		if err := errors.Join(set.Verify(ctx), set.Close()); err != nil {
			return err
		}
	}
	return nil
}

func notFinite(v float32) bool {
	return math.IsNaN(float64(v)) || math.IsInf(float64(v), 0)
}

// distinct refuses a folder that stands in for two sets of images that must
// have none in common.
func distinct(dirs []string) error {
	var infos []os.FileInfo
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil {
			continue // Open says it better
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

// relabel returns a set's labels as indices into other class names.
func relabel(set *features.Set, classes []string) ([]int64, error) {
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
func (t *table) Close() error {
	errs := []error{t.pages.Close()}
	for _, set := range t.sets {
		errs = append(errs, set.Close())
	}
	return errors.Join(errs...)
}
