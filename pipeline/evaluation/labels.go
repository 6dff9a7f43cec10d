package evaluation

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"gonum.org/v1/gonum/stat/distuv"

	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// addLabels lists labels that seem wrong, by confident learning (Northcutt, Jiang
// and Chuang 2021, arXiv 1911.00068). A class's threshold is the mean probability
// that its own rows have for it; a row counts as confident in the likeliest of the
// classes whose threshold it reaches. The counts by label and class, scaled to the
// rows of each label, estimate how many rows of class c are labelled y, and so the
// share T(y|c) of c that is. As many rows are listed as are estimated to be of other
// classes than their labels, the most certain first.
//
// Northcutt et al. choose rows for each pair (y, c) alone. Here all compete, with the
// odds p·T(y|c) / q·T(y|y) that c is right and not y, where p and q are their
// probabilities and T begins with half of what evenly spread labels would give, but
// with two rows at least, as counts of fewer say little. The certainty is that of the
// Euclidean norm of the odds over all c, scaled to those of labels that are wrong
// evenly: their maximum misses rows that might be of several classes, as most are where
// classes have few rows, and their sum lists too many of these. Rows that are far from
// every class have no better one, and are left out.
func (in *inspector) addLabels(out []prediction, far map[int]bool) {
	r := in.report
	threshold, counts, right := make([]float64, len(r.Classes)), make([]int, len(r.Classes)), make([]int, len(r.Classes))
	confused := map[[2]int]int{}
	all, correct := 0, 0
	for i, p := range out {
		y := int(in.Labels[i])
		if p.classes[0] < 0 {
			continue
		}
		threshold[y] += p.own
		counts[y]++
		all++
		if int(p.classes[0]) == y {
			right[y]++
			correct++
		} else {
			confused[[2]int{y, int(p.classes[0])}]++
		}
	}
	r.Accuracy = float64(correct) / float64(all)
	for y := range threshold {
		threshold[y] /= float64(counts[y])
		r.Classes[y].Accuracy = float64(right[y]) / float64(counts[y])
	}
	confident, total := map[[2]int]int{}, make([]int, len(r.Classes)) // by label and class, and by label
	for i, p := range out {
		if p.classes[0] < 0 || far[i] {
			continue
		}
		y := int(in.Labels[i])
		for at, c := range p.classes {
			if c >= 0 && p.p[at] >= float32(threshold[c]) {
				confident[[2]int{y, int(c)}]++
				total[y]++
				break
			}
		}
	}
	joint := newJoint(confident, total, counts)
	type seeming struct { // a wrong label, in less memory than an issue
		score   float64
		row, of int32
	}
	var list []seeming
	for i, p := range out {
		y := int(in.Labels[i])
		if p.classes[0] < 0 || int(p.classes[0]) == y || far[i] {
			continue
		}
		var most, square float64
		var of int32
		for at, c := range p.classes {
			if c < 0 || int(c) == y {
				continue
			}
			odds := float64(p.p[at]) * joint.weight(y, int(c))
			square += odds * odds
			if odds > most {
				most, of = odds, c
			}
		}
		if most > 0 {
			list = append(list, seeming{1 / (1 + p.own/math.Sqrt(square)), int32(i), of})
		}
	}
	slices.SortFunc(list, func(a, b seeming) int { return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(a.row, b.row)) })
	for _, s := range list[:min(len(list), int(math.Round(joint.wrong)))] {
		r.Issues = append(r.Issues, in.issue(int(s.row), training.Label, s.score, in.Classes[s.of], -1))
		r.Classes[in.Labels[s.row]].Wrong++
	}
	for pair, n := range confused {
		if share := float64(n) / float64(counts[pair[0]]); n >= 3 && share >= .05 {
			r.Overlaps = append(r.Overlaps, ClassOverlap{Label: in.Classes[pair[0]], Predicted: in.Classes[pair[1]], Rows: n, Share: share})
		}
	}
	slices.SortFunc(r.Overlaps, func(a, b ClassOverlap) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Label, b.Label), cmp.Compare(a.Predicted, b.Predicted))
	})
}

// leastBegin is the least that the count of each label and class begins with.
const leastBegin = 2

// labelCounts estimates how many rows of each class have which label.
type labelCounts struct {
	n     map[[2]int]float64 // by label and class
	of    []float64          // by class
	begin float64            // what each n begins with
	even  float64            // mean T(y|y) over mean T(y|c), c ≠ y
	wrong float64            // rows with the label of another class
}

// newJoint scales counts by label and class, and by label, to the rows of each label.
func newJoint(confident map[[2]int]int, total, rows []int) *labelCounts {
	classes := len(rows)
	all := 0
	for _, n := range rows {
		all += n
	}
	j := &labelCounts{n: map[[2]int]float64{}, of: make([]float64, classes), begin: max(leastBegin, .5*float64(all)/float64(classes*classes))}
	for _, pair := range slices.SortedFunc(maps.Keys(confident), func(a, b [2]int) int { return slices.Compare(a[:], b[:]) }) {
		n := float64(confident[pair]) / float64(total[pair[0]]) * float64(rows[pair[0]])
		j.n[pair] = n
		j.of[pair[1]] += n
		if pair[0] != pair[1] {
			j.wrong += n
		}
	}
	var right float64
	for c := range classes {
		right += j.share(c, c)
	}
	j.even = right * float64(classes-1) / (float64(classes) - right)
	return j
}

// share is T(y|c), the share of class c that is labelled y.
func (j *labelCounts) share(y, c int) float64 {
	return (j.n[[2]int{y, c}] + j.begin) / (j.of[c] + j.begin*float64(len(j.of)))
}

// weight is T(y|c)/T(y|y), scaled to be 1 where labels are wrong evenly.
func (j *labelCounts) weight(y, c int) float64 {
	return j.share(y, c) / j.share(y, y) * j.even
}

// tailDegrees are the degrees of freedom of the law of distances. It was chosen among 10, 20
// and 30 on CIFAR-10 with four backbones, for the rate of false discoveries.
const tailDegrees = 20

// addOutliers lists rows that are much farther from every class than rows usually are,
// and returns them. The logarithm of the distance, by densities that were fitted without
// the row, is taken as Student's with tailDegrees, with the middle and the upper quartile
// of all rows: as far as ranks tell they are conformal p-values of rows left out in turn,
// but the farthest of n rows always has 1/n by its rank, with which no rate of false
// discoveries below 1 lists anything. (A few images of most sets are odder than a normal
// law has them.) Rows of the p-values p(1) ≤ p(2) ≤ … are listed up to the
// largest i with p(i) ≤ i/n·FalseOutliers (Benjamini and Hochberg 1995).
func (in *inspector) addOutliers(out []prediction) map[int]bool {
	var logs []float64
	for _, p := range out {
		if p.distance > 0 {
			logs = append(logs, math.Log(p.distance))
		}
	}
	far := map[int]bool{}
	n := len(logs)
	if n < leastRows {
		return far
	}
	slices.Sort(logs)
	middle, wide := logs[n/2], logs[n*3/4]-logs[n/2]
	if !(wide > 0) {
		return far
	}
	law := distuv.StudentsT{Sigma: 1, Nu: tailDegrees}
	quartile := law.Quantile(.75)
	p := func(log float64) float64 { return law.Survival((log - middle) / wide * quartile) }
	fence := math.Inf(1)
	for i := 1; i <= n; i++ { // the farthest first
		if p(logs[n-i]) <= in.FalseOutliers*float64(i)/float64(n) {
			fence = logs[n-i]
		}
	}
	for i, o := range out {
		if d := math.Log(o.distance); d >= fence {
			far[i] = true
			in.report.Classes[in.Labels[i]].Outliers++
			// 1/2 at the fence, and nearer to 1 beyond.
			score := 1 - .5*math.Exp(-(d-fence)/wide)
			in.report.Issues = append(in.report.Issues, in.issue(i, training.Outlier, score, "", -1))
		}
	}
	return far
}

// leastRows is from how many values on quartiles are worth something.
const leastRows = 8

// outerFence returns the upper quartile plus three times the distance between the
// quartiles, and that distance: 0 for few values.
func outerFence(values []float64) (fence, wide float64) {
	if len(values) < leastRows {
		return math.Inf(1), 0
	}
	sorted := slices.Sorted(slices.Values(values))
	q1, q3 := sorted[len(sorted)/4], sorted[len(sorted)*3/4]
	return q3 + 3*(q3-q1), q3 - q1
}

// issue describes a row; other is −1 without another image.
func (in *inspector) issue(row int, kind training.IssueKind, score float64, suggested string, other int) training.Issue {
	i := training.Issue{Row: row, Kind: kind, Score: score, Suggested: suggested, OtherRow: other}
	if i.Path = in.known[row].Path; in.Labels[row] >= 0 {
		i.Label = in.Classes[in.Labels[row]]
	}
	if other >= 0 {
		if i.Other = in.known[other].Path; i.Other == "" {
			i.Other = fmt.Sprintf("row %d", other)
		}
	}
	return i
}

// Odd is a file that is unlike the others.
type Odd struct {
	Path string
	Row  int
	What string
}

const (
	blankSpread = 2  // deviation of the shades, of 255, below which an image is blank
	oddShape    = 3  // times as long or as wide as is usual
	oddSize     = 16 // times as many or as few pixels
)

// addOdd lists images that are blank, blurred, or of an unusual size or shape.
func (in *inspector) addOdd() {
	n := len(in.Labels)
	var sizes, shapes, details []float64
	for i := range n {
		if p := in.pictures.at(i); p != nil {
			sizes = append(sizes, math.Log(float64(p.Width)*float64(p.Height)))
			shapes = append(shapes, math.Log(float64(p.Width)/float64(p.Height)))
			if p.Detail > 0 {
				details = append(details, -math.Log(p.Detail))
			}
		}
	}
	if len(sizes) == 0 {
		return
	}
	size, shape := median(sizes), median(shapes)
	fence, wide := outerFence(details)
	for i := range n {
		p := in.pictures.at(i)
		if p == nil {
			continue
		}
		add := func(what string) {
			in.report.Odd = append(in.report.Odd, Odd{in.known[i].Path, i, what})
		}
		dims := fmt.Sprintf("%d × %d pixels", p.Width, p.Height)
		if math.Abs(math.Log(float64(p.Width)*float64(p.Height))-size) > math.Log(oddSize) {
			add("unusual size: " + dims)
		}
		if math.Abs(math.Log(float64(p.Width)/float64(p.Height))-shape) > math.Log(oddShape) {
			add("unusual shape: " + dims)
		}
		switch {
		case p.Spread < blankSpread:
			add("blank: all of one shade")
		case wide > 0 && p.Detail > 0 && -math.Log(p.Detail) > fence:
			add("blurred, or enlarged from few pixels")
		}
	}
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
