package features

import (
	"slices"
)

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
