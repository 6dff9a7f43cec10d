package features

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Parts divides the labelled rows of a training set into disjoint lists, each
// ascending.
type Parts struct {
	Train, Validation []int

	// Calibration has one row of each group that is set aside for calibration, and
	// LeftOut the other rows of these groups.
	Calibration, LeftOut []int

	Groups int // of the labelled rows
	// OneGroup are the rows of the classes that are one group each. All are for
	// training, so that no calibration row is like a new row of such a class.
	OneGroup []int
}

// Split divides the rows with a label ≥ 0. Rows with the same number in groups
// stay in one part; nil means that each row is a group of its own. Validation and
// calibration get their shares of the groups of each class, rounded down or up. At
// least one row of each class is for training. The same seed gives the same parts.
//
// Only one row of a group, drawn at random, is for calibration: groups are
// exchangeable, rows are not. The calibration rows and a random row of a new
// group are exchangeable then, as conformal prediction needs it.
func Split(labels []int64, groups []int, classes int, validation, calibration float64, seed uint64) (Parts, error) {
	if !(validation >= 0 && calibration >= 0 && validation+calibration < 1) {
		return Parts{}, fmt.Errorf("cannot set aside %g of the rows for validation and %g for calibration: nothing is left to train on", validation, calibration)
	}
	members := byGroup(labels, groups)
	// A group is of the class of its first row.
	byClass := make([][]int, classes)
	for g, rows := range members {
		byClass[labels[rows[0]]] = append(byClass[labels[rows[0]]], g)
	}
	s := Parts{Groups: len(members)}
	rng := rand.New(rand.NewPCG(seed, 0x73706c6974))
	// due is how many groups each part should have so far. If rounding gives a part
	// too few groups of a class, the next class adds one. The order of the
	// classes and the start are random, so that this may happen to any class.
	dueValidation, dueCalibration := rng.Float64(), rng.Float64()
	var train, held, calibrate []int
	for _, class := range rng.Perm(classes) {
		own := byClass[class]
		rng.Shuffle(len(own), func(i, j int) { own[i], own[j] = own[j], own[i] })
		take := func(due *float64, fraction float64, from int) []int {
			*due += fraction * float64(len(own))
			n := max(0, min(int(math.Floor(*due)), len(own)-1-from))
			*due = min(*due-float64(n), 1)
			return own[from : from+n]
		}
		v := take(&dueValidation, validation, 0)
		c := take(&dueCalibration, calibration, len(v))
		held = append(held, v...)
		calibrate = append(calibrate, c...)
		train = append(train, own[len(v)+len(c):]...)
		if len(own) == 1 {
			s.OneGroup = append(s.OneGroup, members[own[0]]...)
		}
	}
	keepClasses(labels, members, classes, &train, &held, &calibrate)
	for _, g := range train {
		s.Train = append(s.Train, members[g]...)
	}
	for _, g := range held {
		s.Validation = append(s.Validation, members[g]...)
	}
	for _, g := range calibrate {
		rows, one := members[g], 0
		if len(rows) > 1 {
			one = rng.IntN(len(rows))
		}
		s.Calibration = append(s.Calibration, rows[one])
		s.LeftOut = append(append(s.LeftOut, rows[:one]...), rows[one+1:]...)
	}
	for _, part := range [][]int{s.Train, s.Validation, s.Calibration, s.LeftOut, s.OneGroup} {
		slices.Sort(part)
	}
	return s, nil
}

// byGroup lists the rows of each group that have a label, in the order of the
// first of them.
func byGroup(labels []int64, groups []int) (members [][]int) {
	if groups == nil {
		rows := make([]int, len(labels))
		for row, y := range labels {
			if rows[row] = row; y >= 0 {
				members = append(members, rows[row:row+1])
			}
		}
		return members
	}
	index := map[int]int{}
	for row, y := range labels {
		if y < 0 {
			continue
		}
		g, known := index[groups[row]]
		if !known {
			g = len(members)
			index[groups[row]], members = g, append(members, nil)
		}
		members[g] = append(members[g], row)
	}
	return members
}

// keepClasses moves groups to train so that every class that has rows has one
// there: a class may have all its rows in groups of other classes.
func keepClasses(labels []int64, members [][]int, classes int, train, held, calibrate *[]int) {
	trained := make([]bool, classes)
	mark := func(g int) {
		for _, row := range members[g] {
			trained[labels[row]] = true
		}
	}
	for _, g := range *train {
		mark(g)
	}
	for _, part := range []*[]int{held, calibrate} {
		kept := (*part)[:0]
		for _, g := range *part {
			if slices.ContainsFunc(members[g], func(row int) bool { return !trained[labels[row]] }) {
				mark(g)
				*train = append(*train, g)
			} else {
				kept = append(kept, g)
			}
		}
		*part = kept
	}
}

// OneOfEach draws one row of each group at random; rows of the group −1 are of
// none. The result is ascending. The same seed gives the same rows.
func OneOfEach(groups []int, seed uint64) []int {
	labels := make([]int64, len(groups))
	for i, g := range groups {
		labels[i] = int64(min(g, 0))
	}
	rng := rand.New(rand.NewPCG(seed, 0x6f6e65))
	var rows []int
	for _, members := range byGroup(labels, groups) {
		rows = append(rows, members[rng.IntN(len(members))])
	}
	slices.Sort(rows)
	return rows
}

// There are three ways to choose rows. Trained heads and ensembles depend on the
// rows that each of them chooses, so none can take the place of another.

// Spread returns exactly n of the rows, or all where there are fewer, evenly
// spaced: rows often come class by class. It serves the residual head's density
// and score, and the axes of a reduction, which need as many rows as they may
// have.
func Spread(rows []int, n int) []int {
	if len(rows) <= n {
		return rows
	}
	out := make([]int, n)
	for i := range out {
		out[i] = rows[i*len(rows)/n]
	}
	return out
}

// Every returns at most n of the rows, each as many places after the one before:
// every second row, or every third. It serves the choice of a conditioning and
// the scales of an ensemble's parts, for which half of n rows are enough.
func Every[T any](rows []T, n int) []T {
	step := (len(rows) + n - 1) / n
	if step < 2 {
		return rows
	}
	var some []T
	for i := 0; i < len(rows); i += step {
		some = append(some, rows[i])
	}
	return some
}

// Sample draws up to n of the rows, without repetition. uniform gives random
// numbers in [0, 1). It serves the starting centroids of the residual head, which
// another seed must choose otherwise.
func Sample(rows []int, n int, uniform func() float64) []int {
	rows = slices.Clone(rows)
	n = min(n, len(rows))
	for i := range n {
		j := i + int(uniform()*float64(len(rows)-i))
		rows[i], rows[j] = rows[j], rows[i]
	}
	return rows[:n]
}
