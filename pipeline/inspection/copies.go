package inspection

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/dataset"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/pipeline/issues"
)

const (
	// leastCosine of two rows' features for their images to be compared.
	leastCosine = .6
	// surelyAlike is from which likeness on two images are copies. Resized,
	// recompressed and mirrored photographs have .998 or more.
	surelyAlike = .998
	// leastAlike of two images that are copies. Cropped photographs have .94 or more,
	// others of the same subject at most .92.
	leastAlike = .93
	// standOut is how much of the difference from their neighbours two copies that are
	// only leastAlike may have: drawings and digits of a class are all alike.
	standOut = .3
	// featuresAlike is the cosine from which rows without images count as copies.
	featuresAlike = .99
)

// duplicate is two rows, a < b, that show the same.
type duplicate struct {
	a, b  int
	score float64 // 1 for equal features
}

// copies finds pairs of rows that show the same image.
func (in *inspector) copies(ctx context.Context) ([]duplicate, error) {
	n := len(in.Labels)
	rows := in.Rows
	rows.Labels, rows.Index = make([]int64, n), make([]int, n) // one class
	for i := range rows.Index {
		rows.Index[i] = i
	}
	same, err := dataset.Alike(ctx, rows)
	if err != nil {
		return nil, err
	}
	var all []duplicate
	rows.Index = rows.Index[:0]
	for i, first := range same[0] {
		if first != i {
			all = append(all, duplicate{first, i, 1})
		} else {
			rows.Index = append(rows.Index, i)
		}
	}
	near, err := pairs(ctx, rows, leastCosine, in.Memory, in.Seed, func(done int) { in.progress("comparing features", done, len(rows.Index)) })
	if err != nil {
		return nil, err
	}
	likeness := make([]float64, len(near)) // NaN where images cannot be compared
	err = parallel.Blocks(ctx, len(near), 64, func(from, to int) {
		for at := from; at < to; at++ {
			likeness[at] = math.NaN()
			if a, b := in.pictures.at(near[at].a), in.pictures.at(near[at].b); a != nil && b != nil {
				likeness[at] = alike(a, b)
			}
		}
	})
	if err != nil {
		return nil, err
	}
	median := usual(near, likeness)
	for at, p := range near {
		switch r := likeness[at]; {
		case math.IsNaN(r):
			if p.cosine >= featuresAlike {
				all = append(all, duplicate{p.a, p.b, p.cosine})
			}
		case r >= surelyAlike, r >= leastAlike && 1-r <= standOut*(1-max(median[p.a], median[p.b])):
			all = append(all, duplicate{p.a, p.b, min(r, 1)})
		}
	}
	slices.SortStableFunc(all, func(p, q duplicate) int { return cmp.Compare(q.score, p.score) })
	return all, nil
}

// usual returns, for the rows of pairs, how alike an image and its neighbours are:
// the median over all that may be looked at, 0 for those whose features are not even
// near.
func usual(near []pair, likeness []float64) map[int]float64 {
	of := map[int][]float64{}
	for at, p := range near {
		of[p.a] = append(of[p.a], likeness[at])
		of[p.b] = append(of[p.b], likeness[at])
	}
	median := make(map[int]float64, len(of))
	for row, values := range of {
		slices.Sort(values)
		slices.Reverse(values)
		if len(values) > neighbours/2 {
			median[row] = max(0, values[neighbours/2])
		}
	}
	return median
}

// addCopies lists copies within the features, and those of test images.
func (in *inspector) addCopies(all []duplicate) {
	listed := map[int]bool{}
	for _, c := range all {
		kind, row, other := issues.Duplicate, c.b, c.a
		if c.b >= in.train {
			if c.a >= in.train {
				continue // both are test images
			}
			kind, row, other = issues.Leak, c.a, c.b
		}
		if kind == issues.Duplicate {
			if listed[row] {
				continue // as a copy of another
			}
			listed[row] = true
		}
		if y := in.Labels[row]; y >= 0 {
			if kind == issues.Leak {
				in.report.Classes[y].Leaked++
			} else {
				in.report.Classes[y].Copies++
			}
		}
		in.report.Issues = append(in.report.Issues, in.issue(row, kind, c.score, "", other))
	}
}
