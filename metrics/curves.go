package metrics

import (
	"fmt"
	"math"
	"slices"
)

// Point is a point of a curve, both coordinates in [0, 1].
type Point struct{ X, Y float64 }

// Curves returns the ROC and the precision–recall curve with OOD positive, one point
// for each distinct score. roc goes from (0, 0) to (1, 1); X is the share of ID
// images flagged and Y the share of OOD images caught. pr starts at (0, 1); X is the
// recall and Y the precision. The trapezoid area under roc is [AUROC], that under pr
// is [AUPROut]. If these are NaN, both curves are nil.
func Curves(id, ood []float64) (roc, pr []Point) {
	c := newCurve(id, ood)
	if len(c) == 0 {
		return nil, nil
	}
	all := c[len(c)-1]
	roc, pr = make([]Point, len(c)), make([]Point, len(c))
	roc[0], pr[0] = Point{0, 0}, Point{0, 1}
	for i, p := range c[1:] {
		recall := float64(p.pos) / float64(all.pos)
		roc[i+1] = Point{float64(p.neg) / float64(all.neg), recall}
		pr[i+1] = Point{recall, float64(p.pos) / float64(p.pos+p.neg)}
	}
	return roc, pr
}

// Selective returns the selective-classification curve, accuracy against coverage:
// for every distinct score, from the highest down, X is the share of images that
// score at least this, and Y is the accuracy on these. The last point has coverage 1
// and [Accuracy]. Rows with a label below zero are skipped. If another score is NaN,
// or there are no other rows, the result is nil. It panics if the lengths differ.
func Selective[P, L ~int | ~int32 | ~int64](scores []float64, pred []P, labels []L) []Point {
	if len(scores) != len(pred) || len(pred) != len(labels) {
		panic(fmt.Sprintf("metrics: %d scores and %d predictions for %d labels", len(scores), len(pred), len(labels)))
	}
	var order []int
	for i, label := range labels {
		if label < 0 {
			continue
		}
		if math.IsNaN(scores[i]) {
			return nil
		}
		order = append(order, i)
	}
	slices.SortFunc(order, func(a, b int) int {
		switch {
		case scores[a] > scores[b]:
			return -1
		case scores[a] < scores[b]:
			return 1
		}
		return 0
	})
	var points []Point
	right := 0
	for k, i := range order {
		if int64(pred[i]) == int64(labels[i]) {
			right++
		}
		if k+1 < len(order) && scores[order[k+1]] == scores[i] {
			continue // equal scores are accepted together
		}
		points = append(points, Point{float64(k+1) / float64(len(order)), float64(right) / float64(k+1)})
	}
	return points
}
