package detector

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/safetensors"
)

// Validation counts what a detector says of the validation images, which no head was
// trained on.
type Validation struct {
	Confusion []Confused      // in the order of labels, then of given classes; none is empty
	Flagged   []FlaggedImages // per class [C]
}

// Confused says how many images of a class the heads give a class.
type Confused struct{ Label, Given, Images int }

// FlaggedImages says how many images of a class are flagged.
type FlaggedImages struct {
	Flagged int
	Images  int // that were judged; of very many validation images not all are
}

// Give counts an image by the class that it is given.
func (v *Validation) Give(label int, verdict Verdict) {
	c := Confused{Label: label, Given: verdict.Label}
	at, known := slices.BinarySearchFunc(v.Confusion, c, func(a, b Confused) int {
		return cmp.Or(cmp.Compare(a.Label, b.Label), cmp.Compare(a.Given, b.Given))
	})
	if !known {
		v.Confusion = slices.Insert(v.Confusion, at, c)
	}
	v.Confusion[at].Images++
}

// Flag counts an image by whether it is flagged.
func (v *Validation) Flag(label int, verdict Verdict) {
	v.Flagged[label].Images++
	if verdict.OOD {
		v.Flagged[label].Flagged++
	}
}

// Right returns how many images of a class are given it, and how many there are.
func (v *Validation) Right(class int) (right, images int) {
	for _, c := range v.Confusion {
		if c.Label == class {
			images += c.Images
			if c.Given == class {
				right = c.Images
			}
		}
	}
	return right, images
}

// tensors are validation.confusion [K, 3] and validation.flagged [C, 2].
func (v *Validation) tensors() []safetensors.Tensor {
	if v == nil {
		return nil
	}
	confusion, flagged := []int64{}, []int64{}
	for _, c := range v.Confusion {
		confusion = append(confusion, int64(c.Label), int64(c.Given), int64(c.Images))
	}
	for _, f := range v.Flagged {
		flagged = append(flagged, int64(f.Flagged), int64(f.Images))
	}
	return []safetensors.Tensor{
		{Name: "validation.confusion", Shape: []int{len(v.Confusion), 3}, Data: confusion},
		{Name: "validation.flagged", Shape: []int{len(v.Flagged), 2}, Data: flagged},
	}
}

// readValidation reads what tensors wrote; files of before have none.
func (d *Detector) readValidation(r *safetensors.Reader) error {
	confusion, _, found := safetensors.Optional[int64](r, "validation.confusion")
	if !found {
		return r.Err
	}
	flagged, _ := safetensors.Values[int64](r, "validation.flagged")
	if r.Err != nil {
		return r.Err
	}
	if len(confusion)%3 != 0 || len(flagged) != 2*len(d.Classes) {
		return fmt.Errorf("it has %d numbers of validation.confusion and %d of validation.flagged for %d classes", len(confusion), len(flagged), len(d.Classes))
	}
	v := &Validation{}
	for i := 0; i < len(confusion); i += 3 {
		c := Confused{int(confusion[i]), int(confusion[i+1]), int(confusion[i+2])}
		if min(c.Label, c.Given, c.Images) < 0 || max(c.Label, c.Given) >= len(d.Classes) {
			return fmt.Errorf("validation.confusion has %d images of class %d in class %d, of %d", c.Images, c.Label, c.Given, len(d.Classes))
		}
		v.Confusion = append(v.Confusion, c)
	}
	for i := 0; i < len(flagged); i += 2 {
		f := FlaggedImages{int(flagged[i]), int(flagged[i+1])}
		if f.Flagged < 0 || f.Flagged > f.Images {
			return fmt.Errorf("validation.flagged has %d of %d images", f.Flagged, f.Images)
		}
		v.Flagged = append(v.Flagged, f)
	}
	d.Validation = v
	return nil
}

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

// AddedClass says how a class that images were added to was known before, and is now.
type AddedClass struct {
	Class         string `json:"class"`
	New           bool   `json:"new"` // the old detector did not know it
	Features      string `json:"features"`
	Images        int    `json:"images"`         // with features
	FlaggedBefore int    `json:"flagged_before"` // of Images, by the old detector
	HeldOut       int    `json:"held_out"`       // of Images, that the new detector was not trained on
	Right         int    `json:"right"`          // of HeldOut, given the class
	FlaggedAfter  int    `json:"flagged_after"`  // of HeldOut
}

// ChangedClass compares two detectors on images that neither was trained on.
type ChangedClass struct {
	Tally
	AUROCBefore float64 `json:"-"` // of class hold-out; NaN if unknown
	AUROCAfter  float64 `json:"-"`
	Kept        bool    `json:"-"` // AUROCAfter was not computed again
}

// Tally counts the images of a class by two detectors.
type Tally struct {
	Class         string `json:"class,omitempty"`
	Images        int    `json:"images"`
	RightBefore   int    `json:"right_before"`
	RightAfter    int    `json:"right_after"`
	FlaggedBefore int    `json:"flagged_before"`
	FlaggedAfter  int    `json:"flagged_after"`
}

// Count counts an image of a class that two detectors judged.
func (t *Tally) Count(class string, before, after Verdict) {
	one := map[bool]int{true: 1}
	t.Images++
	t.RightBefore += one[before.Class == class]
	t.RightAfter += one[after.Class == class]
	t.FlaggedBefore += one[before.OOD]
	t.FlaggedAfter += one[after.OOD]
}

// Both returns the verdicts of two detectors on some rows, whose features row gives as after
// reads them; before may lack their layers.
func Both(ctx context.Context, before, after *Detector, row func(int) []float32, rows []int) (was, is []Verdict, err error) {
	if err := after.EachVerdict(ctx, row, rows, func(_ int, v Verdict) { is = append(is, v) }); err != nil {
		return nil, nil, err
	}
	old := func(r int) []float32 { return row(r)[:before.Dim()] }
	err = before.EachVerdict(ctx, old, rows, func(_ int, v Verdict) { was = append(was, v) })
	return was, is, err
}
