package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"mlrbfn/features"
)

// table is the rows of one or several feature sets as one matrix, with the
// union of their classes.
type table struct {
	dirs    []string
	x       []float32 // [N, d]; the set's own memory map where there is only one
	d       int
	labels  []int64  // [N], indices into classes; −1 for none
	classes []string // sorted, unless they are one set's own
	sets    []*features.Set
}

// openTable opens feature sets that were made by the same model in the same
// way, and checks that every value is finite. Close it when no row is in use.
func openTable(ctx context.Context, dirs ...string) (_ *table, err error) {
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
		for i := range set.N {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if slices.ContainsFunc(set.Row(i), notFinite) {
				return nil, fmt.Errorf("features %s: row %d holds a value that is not finite", dir, i)
			}
		}
	}
	first := t.sets[0]
	t.d = first.D
	if len(t.sets) == 1 {
		t.x, t.labels, t.classes = first.Features(), first.Labels(), first.Classes
		return t, nil
	}
	for _, set := range t.sets {
		t.classes = append(t.classes, set.Classes...)
	}
	slices.Sort(t.classes)
	t.classes = slices.Compact(t.classes)
	for _, set := range t.sets {
		t.x = append(t.x, set.Features()...)
		labels, err := relabel(set, t.classes)
		if err != nil {
			return nil, err
		}
		t.labels = append(t.labels, labels...)
	}
	return t, nil
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
	var errs []error
	for _, set := range t.sets {
		errs = append(errs, set.Close())
	}
	return errors.Join(errs...)
}
