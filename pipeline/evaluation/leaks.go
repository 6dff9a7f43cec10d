package evaluation

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// Leak says how many images of two sets have features that are identical or nearly
// identical to those of an image of the other; see [features.Alike].
type Leak struct {
	A, B         string // "train", "validation", "detector", "id" or the name of an OODSet
	RowsA, RowsB int    // of A that are in B, and of B that are in A
	OfA, OfB     int    // rows of each
}

func (l Leak) String() string {
	return fmt.Sprintf("%d of %d images of %s are among those of %s (%d of %d)", l.RowsA, l.OfA, l.A, l.B, l.RowsB, l.OfB)
}

// leaks compares every pair of sets, with the features that the detector was
// trained on where they can be found.
func (e *evaluation) leaks(ctx context.Context) (_ []Leak, err error) {
	names, sets := []string{"train"}, []features.Rows{e.train.Rows}
	add := func(name string, t *features.Table) {
		if t != nil {
			names, sets = append(names, name), append(sets, t.Rows)
		}
	}
	add("validation", e.train.Held)
	add("id", e.id)
	for i, t := range e.ood {
		add(e.opts.OOD[i].Name, t)
	}
	if d := e.opts.Detector; d != nil {
		own, err := e.detectorFeatures(ctx, d)
		if err != nil {
			return nil, err
		}
		if own != nil {
			defer func() { err = errors.Join(err, own.Close()) }()
			add("detector", own)
		}
	}
	alike, err := features.Alike(ctx, sets...)
	if err != nil {
		return nil, err
	}
	total := 0
	for _, s := range sets {
		total += s.Len()
	}
	first := make([]int, total) // by number, 1 + the first set that has such a row
	in := map[int][]bool{}      // which sets do, of numbers that several have
	for s, numbers := range alike {
		for _, n := range numbers {
			switch first[n] {
			case 0:
				first[n] = 1 + s
			case 1 + s:
			default:
				if in[n] == nil {
					in[n] = make([]bool, len(sets))
					in[n][first[n]-1] = true
				}
				in[n][s] = true
			}
		}
	}
	rows := func(of, among int) (count int) {
		for _, n := range alike[of] {
			if both := in[n]; both != nil && both[among] {
				count++
			}
		}
		return count
	}
	var found []Leak
	for a := range sets {
		for b := a + 1; b < len(sets); b++ {
			if n := rows(a, b); n > 0 {
				found = append(found, Leak{names[a], names[b], n, rows(b, a), sets[a].Len(), sets[b].Len()})
			}
		}
	}
	return found, nil
}

// detectorFeatures opens the training features of a detector where they can be found,
// as [detector.Detector.OpenSets] says; nil where they are those that the evaluation
// trains on, or are not there any more.
func (e *evaluation) detectorFeatures(ctx context.Context, d *detector.Detector) (*features.Table, error) {
	sets, err := d.OpenSets(ctx, detector.ForTraining, nil)
	if err != nil && ctx.Err() == nil {
		if about, ok := errors.AsType[*options.Error](err); ok {
			err = about.Err
		}
		e.warn(fmt.Sprintf("the detector's training features are not compared with the test sets: %v", err))
		return nil, nil
	}
	var others []string
	for _, set := range sets {
		known := slices.ContainsFunc(e.train.Dirs, func(own string) bool { return disk.Same(own, set.Dir) })
		if !known {
			others = append(others, set.Dir)
		}
		err = errors.Join(err, set.Close())
	}
	if len(others) == 0 || err != nil {
		return nil, err
	}
	return features.OpenTableLike(ctx, nil, e.train.Sets[0], others...)
}
