package training

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// This file has the part of the default score that learns from out-of-distribution
// images that are known: a linear head that has them as one class more. Each fold of
// class hold-out leaves some of them out as well. So no row is judged by a head that was
// fitted on it, and calibration rows are in no fit and in no choice.

// LeastOutliers is how many known outliers, images that are alike counted once, are needed
// to learn from them.
const LeastOutliers = 5

const (
	mostOutliers = 20000 // rows to fit on; of more, every n-th is taken
	fixedOutlier = 1.    // weight of the part without class hold-out
	mostHarm     = 0.005 // mean AUROC on classes left out that the part may cost
)

// outlierWeights are the weights to choose from, beside those of the other parts, whose
// sum is sumWeights + always.
var outlierWeights = []float64{0.5, 1, 2, 4}

// outliers are known out-of-distribution images.
type outliers struct {
	rows   features.Rows
	layers [][]float32 // of each row
	part   []int       // that each row is in, of parts
	parts  int
}

// checkOutliers says where known outliers cannot be used.
func (o *Options) checkOutliers() error {
	switch {
	case len(o.Outliers) == 0:
	case o.Score != detector.JoinedScore || !o.Head.Settings().Residual:
		return options.Errorf("Outliers", "known outliers are a part of the score %s of the residual head, and another was asked for", detector.JoinedScore)
	case o.Validation.None:
		return options.Errorf("Outliers", "they need validation images, which put them on one scale with the other parts of the score")
	}
	return nil
}

// openOutliers reads the known outliers. Those that are like a labelled image are left out.
func (t *Data) openOutliers(ctx context.Context) (err error) {
	if len(t.Options.Outliers) == 0 {
		return nil
	}
	if len(t.Rows.Labelled().ByClass()) < 2 {
		return options.Errorf("Outliers", "known outliers need two classes to be told from, and there is one")
	}
	own, err := features.OpenTableLike(ctx, t.space, t.Sets[0], t.Options.Outliers...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	all := own.With(features.Every(own.Index, mostOutliers))
	known := []features.Rows{all, t.Rows.Labelled()}
	if t.Held != nil {
		known = append(known, t.Held.Rows)
	}
	if dir := t.Options.Calibration.Features; dir != "" {
		calibration, err := features.OpenTable(ctx, t.space, dir)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, calibration.Close()) }()
		known = append(known, calibration.Rows)
	}
	alike, err := features.Alike(ctx, known...)
	if err != nil {
		return err
	}
	named := map[int]bool{}
	for _, numbers := range alike[1:] {
		for _, n := range numbers {
			named[n] = true
		}
	}
	o := &outliers{}
	var index []int
	number := map[int]int{} // of groups that are alike
	for i, row := range all.Index {
		if g := alike[0][i]; !named[g] {
			if _, again := number[g]; !again {
				number[g] = len(number)
			}
			index, o.part = append(index, row), append(o.part, number[g])
		}
	}
	if n := len(all.Index) - len(index); n > 0 {
		t.Warnings = append(t.Warnings, fmt.Sprintf("%d of %d known outliers are left out: their features are identical or nearly identical to those of an image with a class", n, len(all.Index)))
	}
	if t.outlierSets, err = namedSets(ctx, own.Sets, detector.ForOutliers); err != nil {
		return err
	}
	switch groups := len(number); {
	case len(all.Index) < LeastOutliers:
		return options.Errorf("Outliers", "%d known outliers are too few to learn from: %d are needed", len(all.Index), LeastOutliers)
	case groups < LeastOutliers:
		t.Warnings = append(t.Warnings, fmt.Sprintf("of the known outliers %d different ones are left, and %d are needed: the score has no part of them", groups, LeastOutliers))
		return nil
	default:
		o.parts = min(groups, mostFolds)
	}
	for i := range o.part {
		o.part[i] %= o.parts
	}
	for _, row := range index {
		o.layers = append(o.layers, slices.Clone(own.Layers(row)))
	}
	if o.rows, err = all.With(index).InMemory(); err == nil {
		t.outliers = o
	}
	return err
}

// of returns the outliers of a part, or all others, and their layers.
func (o *outliers) of(part int, others bool) (x, layers []float32) {
	for i, p := range o.part {
		if (p == part) != others {
			x, layers = append(x, o.rows.Row(i)...), append(layers, o.layers[i]...)
		}
	}
	return x, layers
}

// fit fits a linear head on training rows, which are in memory, and on the outliers
// without those of a part; −1 leaves out none.
func (o *outliers) fit(ctx context.Context, train features.Rows, classes, part int, lo head.LinearOptions) (posthoc.Scorer, error) {
	others, _ := o.of(part, true)
	x := slices.Concat(train.X, others)
	labels := slices.Concat(train.Labels, slices.Repeat([]int64{int64(classes)}, len(others)/train.D))
	fitted, err := head.FitLinear(ctx, features.All(x, train.D, labels), features.Rows{}, classes+1, lo)
	if err != nil {
		return nil, err
	}
	return &posthoc.Outliers{Head: fitted.Linear}, nil
}

// fitOutliers fits the part of the score: on all outliers, and on as many rows to train
// on as the memory is for.
func (t *Data) fitOutliers(ctx context.Context, c float64) (posthoc.Scorer, error) {
	most := int(min(int64(cmp.Or(t.Options.PartRows, partRows)), max(256, t.Options.Memory/16/int64(t.D))))
	train, err := t.train.With(t.train.Balanced(most)).InMemory()
	if err != nil {
		return nil, err
	}
	return t.outliers.fit(ctx, train, len(t.Classes), -1, head.LinearOptions{C: c})
}

// weights returns those of the parts by all folds but one, that of the outliers included.
func (h *holdOut) weights(but int) map[string]float64 {
	weights := h.layerWeights(but)
	if h.t.outliers != nil && !slices.Contains(h.t.Options.WithoutParts, detector.OutliersPart) {
		if w := h.outlierWeight(but, weights); w > 0 {
			weights[detector.OutliersPart] = w
		}
	}
	return weights
}

// outlierWeight returns the weight of the outliers' part beside those of the others: the
// one that gives the largest sum of two AUROCs, of outliers left out and of classes left
// out. It is 0, and the part is dropped, where each weight gains nothing on outliers, or
// costs more than mostHarm on classes. (Outliers that are in truth images of the classes
// gain on classes left out.)
func (h *holdOut) outlierWeight(but int, others map[string]float64) float64 {
	outliers, classes := h.withWeight(but, others, 0)
	best, most := 0., outliers+classes
	for _, w := range outlierWeights {
		o, c := h.withWeight(but, others, w)
		if o > outliers && o+c > most && c >= classes-mostHarm {
			best, most = w, o+c
		}
	}
	return best
}

// withWeight returns the mean AUROC, over all folds but one, of outliers that were left
// out and of classes that were.
func (h *holdOut) withWeight(but int, others map[string]float64, w float64) (outliers, classes float64) {
	weights := maps.Clone(others)
	weights[detector.OutliersPart] = w
	n := 0.
	for i, f := range h.folds {
		if i != but {
			known := f.joint(f.known, weights)
			outliers += metrics.AUROC(known, f.joint(f.outliers, weights))
			classes += metrics.AUROC(known, f.joint(f.left, weights))
			n++
		}
	}
	return outliers / n, classes / n
}

// assessOutliers says what the outliers' part with the weight w, 0 where it is dropped,
// gains: each fold is judged with the weights of the others, which may have dropped it.
// Of a part that is dropped it says what the least weight would have done.
func (h *holdOut) assessOutliers(weights []map[string]float64, w float64, falseAlarms []float64) *detector.AssessedOutliers {
	a := &detector.AssessedOutliers{Images: h.t.outliers.rows.Len(), Weight: w}
	with, without := make([]map[string]float64, len(h.folds)), make([]map[string]float64, len(h.folds))
	for i := range h.folds {
		without[i] = maps.Clone(weights[i])
		delete(without[i], detector.OutliersPart)
		if with[i] = weights[i]; w == 0 {
			with[i] = maps.Clone(without[i])
			with[i][detector.OutliersPart] = outlierWeights[0]
		}
	}
	judge := func(by []map[string]float64, rows func(*fold) scored) (auroc, share float64) {
		known, all := knownIn(h.folds, by)
		for i, f := range h.folds {
			out, n := f.joint(rows(f), by[i]), float64(len(h.folds))
			auroc += metrics.AUROC(known[i], out) / n
			if slices.Contains(falseAlarms, 0.05) {
				share += caught(all, out, []float64{0.05}, h.calibration)[0] / n
			}
		}
		return auroc, share
	}
	for _, of := range []struct {
		rows func(*fold) scored
		to   *detector.Gain
	}{{func(f *fold) scored { return f.outliers }, &a.Outliers}, {func(f *fold) scored { return f.left }, &a.Classes}} {
		of.to.AUROC, of.to.Caught = judge(with, of.rows)
		of.to.AUROCWithout, of.to.CaughtWithout = judge(without, of.rows)
	}
	return a
}

// saidOfOutliers is what who gave outliers should know of an assessment; "" for nothing.
func (t *Data) saidOfOutliers(a *detector.Assessment) string {
	switch {
	case t.outliers == nil:
		return ""
	case a == nil:
		return "without class hold-out nothing says whether the known outliers help: their part of the score has a fixed weight"
	case a.Outliers.Weight > 0:
		return ""
	}
	o := a.Outliers
	return fmt.Sprintf("the score has no part of the known outliers, which would gain nothing or harm: with it, outliers left out would be told with AUROC %.3f (without it %.3f), and classes left out with %.3f (%.3f)",
		o.Outliers.AUROC, o.Outliers.AUROCWithout, o.Classes.AUROC, o.Classes.AUROCWithout)
}
