package detector

import "slices"

// Assessment says how well images of a new class are told from the others: each
// class, or each group of classes, was left out of the fitting in turn, and its
// images were scored as out-of-distribution images are. Its JSON names are those of
// detector files and of the command's results.
type Assessment struct {
	AUROC float64 `json:"auroc"` // mean over the classes

	// Interval has the AUROC of one more class with a probability of 90%, if it is drawn
	// like these. nil with fewer than three classes, and in files that are older.
	Interval *[2]float64 `json:"auroc_interval,omitempty"`

	// Caught is the share of the images of classes that were left out that a
	// threshold with 5% false alarms flags, the mean over the classes; 0 where the
	// calibration images are too few for such a threshold.
	Caught  float64                  `json:"caught_at_5_percent"`
	Classes map[string]AssessedClass `json:"classes"`

	// FalseAlarms are shares of in-distribution images, ascending, and Curve the shares
	// of the images of classes that were left out that are caught where so many
	// are flagged, the means over the classes. Shares that the calibration images are too
	// few for are missing. Files that are older have neither.
	FalseAlarms []float64 `json:"false_alarms,omitempty"`
	Curve       []float64 `json:"curve,omitempty"`

	// Outliers is nil without known outliers.
	Outliers *AssessedOutliers `json:"outliers,omitempty"`
}

// AssessedOutliers says what known outliers add to the score. Each fold leaves some of
// them out, and is judged with the weights of the other folds.
type AssessedOutliers struct {
	Images   int     `json:"images"`   // that were fitted on
	Weight   float64 `json:"weight"`   // of the part; 0: it is dropped, and the gains are those of the least weight
	Outliers Gain    `json:"outliers"` // on outliers left out
	Classes  Gain    `json:"classes"`  // on classes left out
}

// Gain compares the score with and without a part, as means over folds.
type Gain struct {
	AUROC         float64 `json:"auroc"`
	AUROCWithout  float64 `json:"auroc_without"`
	Caught        float64 `json:"caught_at_5_percent"` // as Assessment.Caught
	CaughtWithout float64 `json:"caught_at_5_percent_without"`
}

// CaughtAt returns the share that is caught at a share of FalseAlarms, and whether the
// assessment has it.
func (a *Assessment) CaughtAt(falseAlarms float64) (float64, bool) {
	if a.FalseAlarms == nil && falseAlarms == 0.05 {
		return a.Caught, true
	}
	return at(a.FalseAlarms, a.Curve, falseAlarms)
}

// CaughtAt is Assessment.CaughtAt for a class of a.
func (c AssessedClass) CaughtAt(a *Assessment, falseAlarms float64) (float64, bool) {
	if a.FalseAlarms == nil && falseAlarms == 0.05 {
		return c.Caught, true
	}
	return at(a.FalseAlarms, c.Curve, falseAlarms)
}

func at(x, y []float64, want float64) (float64, bool) {
	if i := slices.Index(x, want); i >= 0 && i < len(y) {
		return y[i], true
	}
	return 0, false
}

// AssessedClass tells how well one class was noticed as new when it was left out.
type AssessedClass struct {
	AUROC    float64 `json:"auroc"`
	Caught   float64 `json:"caught_at_5_percent"`
	Images   int     `json:"images"`    // that were scored
	TakenFor string  `json:"taken_for"` // the class that most of its images were given

	Curve []float64 `json:"curve,omitempty"` // as that of the assessment

	// Kept: the values are those of the detector that images were added to.
	Kept bool `json:"kept,omitempty"`
}
