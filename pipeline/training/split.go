package training

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// split is the labelled rows of a training set in three disjoint parts, each
// ascending.
type split struct{ train, validation, calibration []int }

// splitRows divides the rows with a label ≥ 0. Each class gives its share to
// validation and to calibration, at most one row more, and keeps at least one
// row for training, so that a class of one row gives none. The same seed gives
// the same parts.
func splitRows(labels []int64, classes int, validation, calibration float64, seed uint64) (split, error) {
	if !(validation >= 0 && calibration >= 0 && validation+calibration < 1) {
		return split{}, fmt.Errorf("cannot set aside %g of the rows for validation and %g for calibration: nothing is left to train on", validation, calibration)
	}
	byClass := make([][]int, classes)
	for row, y := range labels {
		if y >= 0 {
			byClass[y] = append(byClass[y], row)
		}
	}
	rng := rand.New(rand.NewPCG(seed, 0x73706c6974))
	var s split
	// due tells how many rows each part is owed so far. What a class gives too
	// little, for want of whole rows, the next makes up for, by one row at
	// most; random order and start let that hit any class.
	dueValidation, dueCalibration := rng.Float64(), rng.Float64()
	for _, class := range rng.Perm(classes) {
		rows := byClass[class]
		rng.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
		take := func(due *float64, fraction float64, from int) []int {
			*due += fraction * float64(len(rows))
			n := max(0, min(int(math.Floor(*due)), len(rows)-1-from))
			*due = min(*due-float64(n), 1)
			return rows[from : from+n]
		}
		v := take(&dueValidation, validation, 0)
		c := take(&dueCalibration, calibration, len(v))
		s.validation = append(s.validation, v...)
		s.calibration = append(s.calibration, c...)
		s.train = append(s.train, rows[len(v)+len(c):]...)
	}
	for _, part := range [][]int{s.train, s.validation, s.calibration} {
		slices.Sort(part)
	}
	return s, nil
}
