package inspection

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/conditioning"
	"github.com/mlrbfn/mlrbfn/dataset"
	"github.com/mlrbfn/mlrbfn/head/linear"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/pipeline/issues"
)

// Bounds of the rows that a head and a density are fitted on; fewer are all used.
const (
	leastFitted = 50  // rows for each class
	fitWork     = 1e9 // multiplications, of rows by weights, of one step of a head
	fitRows     = 50_000
	densityRows = 100_000

	manyRows      = 10_000
	manyTolerance = 1e-4 // of the mean loss of a head, with more rows
)

// likeliest is how many classes of a prediction are remembered.
const likeliest = 5

// prediction is the out-of-fold prediction for a row: by heads that were fitted without it.
type prediction struct {
	own     float64 // probability of the row's label
	classes [likeliest]int32
	p       [likeliest]float64 // of classes, the largest first
	// distance is the squared distance to the nearest class mean of the conditioned
	// features; NaN if the row has no prediction.
	distance float64
}

func noPrediction() prediction {
	p := prediction{own: math.NaN(), distance: math.NaN()}
	for i := range p.classes {
		p.classes[i] = -1
	}
	return p
}

// folds divides the labelled rows into k parts of about as many rows of each
// class, in the given order. Rows of one group share a part.
func folds(labels []int64, group []int, k int, order []int) []int {
	fold := make([]int, len(labels))
	of := map[int]int{} // the part of a group
	next := map[int64]int{}
	for _, i := range order {
		y := labels[i]
		if y < 0 {
			fold[i] = -1
			continue
		}
		f, known := of[group[i]]
		if !known {
			f = next[y] % k
			of[group[i]] = f
			next[y]++
		}
		fold[i] = f
	}
	return fold
}

// outOfFold predicts each labelled row by a linear head and a density that were
// fitted on the other parts.
func (in *inspector) outOfFold(ctx context.Context, fold []int) ([]prediction, error) {
	out := make([]prediction, in.train)
	for i := range out {
		out[i] = noPrediction()
	}
	classes := len(in.Classes)
	usable := 0
	for _, c := range in.report.Classes {
		if c.Rows >= 2 {
			usable++
		}
	}
	if usable < 2 {
		in.report.Notes = append(in.report.Notes, "there are fewer than two classes with two images, so labels and outliers were not looked at")
		return out, nil
	}
	var last *linear.Fitted
	for f := range in.Folds {
		in.progress("predicting labels", f, in.Folds)
		train, test := in.Rows, in.Rows
		train.Index, test.Index = nil, nil
		for i, g := range fold {
			switch {
			case g == f:
				test.Index = append(test.Index, i)
			case g >= 0:
				train.Index = append(train.Index, i)
			}
		}
		if len(test.Index) == 0 || len(train.Index) == 0 {
			continue
		}
		o := linear.Options{Near: last}
		if last != nil {
			o.C = last.C
		}
		some := train.With(dataset.Spread(train.Index, max(leastFitted*classes, min(fitRows, int(fitWork/float64(in.D*classes))))))
		if some.Len() > manyRows {
			o.Tolerance = manyTolerance
		}
		head, err := linear.Fit(ctx, some, dataset.Rows{}, classes, o)
		if err != nil {
			return nil, fmt.Errorf("fitting a linear head without part %d of %d: %w", f+1, in.Folds, err)
		}
		last = head
		err = parallel.Ranges(ctx, len(test.Index), 64, func() func(int, int) error {
			x, logits := make([]float64, in.D), make([]float64, classes)
			return func(from, to int) error {
				for _, i := range test.Index[from:to] {
					for j, v := range in.rowOf(i) {
						x[j] = float64(v)
					}
					head.Logits(logits, x)
					out[i].fill(logits, int(in.Labels[i]))
				}
				return nil
			}
		})
		if err != nil {
			return nil, err
		}
		train.Index = dataset.Spread(train.Index, max(leastFitted*classes, densityRows))
		if err := in.distances(ctx, train, test, out); err != nil {
			return nil, err
		}
	}
	in.progress("predicting labels", in.Folds, in.Folds)
	return out, nil
}

// fill turns logits into probabilities, in place, and stores what is needed.
func (p *prediction) fill(logits []float64, label int) {
	most := slices.Max(logits)
	var sum float64
	for c, v := range logits {
		logits[c] = math.Exp(v - most)
		sum += logits[c]
	}
	for c := range logits {
		logits[c] /= sum
	}
	p.own = logits[label]
	for at := range min(likeliest, len(logits)) {
		best := -1
		for c, v := range logits {
			if (best < 0 || v > logits[best]) && !slices.Contains(p.classes[:at], int32(c)) {
				best = c
			}
		}
		p.classes[at], p.p[at] = int32(best), logits[best]
	}
}

// distances computes each test row's squared distance to the nearest mean of a
// class, in features that are whitened within the classes.
func (in *inspector) distances(ctx context.Context, train, test dataset.Rows, out []prediction) error {
	c, err := conditioning.Fit(ctx, train, dataset.Rows{}, len(in.Classes), conditioning.Options{Kind: conditioning.Auto, Memory: in.Memory / 2})
	if err != nil {
		return fmt.Errorf("whitening features: %w", err)
	}
	d := c.Out()
	if c == nil {
		d = in.D
	}
	rows := func(index []int, do func(at int, rows []float32) error) error {
		if c == nil {
			return parallel.Blocks(ctx, len(index), 1, func(at, _ int) { _ = do(at, in.rowOf(index[at])) })
		}
		return c.Each(ctx, in.With(index), do)
	}
	means, counts := make([][]float64, len(in.Classes)), make([]int, len(in.Classes))
	// One class after the other, so that sums do not depend on the number of cores.
	for y, index := range byClass(train, len(in.Classes)) {
		if counts[y] = len(index); len(index) == 0 {
			continue
		}
		const part = 4096 // rows in memory at once
		means[y] = make([]float64, d)
		for some := range slices.Chunk(index, part) {
			x := make([]float32, len(some)*d)
			if err := rows(some, func(at int, block []float32) error { copy(x[at*d:], block); return nil }); err != nil {
				return err
			}
			for i := range some {
				for j, v := range x[i*d : (i+1)*d] {
					means[y][j] += float64(v)
				}
			}
		}
		for j := range means[y] {
			means[y][j] /= float64(len(index))
		}
	}
	return rows(test.Index, func(at int, block []float32) error {
		for i := 0; i < len(block); i += d {
			least := math.Inf(1)
			for y, mean := range means {
				if counts[y] == 0 {
					continue
				}
				var sum float64
				for j, v := range block[i : i+d] {
					e := float64(v) - mean[j]
					if sum += e * e; sum > least {
						break
					}
				}
				least = min(least, sum)
			}
			out[test.Index[at+i/d]].distance = least
		}
		return nil
	})
}

// byClass lists the rows of each class.
func byClass(rows dataset.Rows, classes int) [][]int {
	lists := make([][]int, classes)
	for _, i := range rows.Index {
		lists[rows.Labels[i]] = append(lists[rows.Labels[i]], i)
	}
	return lists
}

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
// probabilities and T begins with half of what evenly spread labels would give. The
// certainty is that of the odds, scaled so that it is p/(p + q) where labels are wrong
// evenly.
func (in *inspector) addLabels(out []prediction) {
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
		if p.classes[0] < 0 {
			continue
		}
		y := int(in.Labels[i])
		for at, c := range p.classes {
			if c >= 0 && p.p[at] >= threshold[c] {
				confident[[2]int{y, int(c)}]++
				total[y]++
				break
			}
		}
	}
	joint := newJoint(confident, total, counts)
	var list []issues.Issue
	for i, p := range out {
		y := int(in.Labels[i])
		if p.classes[0] < 0 || int(p.classes[0]) == y {
			continue
		}
		var most float64
		var of int32
		for at, c := range p.classes {
			if odds := p.p[at] * joint.weight(y, int(c)); c >= 0 && int(c) != y && odds > most {
				most, of = odds, c
			}
		}
		if most > 0 {
			list = append(list, in.issue(i, issues.Label, most/(most+p.own), in.Classes[of], -1))
		}
	}
	issues.Sort(list)
	list = list[:min(len(list), int(math.Round(joint.wrong)))]
	r.Issues = append(r.Issues, list...)
	for _, issue := range list {
		r.Classes[in.Labels[issue.Row]].Wrong++
	}
	for pair, n := range confused {
		if share := float64(n) / float64(counts[pair[0]]); n >= 3 && share >= .05 {
			r.Overlaps = append(r.Overlaps, Overlap{in.Classes[pair[0]], in.Classes[pair[1]], n, share})
		}
	}
	slices.SortFunc(r.Overlaps, func(a, b Overlap) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Label, b.Label), cmp.Compare(a.Predicted, b.Predicted))
	})
}

// joint estimates how many rows of each class have which label.
type joint struct {
	n     map[[2]int]float64 // by label and class
	of    []float64          // by class
	begin float64            // what each n begins with
	even  float64            // mean T(y|y) over mean T(y|c), c ≠ y
	wrong float64            // rows with the label of another class
}

// newJoint scales counts by label and class, and by label, to the rows of each label.
func newJoint(confident map[[2]int]int, total, rows []int) *joint {
	classes := len(rows)
	all := 0
	for _, n := range rows {
		all += n
	}
	j := &joint{n: map[[2]int]float64{}, of: make([]float64, classes), begin: .5 * float64(all) / float64(classes*classes)}
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
func (j *joint) share(y, c int) float64 {
	return (j.n[[2]int{y, c}] + j.begin) / (j.of[c] + j.begin*float64(len(j.of)))
}

// weight is T(y|c)/T(y|y), scaled to be 1 where labels are wrong evenly.
func (j *joint) weight(y, c int) float64 {
	if c < 0 {
		return 0
	}
	return j.share(y, c) / j.share(y, y) * j.even
}

// addOutliers lists rows that are much farther from every class than the rows of
// their own class usually are: beyond the upper quartile of the logarithmic
// distance by more than three times the distance between the quartiles (Tukey's
// outer fence).
func (in *inspector) addOutliers(out []prediction) {
	for y, index := range byClass(dataset.Rows{Labels: in.Labels, Index: labelled(in.Labels[:in.train])}, len(in.Classes)) {
		var logs []float64
		for _, i := range index {
			if d := out[i].distance; d > 0 {
				logs = append(logs, math.Log(d))
			}
		}
		fence, wide := outerFence(logs)
		if !(wide > 0) {
			continue
		}
		for _, i := range index {
			if d := math.Log(out[i].distance); d > fence {
				in.report.Classes[y].Outliers++
				// 1/2 at the fence, and nearer to 1 beyond.
				score := 1 - .5*math.Exp(-(d-fence)/wide)
				in.report.Issues = append(in.report.Issues, in.issue(i, issues.Outlier, score, "", -1))
			}
		}
	}
}

func labelled(labels []int64) (rows []int) {
	for i, y := range labels {
		if y >= 0 {
			rows = append(rows, i)
		}
	}
	return rows
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
func (in *inspector) issue(row int, kind issues.Kind, score float64, suggested string, other int) issues.Issue {
	i := issues.Issue{Row: row, Kind: kind, Score: score, Suggested: suggested, OtherRow: other}
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
