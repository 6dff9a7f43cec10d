package inspection

import (
	"cmp"
	"context"
	"crypto/sha256"
	"math/rand/v2"
	"runtime"
	"slices"

	"mlrbfn/internal/parallel"
)

const (
	// leastCosine of two rows' features for their images to be compared.
	leastCosine = .6
	// leastAlike of two images, scaled to few pixels, that are copies. Resized,
	// recompressed and mirrored photographs have .99, cropped ones .94; others of
	// the same subject at most .92.
	leastAlike = .93
	// standOut is how much of the difference between images of a class copies may
	// have: drawings and digits of a class are all alike.
	standOut = .2
	// background is how many images of the same class that difference is taken from.
	background = 20
	// featuresAlike is the cosine from which rows without images count as copies.
	featuresAlike = .99
)

// duplicate is two rows, a < b, that show the same.
type duplicate struct {
	a, b  int
	score float64 // 1 for equal bytes or pixels
	how   string
}

// How two images are copies, the most certain first.
const (
	sameBytes    = "same file"
	sameFeatures = "same features"
	sameLook     = "same picture"
	likeFeatures = "nearly the same features"
)

// copies finds pairs of rows that show the same image.
func (in *inspector) copies(ctx context.Context) ([]duplicate, error) {
	var all []duplicate
	equal := map[[32]byte]int{} // first row with such a file
	n := len(in.Labels)
	same := make([]int, n) // the first row that this one equals in bytes or features
	byRow := map[[32]byte]int{}
	for i := range n {
		same[i] = i
		if hash := in.hashes[i]; hash != "" {
			key := sha256.Sum256([]byte(hash))
			if first, ok := equal[key]; ok {
				same[i] = first
				all = append(all, duplicate{first, i, 1, sameBytes})
				continue
			}
			equal[key] = i
		}
		key := sha256.Sum256(bytesOf(in.rowOf(i)))
		if first, ok := byRow[key]; ok {
			same[i] = first
			all = append(all, duplicate{first, i, 1, sameFeatures})
			continue
		}
		byRow[key] = i
	}
	rows := in.Rows
	rows.Labels, rows.Index = make([]int64, n), nil // one class
	for i := range n {
		if same[i] == i {
			rows.Index = append(rows.Index, i)
		}
	}
	near, err := pairs(ctx, rows, leastCosine, in.Memory, in.Seed, func(done int) { in.progress("comparing features", done, len(rows.Index)) })
	if err != nil {
		return nil, err
	}
	verdicts := make([]duplicate, len(near))
	usual := in.usual(near)
	err = parallel.Blocks(ctx, len(near), 64, func(from, to int) {
		for at := from; at < to; at++ {
			p := near[at]
			a, b := in.pictures.at(p.a), in.pictures.at(p.b)
			if a == nil || b == nil {
				if p.cosine >= featuresAlike {
					verdicts[at] = duplicate{p.a, p.b, p.cosine, likeFeatures}
				}
				continue
			}
			if a.Spread < blankSpread || b.Spread < blankSpread {
				continue // listed as blank
			}
			if r := alike(a, b); r >= leastAlike && 1-r <= standOut*(1-max(usual[p.a], usual[p.b])) {
				verdicts[at] = duplicate{p.a, p.b, min(r, 1), sameLook}
			}
		}
	})
	if err != nil {
		return nil, err
	}
	for _, v := range verdicts {
		if v.score > 0 {
			all = append(all, v)
		}
	}
	slices.SortStableFunc(all, func(p, q duplicate) int { return cmp.Compare(q.score, p.score) })
	return all, nil
}

// usual returns how alike images of a class are, for the rows of the pairs: the
// ninth decile over some images of the class.
func (in *inspector) usual(near []pair) map[int]float64 {
	byClass := map[int64][]int{}
	for i, y := range in.Labels {
		byClass[y] = append(byClass[y], i)
	}
	var rows []int
	for _, p := range near {
		rows = append(rows, p.a, p.b)
	}
	slices.Sort(rows)
	rows = slices.Compact(rows)
	values := make([]float64, len(rows))
	parallel.Each(runtime.GOMAXPROCS(0), len(rows), func(at int) {
		i := rows[at]
		mine := in.pictures.at(i)
		if mine == nil {
			return
		}
		random := rand.New(rand.NewPCG(in.Seed, uint64(i)))
		class := byClass[in.Labels[i]]
		var seen []float64
		for range background {
			j := class[random.IntN(len(class))]
			if other := in.pictures.at(j); other != nil && j != i {
				seen = append(seen, alike(mine, other))
			}
		}
		if len(seen) > 0 {
			slices.Sort(seen)
			values[at] = seen[len(seen)*9/10]
		}
	})
	usual := make(map[int]float64, len(rows))
	for at, i := range rows {
		usual[i] = values[at]
	}
	return usual
}

// addCopies lists copies within the features, and those of test images.
func (in *inspector) addCopies(all []duplicate) {
	listed := map[int]bool{}
	for _, c := range all {
		kind, row, other := Duplicate, c.b, c.a
		if c.b >= in.train {
			if c.a >= in.train {
				continue // both are test images
			}
			kind, row, other = Leak, c.a, c.b
		}
		if kind == Duplicate {
			if listed[row] {
				continue // as a copy of another
			}
			listed[row] = true
		}
		if y := in.Labels[row]; y >= 0 {
			in.report.Classes[y].Copies++
		}
		in.report.Issues = append(in.report.Issues, in.issue(row, kind, c.score, "", other))
	}
}
