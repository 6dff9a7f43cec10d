// Package detector has the detector: the file that stores it, the verdicts that
// it gives on features, the scores that it can judge by, and the calibration of
// its threshold.
package detector

import (
	"context"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// Detector judges images by their features. It is one file.
type Detector struct {
	Classes []string     // names, in the order of the heads' outputs
	Heads   []*head.Head // one per seed; their confidences are averaged
	Seeds   []uint64     // what each head was trained with

	// Scoring gives the score to judge by in place of the heads' own; it may be
	// nil. Class and confidence are the heads' all the same.
	Scoring *Scoring

	// Threshold is the score below which an image is out of distribution;
	// −Inf where nothing is, for want of calibration images.
	Threshold         float64
	TargetTPR         float64   // share of in-distribution images that the threshold is to keep
	CalibrationScores []float64 // ascending

	// Folds, where there are any, give the p-values and decide what is flagged, as
	// file folds.go says. CalibrationScores are those of all folds together then, and Threshold
	// is theirs: who sets another threshold for the score drops the folds.
	Folds []*Detector

	// Assessment says how well class hold-out found images of a new class; nil where
	// there was none.
	Assessment *Assessment

	// ByClass, unless nil, are the calibration scores by the class that the detector
	// gives, [C+1]: an empty list is of a class with too few, the last one of these
	// classes together. CalibrateByClass makes it.
	ByClass    [][]float64
	perClass   [][]float64 // what each class compares with
	thresholds []float64   // of each class; nil: Threshold for all

	// Confidence, unless nil, makes Verdict.Confidence of the largest confidence.
	Confidence *Platt

	// Reference puts the parts of a score into proportion when a verdict is explained; nil in older files.
	Reference *Reference

	// Probe says what features should be; nil in older files, and of features made
	// elsewhere.
	Probe *Probe

	Source   Source           // what made the features
	Training TrainingRecord   // how the heads were trained
	History  [][]head.Epoch   // per head
	Splits   map[string][]int // rows of the training features set aside, by "validation", "calibration" and "left_out"

	// Validation is nil without validation images, with one class, and in files that
	// are older than it.
	Validation *Validation

	// Relabelled are the rows of the training features whose label a list of issues
	// changed: the class that they were trained as, −1 for those left out.
	Relabelled map[int]int

	file   string // that it was read from; "" for a new one
	signed bool   // by a key that its user named
}

// TrainingRecord is the options that heads were trained with and the rows that
// they saw. Its JSON names, and those of RowCount, are those of detector files.
type TrainingRecord struct {
	Features    []string `json:"features"`
	Layers      int      `json:"layers"`
	Centroids   int      `json:"centroids"`
	Projection  int      `json:"projection"`
	Epochs      int      `json:"epochs"`
	Batch       int      `json:"batch"`
	LR          float64  `json:"lr"`
	Patience    int      `json:"patience"`
	Schedule    string   `json:"schedule"`
	Validation  string   `json:"validation"`  // the fraction or the feature set
	Calibration string   `json:"calibration"` // likewise
	Balance     bool     `json:"balance"`     // every class was shown equally often
	Rows        RowCount `json:"rows"`
	ClassRows   []int    `json:"class_rows"` // to train on, per class
	SumLoss     bool     `json:"sum_loss,omitempty"`
	Window      int      `json:"window,omitempty"` // rows that were shuffled together; 0 means all

	// Split is "groups" if groups of rows stayed in one part of the split, ""
	// if each row was on its own; GroupBy is the pattern that named groups by paths.
	Split   string `json:"split,omitempty"`
	GroupBy string `json:"group_by,omitempty"`
	// Kept says that rows that an earlier detector had set aside stayed so.
	Kept bool `json:"kept,omitempty"`

	// Sets are the feature sets that the rows came from, the training features first and
	// in the order of Features; nil for a file that is older than this record.
	Sets []TrainingSet `json:"sets,omitempty"`

	ClassCalibration []int `json:"class_calibration,omitempty"` // calibration rows per class; nil where they have no labels

	Review *CalibrationReview `json:"calibration_review,omitempty"` // of the calibration images, by a person; nil without

	// ClassType is "int", "float" or "bool" where Python gave classes that were not text,
	// for Python to give them back so.
	ClassType string `json:"class_type,omitempty"`

	// What else repeats the training.
	Tool         string                    `json:"tool,omitempty"`   // the program and its version
	Score        string                    `json:"scores,omitempty"` // that was asked for
	NoHoldOut    bool                      `json:"no_hold_out,omitempty"`
	LinearC      float64                   `json:"linear_c,omitempty"`     // see linear.Options
	FittedC      float64                   `json:"fitted_c,omitempty"`     // what the linear head was fitted with, given or chosen; 0 for none
	StartC       float64                   `json:"start_c,omitempty"`      // likewise, the classifier that the head began as
	Conditioning *head.ConditioningOptions `json:"conditioning,omitempty"` // as it was asked for; nil for a file that is older than this record
}

// RowCount says what became of the rows of the training features.
type RowCount struct {
	Train       int `json:"train"`
	Validation  int `json:"validation"`
	Calibration int `json:"calibration"`
	LeftOut     int `json:"left_out,omitempty"` // of calibration groups, beside the one row of each that calibrates
	Unlabelled  int `json:"unlabelled"`         // left out
}

// ScoreName names the score that verdicts give.
func (d *Detector) ScoreName() string {
	if d.Scoring == nil {
		return HeadScore
	}
	return d.Scoring.Name
}

// Dim returns the number of features that the detector reads: those of the embedding and
// of the layers of its Source.
func (d *Detector) Dim() int { return d.Heads[0].Dim() + features.LayersDim(d.Source.Layers) }

// Embeddings returns the features of the embedding of the rows x [n, D]: [n, E].
func (d *Detector) Embeddings(x []float32) []float32 {
	return columnsOf(x, d.Dim(), 0, d.Heads[0].Dim())
}

// Of returns rows of another detector of the same embedding as this one reads them: x
// itself, or without layers. It cannot add layers.
func (d *Detector) Of(other *Detector, x []float32) []float32 {
	if len(d.Source.Layers) == 0 {
		return other.Embeddings(x)
	}
	return x
}

// columnsOf returns the columns from … to−1 of rows of d values, copied unless they are all.
func columnsOf(x []float32, d, from, to int) []float32 {
	if to-from == d {
		return x
	}
	some := make([]float32, 0, len(x)/d*(to-from))
	for row := range slices.Chunk(x, d) {
		some = append(some, row[from:to]...)
	}
	return some
}

// LogConfidences returns log φ [n, C] for the rows x [n, D] of features; with
// several heads φ is the mean of theirs.
func (d *Detector) LogConfidences(x []float32) []float64 {
	x = d.Embeddings(x)
	return d.outputs(func(h int) head.Outputs { return d.Heads[h].All(x) }).LogConfidences
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
	return d.outputs(func(h int) head.Outputs { return d.Heads[h].All(x) })
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

// verdictBlock is how many rows are judged at once at least, and mostVerdicts at
// most, so that the confidences of a large set in all classes never lie in memory
// together.
const (
	verdictBlock = 512
	mostVerdicts = 16 * verdictBlock
)

// Verdicts judges the rows x [n, D] of features.
func (d *Detector) Verdicts(x []float32) []Verdict {
	verdicts, _ := d.VerdictsContext(context.Background(), x) // fails only when cancelled
	return verdicts
}

// VerdictsContext is Verdicts that stops with ctx.
func (d *Detector) VerdictsContext(ctx context.Context, x []float32) ([]Verdict, error) {
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
		if err := d.crossContext(ctx, verdicts[first:], block); err != nil {
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
		verdicts, err := d.VerdictsContext(ctx, x)
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
			predictors[h].Fill(o, embeddings)
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
