// Package metrics computes how well scores separate in-distribution (ID) from
// out-of-distribution (OOD) images, and the accuracy of classes.
//
// A higher score means more in-distribution. Only the order of scores counts, so
// −Inf and +Inf are scores like any other. Equal scores share one threshold. With a
// NaN among the scores, or without scores on one side, every metric is NaN. All
// metrics are fractions in [0, 1].
//
// The conventions are OpenOOD's since August 2023, computed by scikit-learn's
// roc_curve (with drop_intermediate=False) and precision_recall_curve.
package metrics

import (
	"fmt"
	"math"
	"slices"
)

// Result holds all metrics of one ID set against one OOD set.
type Result struct {
	AUROC   float64 // see [AUROC]
	AUPROut float64 // see [AUPROut]
	AUPRIn  float64 // see [AUPRIn]
	FPR95   float64 // see [FPR95]
	FPR95ID float64 // see [FPR95ID]
}

// Evaluate computes all metrics with one sort, in O(n log n). The arguments are
// not changed.
func Evaluate(id, ood []float64) Result {
	return newCurve(id, ood).result()
}

func (c curve) result() Result {
	mirrored := c.mirror()
	return Result{
		AUROC:   c.auroc(),
		AUPROut: c.aupr(),
		AUPRIn:  mirrored.aupr(),
		FPR95:   c.fprAt(0.95),
		FPR95ID: mirrored.fprAt(0.95),
	}
}

// AUROC returns the area under the ROC curve: the probability that an ID image
// scores higher than an OOD image, ties counted half.
func AUROC(id, ood []float64) float64 { return newCurve(id, ood).auroc() }

// AUPROut returns the area under the precision–recall curve with OOD positive:
// the trapezoid area under scikit-learn's points, the last of which is recall 0
// and precision 1. It is not the average precision.
func AUPROut(id, ood []float64) float64 { return newCurve(id, ood).aupr() }

// AUPRIn is AUPROut with ID positive.
func AUPRIn(id, ood []float64) float64 { return newCurve(id, ood).mirror().aupr() }

// FPR95 returns the share of ID images that are flagged as OOD at the first
// threshold that catches at least 95% of the OOD images: OpenOOD's FPR@95.
func FPR95(id, ood []float64) float64 { return FPRAtTPR(id, ood, 0.95) }

// FPR95ID returns the FPR by the convention of most papers before 2023: the share of
// OOD images that are accepted at the highest threshold at which at least 95% of the
// ID images are accepted.
func FPR95ID(id, ood []float64) float64 { return newCurve(id, ood).mirror().fprAt(0.95) }

// FPRAtTPR returns the share of ID images that are flagged at the first
// threshold that catches at least the share tpr of the OOD images: 0 if tpr ≤ 0
// (no image must be flagged), NaN if tpr > 1.
func FPRAtTPR(id, ood []float64, tpr float64) float64 { return newCurve(id, ood).fprAt(tpr) }

// Accuracy returns the share of predictions that are right. A label below zero
// means that the row has none; such rows are skipped. Without labelled rows the
// result is NaN. It panics if the lengths differ.
func Accuracy[P, L ~int | ~int32 | ~int64](pred []P, labels []L) float64 {
	if len(pred) != len(labels) {
		panic(fmt.Sprintf("metrics: %d predictions for %d labels", len(pred), len(labels)))
	}
	var right, all int
	for i, label := range labels {
		if label >= 0 {
			all++
			if int64(pred[i]) == int64(label) {
				right++
			}
		}
	}
	return float64(right) / float64(all)
}

// curve counts the flagged images at every distinct threshold, from none to all:
// negatives (false alarms) and positives (hits). It is nil if no metric can be
// computed; otherwise it has at least two points.
type curve []point

type point struct{ neg, pos int }

// newCurve returns the curve with OOD positive: images that score at or below the
// threshold are flagged.
func newCurve(id, ood []float64) curve {
	id, ood = slices.Clone(id), slices.Clone(ood)
	slices.Sort(id)
	slices.Sort(ood)
	return sortedCurve(id, ood)
}

// sortedCurve returns the curve of scores in ascending order, NaNs first.
func sortedCurve(id, ood []float64) curve {
	if len(id) == 0 || len(ood) == 0 || math.IsNaN(id[0]) || math.IsNaN(ood[0]) {
		return nil
	}
	c := make(curve, 1, 1+len(id)+len(ood))
	for p := c[0]; p.neg < len(id) || p.pos < len(ood); c = append(c, p) {
		threshold := math.Inf(1)
		if p.neg < len(id) {
			threshold = id[p.neg]
		}
		if p.pos < len(ood) {
			threshold = min(threshold, ood[p.pos])
		}
		for p.neg < len(id) && id[p.neg] == threshold {
			p.neg++
		}
		for p.pos < len(ood) && ood[p.pos] == threshold {
			p.pos++
		}
	}
	return c
}

// mirror returns the curve with ID positive: it counts the images that the other
// does not flag, from the highest threshold down.
func (c curve) mirror() curve {
	m := make(curve, len(c))
	for i, p := range c {
		all := c[len(c)-1]
		m[len(c)-1-i] = point{neg: all.pos - p.pos, pos: all.neg - p.neg}
	}
	return m
}

// auroc sums trapezoids in integers, which is exact up to 2⁶² pairs.
func (c curve) auroc() float64 {
	if len(c) == 0 {
		return math.NaN()
	}
	twice := 0
	for i, p := range c[1:] {
		twice += (p.neg - c[i].neg) * (p.pos + c[i].pos)
	}
	all := c[len(c)-1]
	return float64(twice) / 2 / float64(all.neg) / float64(all.pos)
}

func (c curve) aupr() float64 {
	if len(c) == 0 {
		return math.NaN()
	}
	var area, recall float64
	precision, all := 1.0, float64(c[len(c)-1].pos)
	for _, p := range c[1:] {
		r, q := float64(p.pos)/all, float64(p.pos)/float64(p.pos+p.neg)
		area += (r - recall) * (q + precision) / 2
		recall, precision = r, q
	}
	return area
}

func (c curve) fprAt(tpr float64) float64 {
	for _, p := range c {
		all := c[len(c)-1]
		if float64(p.pos)/float64(all.pos) >= tpr {
			return float64(p.neg) / float64(all.neg)
		}
	}
	return math.NaN()
}

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

// Reliability compares confidences with how often they are right.
type Reliability struct {
	Bins []ReliabilityBin // of equal width over [0, 1]
	// Error is the expected calibration error: the mean over all images of the
	// difference, in the image's bin, between mean confidence and share that is right.
	Error float64
	// Chance is the Error that confidences which are the probabilities show with so many
	// images, in expectation: the mean over the images of √(2v/π) of each bin, where v is the
	// sum of p(1 − p).
	Chance float64
}

// ReliabilityBin is the images whose confidences lie in one bin.
type ReliabilityBin struct {
	Confidence float64 `json:"confidence"` // mean, as is Right; NaN without images
	Right      float64 `json:"right"`
	N          int     `json:"images"`
}

// Reliable returns the reliability of confidences in [0, 1], in so many bins.
func Reliable(confidences []float64, right []bool, bins int) Reliability {
	r := Reliability{Bins: make([]ReliabilityBin, bins)}
	variance := make([]float64, bins)
	for i, c := range confidences {
		at := min(int(c*float64(bins)), bins-1)
		b := &r.Bins[at]
		variance[at] += c * (1 - c)
		b.N++
		b.Confidence += c
		if right[i] {
			b.Right++
		}
	}
	for i := range r.Bins {
		b := &r.Bins[i]
		r.Error += math.Abs(b.Confidence-b.Right) / float64(len(confidences))
		r.Chance += math.Sqrt(2*variance[i]/math.Pi) / float64(len(confidences))
		b.Confidence /= float64(b.N)
		b.Right /= float64(b.N)
	}
	return r
}
