package features

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

// This file puts images that wait for a person into groups that look alike, so
// that one decision covers many.
//
// Two images look alike if the cosine of their features is as high as that of half of the
// pairs of training images of one class, and higher than that of all but one of 500 pairs
// of two classes. So the bound fits any backbone, and the more alike the images of a class
// are, or those of two classes, the more alike those of a group are.

const (
	mostClasses = 200  // whose training images are compared
	mostOfClass = 20   // images of each
	mostOfTwo   = 600  // images whose pairs of two classes are compared
	ofTwo       = 500  // one of so many pairs of two classes may be within reach
	same        = 1e-5 // how far identical rows are apart, rounded
)

// Reach is the distance, 1 − cosine, within which two images look alike: the median of
// the pairs of training images of one class, or less where as many as one of 500 pairs of
// two classes are nearer. Identical images are no pair, so that sets of video frames do not
// make it zero. Typical is that median itself. Both are 0 where no class has two images.
func Reach(ctx context.Context, sets []*Set) (reach, typical float64, err error) {
	type place struct {
		set *Set
		row int
	}
	byClass := map[string][]place{}
	for _, s := range sets {
		for row, label := range s.Labels() {
			if label >= 0 {
				class := s.Classes[label]
				byClass[class] = append(byClass[class], place{s, row})
			}
		}
	}
	var away, ofOthers []float64
	var others [][]float32 // of the classes before
	names := Every(slices.Sorted(maps.Keys(byClass)), mostClasses)
	each := max(1, mostOfTwo/max(1, len(names)))
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		var units [][]float32
		for _, p := range Every(byClass[name], mostOfClass) {
			row := unitRow(p.set.Row(p.row))
			for _, other := range units {
				if d := rowDistance(row, other); d > same {
					away = append(away, d)
				}
			}
			units = append(units, row)
		}
		units = units[:min(each, len(units))]
		for _, row := range units {
			for _, other := range others {
				if d := rowDistance(row, other); d > same {
					ofOthers = append(ofOthers, d)
				}
			}
		}
		others = append(others, units...)
	}
	if len(away) == 0 {
		return 0, 0, nil
	}
	slices.Sort(away)
	reach = away[len(away)/2]
	typical = reach
	if len(ofOthers) > 0 {
		slices.Sort(ofOthers)
		reach = min(reach, ofOthers[len(ofOthers)/ofTwo])
	}
	return reach, typical, nil
}

// unitRow returns a row divided by its length; one of zeros stays as it is.
func unitRow(row []float32) []float32 {
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

// rowDistance is 1 − cosine of rows of length one.
func rowDistance(a, b []float32) float64 {
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

// LookAlikes divides images, the most urgent first, into groups: the first image that is in
// none begins one, and those after it join that are of equal bytes or within reach of
// all that joined before, up to most in a group. A nil row is of an image whose features are
// not known; only equal ones join it. Keys are equal for images of equal bytes; "" equals
// nothing.
// Groups hold the numbers of the images.
func LookAlikes(rows [][]float32, keys []string, reach float64, most int) [][]int {
	var groups [][]int
	units := make([][]float32, len(rows))
	for i, row := range rows {
		if row != nil {
			units[i] = unitRow(row)
		}
	}
	taken := make([]bool, len(rows))
	for i := range rows {
		if taken[i] {
			continue
		}
		group := []int{i}
		taken[i] = true
		for j := i + 1; j < len(rows) && len(group) < most; j++ {
			if taken[j] {
				continue
			}
			near := units[j] != nil
			for k := 0; near && k < len(group); k++ {
				other := units[group[k]]
				near = len(other) == len(units[j]) && rowDistance(other, units[j]) <= reach
			}
			if near || keys[i] != "" && keys[i] == keys[j] {
				group, taken[j] = append(group, j), true
			}
		}
		groups = append(groups, group)
	}
	return groups
}

const (
	mostKinds    = 300    // groups that Kinds keeps apart
	mostFounding = 10_000 // rows that begin one
)

// Kinds divides rows, the most certain first, into groups that look alike on average: a row
// joins the group whose rows it is nearest to, in the mean, if that is within reach, and
// begins one otherwise; groups whose rows are within reach of each other, in the mean, become
// one. Unlike those of [LookAlikes], groups may be as large as a class, and hold rows that do
// not look alike. They come the largest first, those of less than least rows left out.
func Kinds(ctx context.Context, n int, row func(i int) []float32, reach float64, least int) ([][]int, error) {
	type kind struct {
		rows []int
		sum  []float32 // of the rows, each divided by its length
	}
	var kinds []*kind
	for i := range n {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		unit, to, away := unitRow(row(i)), -1, reach
		for k, other := range kinds {
			if d := 1 - kernels.Dot(other.sum, unit)/float64(len(other.rows)); d <= away {
				to, away = k, d
			}
		}
		switch {
		case to >= 0:
			kinds[to].rows = append(kinds[to].rows, i)
			for j, v := range unit {
				kinds[to].sum[j] += v
			}
		case i < mostFounding && len(kinds) < mostKinds:
			kinds = append(kinds, &kind{[]int{i}, slices.Clone(unit)})
		}
	}
	dots := make([][]float64, len(kinds)) // of the sums of two kinds
	for a := range kinds {
		dots[a] = make([]float64, len(kinds))
		for b := range kinds {
			dots[a][b] = kernels.Dot(kinds[a].sum, kinds[b].sum)
		}
	}
	for { // the two that are nearest
		from, to, away := -1, -1, reach
		for a := range kinds {
			for b := range a {
				if d := 1 - dots[a][b]/float64(len(kinds[a].rows)*len(kinds[b].rows)); d <= away && len(kinds[a].rows) > 0 && len(kinds[b].rows) > 0 {
					from, to, away = a, b, d
				}
			}
		}
		if from < 0 {
			break
		}
		kinds[to].rows, kinds[from].rows = append(kinds[to].rows, kinds[from].rows...), nil
		for k := range kinds {
			dots[to][k] += dots[from][k]
		}
		for k := range kinds {
			dots[k][to] = dots[to][k]
		}
	}
	slices.SortStableFunc(kinds, func(a, b *kind) int { return cmp.Compare(len(b.rows), len(a.rows)) })
	var groups [][]int
	for _, k := range kinds {
		if len(k.rows) >= least {
			slices.Sort(k.rows)
			groups = append(groups, k.rows)
		}
	}
	return groups, nil
}
