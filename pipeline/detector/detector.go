// Package detector has the detector: the file that it is kept in, the verdicts that
// it gives on features, the scores that it can judge by, and the calibration of
// its threshold.
package detector

import (
	"context"
	"math"
	"slices"

	"mlrbfn/head"
)

// Detector is what training gives: everything that a verdict on an image's
// features needs, in one file.
type Detector struct {
	Classes []string     // names, in the order of the heads' outputs
	Heads   []*head.Head // one per seed; their confidences are averaged
	Seeds   []uint64     // what each head was trained with

	// Scoring gives the score to judge by in place of the heads' own; it may be
	// nil. Class and confidence are the heads' all the same.
	Scoring *Scoring

	// Threshold is the score below which an image is out of distribution;
	// −Inf where nothing is, for want of calibration images.
	Threshold float64
	TargetTPR float64   // share of in-distribution images that the threshold is to keep
	Scores    []float64 // of the calibration images, ascending

	Source   Source           // what made the features
	Training TrainingRecord   // how the heads were trained
	History  [][]head.Epoch   // per head
	Splits   map[string][]int // rows of the training features set aside, by "validation", "calibration" and "left_out"

	file string // that it was read from; "" for a new one
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

	// Split is "groups" if groups of rows were kept in one part of the split, ""
	// if each row was on its own; GroupBy is the pattern that named groups by paths.
	Split   string `json:"split,omitempty"`
	GroupBy string `json:"group_by,omitempty"`
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
		return OwnScore
	}
	return d.Scoring.Name
}

// Dim returns the number of features that the detector reads.
func (d *Detector) Dim() int { return d.Heads[0].Dim() }

// LogConfidences returns log φ [n, C] for the rows x [n, D] of features; with
// several heads φ is the mean of theirs.
func (d *Detector) LogConfidences(x []float32) []float64 {
	logConfidences, _ := d.outputs(func(h int) ([]float64, []float64) { return d.Heads[h].Outputs(x) })
	return logConfidences
}

// outputs returns the logarithm of the heads' mean confidence and the scores,
// from what each gives. It changes what the first gives. The score of heads
// that have one of their own is the mean of theirs, else that of the mean
// confidence.
func (d *Detector) outputs(of func(head int) (logConfidences, scores []float64)) (logConfidences, scores []float64) {
	logConfidences, scores = of(0)
	n := float64(len(d.Heads))
	for h := 1; h < len(d.Heads); h++ {
		l, s := of(h)
		for i, v := range l {
			logConfidences[i] = logAdd(logConfidences[i], v)
		}
		for i, v := range s {
			scores[i] += v
		}
	}
	if n > 1 {
		for i := range logConfidences {
			logConfidences[i] -= math.Log(n)
		}
		for i := range scores {
			scores[i] /= n
		}
	}
	if !d.Heads[0].Network.HasScore() {
		for i := range scores {
			_, scores[i] = best(logConfidences[i*len(d.Classes) : (i+1)*len(d.Classes)])
		}
	}
	return logConfidences, scores
}

// logAdd returns log(eᵃ + eᵇ).
func logAdd(a, b float64) float64 {
	a, b = max(a, b), min(a, b)
	if math.IsInf(b, -1) {
		return a
	}
	return a + math.Log1p(math.Exp(b-a))
}

// Verdict is what a detector says of one image.
type Verdict struct {
	Class      string  // the most confident class
	Label      int     // its index
	Confidence float64 // max_c φ_c in [0, 1]
	Score      float64 // higher = more in-distribution; log Confidence for the paper's heads
	OOD        bool    // Score < threshold
	// PValue is (1 + #{calibration scores ≤ Score}) / (n + 1): the chance
	// that an image like the training images scores this low.
	PValue float64
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
	const confidences = 1 << 19
	rows := max(min(confidences/len(d.Classes), mostVerdicts)/verdictBlock, 1) * verdictBlock
	for block := range slices.Chunk(x, rows*d.Dim()) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		logConfidences, scores := d.outputs(func(h int) ([]float64, []float64) { return d.Heads[h].Outputs(block) })
		if err := d.rescore(ctx, scores, block); err != nil {
			return nil, err
		}
		for i, score := range scores {
			verdicts = append(verdicts, d.verdict(logConfidences[i*len(d.Classes):(i+1)*len(d.Classes)], score))
		}
	}
	return verdicts, nil
}

// rescore puts the scores to judge the rows x by in the place of the heads' own.
// It fails only when cancelled.
func (d *Detector) rescore(ctx context.Context, scores []float64, x []float32) error {
	if d.Scoring == nil {
		return nil
	}
	return d.Scoring.Score(ctx, scores, d.Scoring.Batch(x), slices.Clone(scores))
}

// JudgeRows is how many rows a function of Detector.NewJudge takes at most: with
// so many, reading the conditioning's matrix no longer counts.
const JudgeRows = 16

// NewJudge returns a function that judges up to JudgeRows rows of features [n, D]
// and serves one goroutine. A row's verdict does not depend on the others.
func (d *Detector) NewJudge() func(rows []float32) []Verdict {
	classes := len(d.Classes)
	predictors, out, score := make([]*head.Predictor, len(d.Heads)), make([][]float64, len(d.Heads)), make([][]float64, len(d.Heads))
	for i, h := range d.Heads {
		predictors[i], out[i], score[i] = h.NewPredictor(), make([]float64, JudgeRows*classes), make([]float64, JudgeRows)
	}
	return func(rows []float32) []Verdict {
		n := len(rows) / d.Dim()
		logConfidences, scores := d.outputs(func(h int) ([]float64, []float64) {
			predictors[h].Outputs(out[h][:n*classes], score[h][:n], rows)
			return out[h][:n*classes], score[h][:n]
		})
		verdicts := make([]Verdict, n)
		for i := range verdicts {
			// Not all scores of a block are bit-identical to those of its rows alone.
			_ = d.rescore(context.Background(), scores[i:i+1], rows[i*d.Dim():(i+1)*d.Dim()]) // fails only when cancelled
			verdicts[i] = d.verdict(logConfidences[i*classes:(i+1)*classes], scores[i])
		}
		return verdicts
	}
}

// verdict judges the log φ [C] and the score of one image.
func (d *Detector) verdict(logConfidences []float64, score float64) Verdict {
	label, most := best(logConfidences)
	return Verdict{
		Class: d.Classes[label], Label: label,
		Confidence: math.Exp(most), Score: score,
		OOD: !(score >= d.Threshold), PValue: pValue(d.Scores, score),
	}
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
