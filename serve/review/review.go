// Package review puts images that wait for a person into groups that look alike, so
// that one decision covers many.
//
// Two images look alike if the cosine of their features is as high as that of most
// training images and their nearest neighbour. So the bound fits any backbone, and the
// denser the training images lie the more alike the images of a group are.
package review

import (
	"context"
	"math"
	"slices"

	"mlrbfn/features"
	"mlrbfn/internal/linalg"
)

const (
	// MostInGroup bounds the images of a group.
	MostInGroup = 50
	// nearShare is the share of training images that have a neighbour within Reach.
	nearShare = 0.75

	sampled  = 400    // training images whose nearest neighbour is sought
	searched = 20_000 // among so many
	block    = 512    // of which at once
	same     = 1e-5   // how far identical rows are apart, rounded
)

// Reach is the distance, 1 − cosine, within which two images look alike: that within
// which three of four training images have another one. Identical images have none, so
// that sets of video frames do not make it zero. It is 0 without training images.
func Reach(ctx context.Context, sets []*features.Set) (float64, error) {
	n := 0
	for _, s := range sets {
		n += s.N
	}
	if n < 2 {
		return 0, nil
	}
	step := (n + searched - 1) / searched
	row := func(i int) []float32 {
		for _, s := range sets {
			if i < s.N {
				return Unit(s.Row(i))
			}
			i -= s.N
		}
		panic("review: no such row")
	}
	d := sets[0].D
	var sample []float32
	total := (n + step - 1) / step
	m := min(sampled, total)
	for i := range m {
		sample = append(sample, row(i*total/m*step)...)
	}
	nearest := slices.Repeat([]float64{math.Inf(1)}, m)
	cosines := make([]float32, m*block)
	for from := 0; from < n; from += step * block {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		var some []float32
		for i := from; i < min(n, from+step*block); i += step {
			some = append(some, row(i)...)
		}
		k := len(some) / d
		linalg.NT(m, k, d, sample, some, cosines)
		for i, c := range cosines[:m*k] {
			if away := 1 - float64(c); away > same {
				nearest[i/k] = min(nearest[i/k], away)
			}
		}
	}
	nearest = slices.DeleteFunc(nearest, func(v float64) bool { return math.IsInf(v, 1) })
	if len(nearest) == 0 {
		return 0, nil
	}
	slices.Sort(nearest)
	return nearest[int(nearShare*float64(len(nearest)-1))], nil
}

// Unit returns a row divided by its length; one of zeros stays as it is.
func Unit(row []float32) []float32 {
	var sum float64
	for _, v := range row {
		sum += float64(v) * float64(v)
	}
	if sum == 0 {
		return row
	}
	unit, scale := make([]float32, len(row)), 1/math.Sqrt(sum)
	for i, v := range row {
		unit[i] = float32(float64(v) * scale)
	}
	return unit
}

// Distance is 1 − cosine of rows of length one.
func Distance(a, b []float32) float64 {
	var s0, s1, s2, s3 float32
	n := len(a) &^ 3
	for i := 0; i < n; i += 4 {
		s0 += a[i] * b[i]
		s1 += a[i+1] * b[i+1]
		s2 += a[i+2] * b[i+2]
		s3 += a[i+3] * b[i+3]
	}
	for i := n; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return 1 - float64(s0+s1+s2+s3)
}

// Groups divides images, the most urgent first, into groups: the first image that is in
// none begins one, and those after it join that are of equal bytes or within reach of
// it, up to MostInGroup. A nil row is of an image whose features are not known; only
// equal ones join it. Keys are equal for images of equal bytes; "" equals nothing.
// Groups hold the numbers of the images.
func Groups(rows [][]float32, keys []string, reach float64) [][]int {
	var groups [][]int
	units := make([][]float32, len(rows))
	for i, row := range rows {
		if row != nil {
			units[i] = Unit(row)
		}
	}
	taken := make([]bool, len(rows))
	for i := range rows {
		if taken[i] {
			continue
		}
		group := []int{i}
		taken[i] = true
		for j := i + 1; j < len(rows) && len(group) < MostInGroup; j++ {
			equal := keys[i] != "" && keys[i] == keys[j]
			if !taken[j] && (equal || units[i] != nil && len(units[i]) == len(units[j]) && Distance(units[i], units[j]) <= reach) {
				group, taken[j] = append(group, j), true
			}
		}
		groups = append(groups, group)
	}
	return groups
}
