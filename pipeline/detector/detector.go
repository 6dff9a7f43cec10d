// Package detector has the detector: the file that stores it, the verdicts that
// it gives on features, the scores that it can judge by, and the calibration of
// its threshold.
package detector

import (
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
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
	// file calibration.go says. CalibrationScores are those of all folds together then, and Threshold
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
	LinearC      float64                   `json:"linear_c,omitempty"`     // see head.LinearOptions
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
