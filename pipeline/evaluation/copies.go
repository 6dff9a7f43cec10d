package evaluation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/internal/spill"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

const (
	// leastCosine of two rows' features for their images to be compared.
	leastCosine = .6
	// surelyAlike is from which likeness on two images are copies. Resized,
	// recompressed and mirrored photographs have that or more.
	surelyAlike = training.SurelySame
	// notSame is the most that those are given of which that is not known.
	notSame = .9979
	// leastAlike of two images that are copies. Cropped photographs have .94 or more,
	// others of the same subject at most .92.
	leastAlike = .93
	// standOut is how much of the difference from their neighbours two copies that are
	// only leastAlike may have: drawings and digits of a class are all alike.
	standOut = .3
	// featuresAlike is the cosine from which rows without images count as copies.
	featuresAlike = .99
)

// duplicate is two rows that show the same, b the worse one.
type duplicate struct {
	a, b  int
	score float64 // 1 for equal features
	sure  bool    // whatever their neighbours are like
}

// copies finds pairs of rows that show the same image.
func (in *inspector) copies(ctx context.Context) ([]duplicate, error) {
	n := len(in.Labels)
	rows := in.Rows
	rows.Labels, rows.Index = make([]int64, n), lists.UpTo(n) // one class
	same, err := features.Alike(ctx, rows)
	if err != nil {
		return nil, err
	}
	best := slices.Clone(same[0]) // by the first of those that are equal
	for i, first := range same[0] {
		if in.worse(best[first], i) {
			best[first] = i
		}
	}
	var all []duplicate
	rows.Index = rows.Index[:0]
	for i, first := range same[0] {
		if best[first] != i {
			all = append(all, duplicate{best[first], i, 1, true})
		} else {
			rows.Index = append(rows.Index, i)
		}
	}
	near, err := in.nearCopies(ctx, rows)
	if err != nil {
		return nil, err
	}
	all = append(all, near...)
	slices.SortStableFunc(all, func(p, q duplicate) int { return cmp.Compare(q.score, p.score) })
	return all, nil
}

// nearCopies finds pairs whose images are alike, or whose features are where images
// cannot be compared.
func (in *inspector) nearCopies(ctx context.Context, rows features.Rows) (_ []duplicate, err error) {
	floor, of := featuresAlike, usual{}
	if in.pictures.any() {
		floor, of = leastCosine, make(usual, len(in.Labels))
	}
	space := spill.New(in.Memory/4, in.Scratch, 1)
	defer func() { err = errors.Join(err, space.Close()) }()
	var all []duplicate
	const few = 1 << 20
	enough := few // from where on those are left out that no longer stand out
	err = pairs(ctx, rows, floor, space, in.Memory/2, in.Seed, func(near []pair, done int) error {
		likeness := make([]float64, len(near)) // NaN where images cannot be compared
		err := parallel.Blocks(ctx, len(near), 64, func(from, to int) {
			for at := from; at < to; at++ {
				likeness[at] = math.NaN()
				if a, b := in.pictures.at(near[at].a), in.pictures.at(near[at].b); a != nil && b != nil {
					likeness[at] = alike(a, b)
				}
			}
		})
		if err != nil {
			return err
		}
		for at, p := range near {
			switch r := likeness[at]; {
			case math.IsNaN(r):
				if p.cosine >= featuresAlike {
					all = append(all, duplicate{p.a, p.b, min(p.cosine, notSame), true})
				}
				continue
			case r >= surelyAlike:
				all = append(all, duplicate{p.a, p.b, min(r, 1), true})
			case r >= leastAlike:
				all = append(all, duplicate{p.a, p.b, min(r, notSame), false})
			}
			of.add(p.a, p.b, likeness[at])
			of.add(p.b, p.a, likeness[at])
		}
		if len(all) >= enough {
			all = of.standingOut(all)
			enough = max(few, 2*len(all))
		}
		in.progress("comparing features", done, len(rows.Index))
		return nil
	})
	if err != nil {
		return nil, err
	}
	all = of.standingOut(all)
	slices.SortFunc(all, func(p, q duplicate) int {
		return cmp.Or(cmp.Compare(p.a, q.a), cmp.Compare(p.b, q.b), cmp.Compare(q.score, p.score))
	})
	return slices.CompactFunc(all, func(p, q duplicate) bool { return p.a == q.a && p.b == q.b }), nil
}

// usual has for each row the neighbours whose images are most like its own. The last one
// says how alike an image and its neighbours usually are: about their median.
type usual [][neighbours/2 + 1]likeNeighbour

type likeNeighbour struct {
	row      int32 // 1 for row 0
	likeness float32
}

// add may be called twice for a neighbour.
func (u usual) add(row, other int, likeness float64) {
	most := u[row][:]
	l := likeNeighbour{int32(other + 1), float32(likeness)}
	if slices.Contains(most, l) {
		return
	}
	for i, m := range most {
		if m.row == 0 || m.likeness < l.likeness {
			most[i], l = l, m
		}
	}
}

// of is 0 for a row with few neighbours whose features are near.
func (u usual) of(row int) float64 { return max(0, float64(u[row][neighbours/2].likeness)) }

// standingOut leaves out the pairs that are not more alike than they usually are to
// others.
func (u usual) standingOut(all []duplicate) []duplicate {
	return slices.DeleteFunc(all, func(d duplicate) bool {
		return !d.sure && 1-d.score > standOut*(1-max(u.of(d.a), u.of(d.b)))
	})
}

// worse reports whether the image of a row is worse than that of another: smaller, with fewer
// bytes, or else later. Test images are no choice, and worse than all others.
func (in *inspector) worse(row, than int) bool {
	if (row < in.train) != (than < in.train) {
		return than < in.train
	}
	if p, q := in.pictures.at(row), in.pictures.at(than); p != nil && q != nil {
		if c := cmp.Or(cmp.Compare(p.Width*p.Height, q.Width*q.Height), cmp.Compare(in.known[row].Size(), in.known[than].Size())); c != 0 {
			return c < 0
		}
	}
	return row > than
}

// addCopies lists copies within the features, and those of test images.
func (in *inspector) addCopies(all []duplicate) {
	listed := map[int]bool{}
	for _, c := range all {
		kind, row, other := training.Duplicate, c.b, c.a
		if c.b >= in.train {
			if c.a >= in.train {
				continue // both are test images
			}
			kind, row, other = training.Leak, c.a, c.b
		}
		if kind == training.Duplicate {
			if in.worse(other, row) {
				row, other = other, row
			}
			if listed[row] {
				continue // as a copy of another
			}
			listed[row] = true
		}
		if y := in.Labels[row]; y >= 0 {
			if kind == training.Leak {
				in.report.Classes[y].Leaked++
			} else {
				in.report.Classes[y].Copies++
			}
		}
		in.report.Issues = append(in.report.Issues, in.issue(row, kind, c.score, "", other))
	}
}

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
