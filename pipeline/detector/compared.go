package detector

import "context"

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
