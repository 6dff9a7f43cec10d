package detector

import (
	"context"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// This file is the way from features to verdicts: [Detector.VerdictFunc] for images one after
// another, as detect and the service judge them, and [Detector.Verdicts] for many rows.

// Verdict is the judgement of a detector on one image.
type Verdict struct {
	Class      string  `json:"class"`      // the most confident class
	Label      int     `json:"-"`          // its index
	Confidence float64 `json:"confidence"` // the chance that the class is right, made of max_c φ_c, or that itself; in [0, 1]
	Score      float64 `json:"score"`      // higher = more in-distribution; log Confidence for the paper's heads; finite
	OOD        bool    `json:"ood"`        // Score < threshold
	// PValue is (1 + #{calibration scores ≤ Score}) / (n + 1): the chance
	// that an image like the training images scores this low.
	PValue float64 `json:"p_value"`
}

// VerdictRows is how many rows a function of Detector.VerdictFunc takes at most: with
// so many, reading the conditioning's matrix no longer counts.
const VerdictRows = 16

// largeDetector is how many features times classes make a verdict long enough for the
// heads and the other parts of the score to be computed at the same time: a verdict's
// time is that of reading their weights, which one core does slowly.
const largeDetector = 1 << 18

// VerdictFunc returns a function that judges up to VerdictRows rows of features [n, D]
// and serves one goroutine. A row's verdict does not depend on the others.
func (d *Detector) VerdictFunc() func(rows []float32) []Verdict {
	classes := len(d.Classes)
	predictors, room := make([]*head.Predictor, len(d.Heads)), make([]head.Outputs, len(d.Heads))
	for i, h := range d.Heads {
		predictors[i], room[i] = h.NewPredictor(), h.Room(VerdictRows)
	}
	step := VerdictRows
	if d.Scoring.roundsInBlocks() {
		step = 1
	}
	var folds []func([]float32) []Verdict
	for _, fold := range d.Folds {
		folds = append(folds, fold.VerdictFunc())
	}
	alongside := d.Scoring != nil && step == VerdictRows && d.Dim()*classes >= largeDetector
	ctx := context.Background() // scoring fails only when cancelled
	return func(rows []float32) []Verdict {
		n, embeddings := len(rows)/d.Dim(), d.Embeddings(rows)
		var others *parallel.Task[[][]float64]
		if alongside {
			others = parallel.Start(func() [][]float64 {
				scores, _ := d.Scoring.posthoc(ctx, n, d.BatchFor(d.Scoring, rows))
				return scores
			})
		}
		own := d.outputs(func(h int) head.Outputs {
			o := room[h].Part(0, n, classes)
			predictors[h].Predict(o, embeddings)
			return o
		})
		verdicts := make([]Verdict, 0, n)
		for from := 0; from < n; from += step {
			part := own.Part(from, min(from+step, n), classes)
			var scores []float64
			if alongside { // n is at most step
				scores = make([]float64, n)
				_ = d.Scoring.join(scores, others.Wait(), own)
			} else {
				scores, _ = d.scores(ctx, part, rows[from*d.Dim():min(from+step, n)*d.Dim()])
			}
			for i, score := range scores {
				verdicts = append(verdicts, d.verdict(part.LogConfidences[i*classes:(i+1)*classes], score))
			}
		}
		_ = d.cross(verdicts, func(k int) ([]Verdict, error) { return folds[k](rows), nil }) // never fails
		return verdicts
	}
}

// verdict judges the log φ [C] and the score of one image.
func (d *Detector) verdict(logConfidences []float64, score float64) Verdict {
	label, most := best(logConfidences)
	v := Verdict{
		Class: d.Classes[label], Label: label,
		Confidence: math.Exp(most), Score: finite(score),
		OOD: !(score >= d.ThresholdOf(label)), PValue: pValue(d.ScoresOf(label), score),
	}
	if d.Confidence != nil {
		v.Confidence = d.Confidence.chance(most)
	}
	if math.IsNaN(v.Confidence) {
		v.Confidence = 0
	}
	return v
}

// ThresholdOf returns the threshold of the images that are given a class.
func (d *Detector) ThresholdOf(class int) float64 {
	if d.thresholds == nil {
		return d.Threshold
	}
	return d.thresholds[class]
}

// ScoresOf returns the calibration scores, ascending, that p-values of the images
// that are given a class compare with.
func (d *Detector) ScoresOf(class int) []float64 {
	if d.perClass == nil {
		return d.CalibrationScores
	}
	return d.perClass[class]
}

// pValue is the conformal p-value of a score among n calibration scores,
// ascending: (1 + #{scores ≤ score}) / (n + 1).
func pValue(ascending []float64, score float64) float64 {
	return float64(1+notAbove(ascending, score)) / float64(len(ascending)+1)
}

// notAbove returns #{scores ≤ score}.
func notAbove(ascending []float64, score float64) int {
	n, _ := slices.BinarySearchFunc(ascending, score, func(a, s float64) int {
		if a <= s {
			return -1
		}
		return 1
	})
	return n
}

// cross puts the p-values and decisions of the folds in the place of the verdicts'
// own; of gives the verdicts of a fold on the same rows.
func (d *Detector) cross(verdicts []Verdict, of func(fold int) ([]Verdict, error)) error {
	if len(d.Folds) == 0 {
		return nil
	}
	below := make([]int, len(verdicts))
	for k, fold := range d.Folds {
		own, err := of(k)
		if err != nil {
			return err
		}
		for i, v := range own {
			below[i] += notAbove(fold.CalibrationScores, v.Score)
		}
	}
	rank := Rank(len(d.CalibrationScores), d.TargetTPR)
	for i := range verdicts {
		verdicts[i].PValue = float64(1+below[i]) / float64(len(d.CalibrationScores)+1)
		verdicts[i].OOD = 1+below[i] <= rank
	}
	return nil
}

// verdictBlock is how many rows are judged at once at least, and mostVerdicts at
// most, so that the confidences of a large set in all classes never lie in memory
// together.
const (
	verdictBlock = 512
	mostVerdicts = 16 * verdictBlock
)

// Verdicts judges the rows x [n, D] of features. It fails only when cancelled.
func (d *Detector) Verdicts(ctx context.Context, x []float32) ([]Verdict, error) {
	verdicts := make([]Verdict, 0, len(x)/d.Dim())
	for block := range slices.Chunk(x, d.blockRows()*d.Dim()) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		own := d.Own(block)
		scores, err := d.scores(ctx, own, block)
		if err != nil {
			return nil, err
		}
		first := len(verdicts)
		for i, score := range scores {
			verdicts = append(verdicts, d.verdict(own.LogConfidences[i*len(d.Classes):(i+1)*len(d.Classes)], score))
		}
		err = d.cross(verdicts[first:], func(k int) ([]Verdict, error) { return d.Folds[k].Verdicts(ctx, block) })
		if err != nil {
			return nil, err
		}
	}
	return verdicts, nil
}

// EachVerdict calls do with the verdict on each of some rows, whose features row gives.
func (d *Detector) EachVerdict(ctx context.Context, row func(int) []float32, rows []int, do func(row int, v Verdict)) error {
	x := make([]float32, 0, verdictBlock*d.Dim())
	for part := range slices.Chunk(rows, verdictBlock) {
		x = x[:0]
		for _, r := range part {
			x = append(x, row(r)...)
		}
		verdicts, err := d.Verdicts(ctx, x)
		if err != nil {
			return err
		}
		for i, r := range part {
			do(r, verdicts[i])
		}
	}
	return nil
}

// scores returns the scores to judge the rows x by, of which the heads say own. It
// fails only when cancelled.
func (d *Detector) scores(ctx context.Context, own head.Outputs, x []float32) ([]float64, error) {
	if d.Scoring == nil {
		return own.Scores, nil
	}
	scores := make([]float64, len(own.Scores))
	return scores, d.Scoring.Score(ctx, scores, d.BatchFor(d.Scoring, x), own)
}

// Embeddings returns the features of the embedding of the rows x [n, D]: [n, E].
func (d *Detector) Embeddings(x []float32) []float32 {
	return features.Columns(x, d.Dim(), 0, d.Heads[0].Dim())
}

// outputs returns the logarithm of the heads' mean confidence, the scores and
// their terms, from what each gives. It changes what the first gives. The scores
// and terms of heads that have them are the means of theirs; else the score is
// that of the mean confidence.
func (d *Detector) outputs(of func(head int) head.Outputs) head.Outputs {
	all := of(0)
	n := float64(len(d.Heads))
	for h := 1; h < len(d.Heads); h++ {
		o := of(h)
		for i, v := range o.LogConfidences {
			all.LogConfidences[i] = logAdd(all.LogConfidences[i], v)
		}
		add := func(to, from []float64) {
			for i, v := range from {
				to[i] += v
			}
		}
		add(all.Scores, o.Scores)
		add(all.Nearness, o.Nearness)
		add(all.Decision, o.Decision)
	}
	if n > 1 {
		for i := range all.LogConfidences {
			all.LogConfidences[i] -= math.Log(n)
		}
		for _, means := range [][]float64{all.Scores, all.Nearness, all.Decision} {
			for i := range means {
				means[i] /= n
			}
		}
	}
	if !d.Heads[0].Network.HasScore() {
		for i := range all.Scores {
			_, all.Scores[i] = best(all.LogConfidences[i*len(d.Classes) : (i+1)*len(d.Classes)])
		}
	}
	return all
}

// Own returns the outputs of the heads for the rows x [n, D] of features, as means over the heads.
func (d *Detector) Own(x []float32) head.Outputs {
	x = d.Embeddings(x)
	return d.outputs(func(h int) head.Outputs { return d.Heads[h].Outputs(x) })
}

// EachOwn calls do with what Own says of blocks of the rows, in order.
func (d *Detector) EachOwn(ctx context.Context, x []float32, do func(head.Outputs)) error {
	for block := range slices.Chunk(x, d.blockRows()*d.Dim()) {
		if err := ctx.Err(); err != nil {
			return err
		}
		do(d.Own(block))
	}
	return nil
}

// blockRows is how many rows are judged at once.
func (d *Detector) blockRows() int {
	const confidences = 1 << 22
	return max(min(confidences/len(d.Classes), mostVerdicts)/verdictBlock, 1) * verdictBlock
}

// logAdd returns log(eᵃ + eᵇ).
func logAdd(a, b float64) float64 {
	a, b = max(a, b), min(a, b)
	if math.IsInf(b, -1) {
		return a
	}
	return a + math.Log1p(math.Exp(b-a))
}

// finite returns the finite number that is nearest to a score, since JSON has no
// other; NaN, which is flagged, counts as the lowest. Honest detectors give no such
// scores.
func finite(score float64) float64 {
	if math.IsNaN(score) {
		return -math.MaxFloat64
	}
	return max(-math.MaxFloat64, min(score, math.MaxFloat64))
}

// best returns the first largest of a row and where it is.
func best(row []float64) (at int, value float64) {
	for i, v := range row {
		if v > row[at] {
			at = i
		}
	}
	return at, row[at]
}
