package evaluation

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// SummaryOptions says what to show of a detector. Only Detector is needed.
type SummaryOptions struct {
	Detector *detector.Detector
	// Features are the folders of the feature sets that it was trained on, in any
	// order; none means where they were at training, or beside the detector's file.
	Features []string
	// Roots are folders that images may come from; see [images.FeatureSet].
	Roots []string
	// FileOnly shows what the detector's file says and opens no feature sets.
	FileOnly bool

	Points  int // images of the map, at most; 0 means 600
	Closest int // images on both sides of the threshold together, at most; 0 means 24
}

// Summary describes a detector: its quality, its classes and its training.
type Summary struct {
	Detector   *detector.Detector
	Classes    []SummaryClass
	Validation *detector.Validation // nil without
	// FalseAlarms is the cost of each threshold, ascending, thinned to some
	// hundred; nil for a detector with thresholds by class, or with folds.
	FalseAlarms []FalseAlarms
	Map         *SummaryMap    // nil without feature sets
	Closest     []ClosestImage // calibration images by their distance from the threshold; nil likewise
	Lowest      []LowestImage  // those with the lowest p-values, the lowest first; nil likewise
	Missing     []error        // what is not known, and why; see options.Error

	data        *detector.TrainingData
	calibration *detector.Calibration
}

// SummaryClass is a class of the detector.
type SummaryClass struct {
	Name                           string
	Train, Validation, Calibration int // images; −1 where it is not known
	Right                          int // of the validation images
	Flagged                        detector.FlaggedImages
	Assessed                       *detector.AssessedClass // nil without class hold-out
}

// Shares returns the shares of the validation images that are given the class, and that are
// flagged; NaN where there are none.
func (c SummaryClass) Shares() (right, flagged float64) {
	of := func(n, of int) float64 {
		if of <= 0 {
			return math.NaN()
		}
		return float64(n) / float64(of)
	}
	return of(c.Right, c.Validation), of(c.Flagged.Flagged, c.Flagged.Images)
}

// MarshalJSON writes the name as class, the counts, and the shares as right and flagged; what
// is not known is null.
func (c SummaryClass) MarshalJSON() ([]byte, error) {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false) // whoever writes it does, or does not
	right, flagged := c.Shares()
	err := enc.Encode(struct {
		Class       string   `json:"class"`
		Train       *int     `json:"train"`
		Validation  *int     `json:"validation"`
		Calibration *int     `json:"calibration"`
		Right       *float64 `json:"right"`
		Flagged     *float64 `json:"flagged"`
	}{c.Name, known(c.Train, c.Train >= 0), known(c.Validation, c.Validation >= 0), known(c.Calibration, c.Calibration >= 0),
		known(right, !math.IsNaN(right)), known(flagged, !math.IsNaN(flagged))})
	return text.Bytes(), err
}

func known[T any](v T, is bool) *T {
	if !is {
		return nil
	}
	return &v
}

// AcceptedAlarms are the shares of false alarms at which [Summary.Caught] says what is
// caught.
var AcceptedAlarms = []float64{0.01, 0.02, 0.05, 0.1}

// Caught returns the shares of a class's images that are caught at AcceptedAlarms where the
// class is left out of the fitting, nil meaning the mean over all classes, and NaN where it
// is not known.
func (s *Summary) Caught(class *detector.AssessedClass) (caught []float64) {
	a := s.Detector.Assessment
	curve := a.CaughtAt
	if class != nil {
		curve = func(at float64) (float64, bool) { return class.CaughtAt(a, at) }
	}
	for _, share := range AcceptedAlarms {
		v, ok := curve(share)
		if !ok {
			v = math.NaN()
		}
		caught = append(caught, v)
	}
	return caught
}

// FalseAlarms is the cost of a threshold: the share of in-distribution images that is
// flagged, and the interval that holds the long-run share for these calibration
// images with a chance of 95%.
type FalseAlarms struct{ Threshold, Share, Low, High float64 }

// ClosestImage is a calibration image that is close to the threshold.
type ClosestImage struct {
	Image            images.Picture
	Score, Threshold float64
	Given            string
	OOD              bool
}

// LowestImage is a calibration image that a person should look at who is not sure that all
// belong.
type LowestImage struct {
	Image images.Picture
	training.ReviewedImage
}

// SummaryPart says what an image was used for.
type SummaryPart string

const (
	Training    SummaryPart = "training"
	Validating  SummaryPart = "validation"
	Calibrating SummaryPart = "calibration"
	LeftOut     SummaryPart = "left out"
)

// Summarise summarises a detector. Close the result when its images are no longer read.
func Summarise(ctx context.Context, o SummaryOptions) (_ *Summary, err error) {
	o.Points, o.Closest = cmp.Or(o.Points, 600), cmp.Or(o.Closest, 24)
	d := o.Detector
	s := &Summary{Detector: d, Validation: d.Validation}
	defer disk.OnError(&err, s.Close)
	if !o.FileOnly {
		s.data, err = d.OpenTraining(ctx, o.Features)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil && len(o.Features) > 0:
			return nil, err // the user named them
		case err != nil:
			s.missing("there are no pictures and no map of the images: %w", err)
		}
	}
	if s.data != nil {
		if err := s.fromFeatures(ctx, o); err != nil {
			return nil, err
		}
	}
	s.classes()
	s.falseAlarms()
	s.older()
	return s, nil
}

// Right counts the validation images that are given the right class, and all of them.
func (s *Summary) Right() (right, images int) {
	if s.Validation == nil {
		return 0, 0
	}
	for _, c := range s.Validation.Confusion {
		if images += c.Images; c.Label == c.Given {
			right += c.Images
		}
	}
	return right, images
}

// Close lets go of the feature sets.
func (s *Summary) Close() error {
	var errs []error
	if s.data != nil {
		errs = append(errs, s.data.Close())
	}
	if s.calibration != nil {
		errs = append(errs, s.calibration.Close())
	}
	return errors.Join(errs...)
}

func (s *Summary) missing(format string, args ...any) {
	s.Missing = append(s.Missing, fmt.Errorf(format, args...))
}

// fromFeatures adds what needs the rows that the detector was trained on.
func (s *Summary) fromFeatures(ctx context.Context, o SummaryOptions) error {
	if s.data.Unverified {
		s.missing("the detector's file is older than the record of its features: those that are shown have the right number of rows and classes, and no more is known of them")
	}
	for _, set := range s.data.Sets {
		if _, err := os.Stat(set.Root); len(o.Roots) == 0 && set.Root != "" && err != nil {
			s.Missing = append(s.Missing, options.Errorf("Roots", "the folder of the images %s is gone or cannot be read, so that they are not shown; name the folder that they are in now", set.Root))
		}
	}
	pictures, err := images.FeatureSet("training", "", o.Roots, s.data.Sets...)
	if err != nil {
		return err
	}
	parts := s.parts()
	if s.Validation == nil && len(s.Detector.Classes) > 1 {
		if err := s.validate(ctx); err != nil {
			return err
		}
	}
	if s.Map, err = s.drawMap(ctx, pictures, parts, o.Points); err != nil {
		return err
	}
	return s.closest(ctx, pictures, o)
}

// parts says what each row was used for.
func (s *Summary) parts() []SummaryPart {
	parts := make([]SummaryPart, len(s.data.Labels))
	for _, row := range s.data.Train {
		parts[row] = Training
	}
	for name, part := range map[string]SummaryPart{"validation": Validating, "calibration": Calibrating, "left_out": LeftOut} {
		for _, row := range s.Detector.Splits[name] {
			parts[row] = part
		}
	}
	return parts
}

// mostJudged bounds how many images are judged.
const mostJudged = 20_000

// validate counts the verdicts on the validation rows for a file that has no counts.
func (s *Summary) validate(ctx context.Context) error {
	rows := s.Detector.Splits["validation"]
	if len(rows) == 0 {
		return nil
	}
	v := &detector.Validation{Flagged: make([]detector.FlaggedImages, len(s.Detector.Classes))}
	err := s.Detector.EachVerdict(ctx, s.data.Row, features.Every(rows, mostJudged), func(row int, verdict detector.Verdict) {
		if y := int(s.data.Labels[row]); y >= 0 {
			v.Give(y, verdict)
			v.Flag(y, verdict)
		}
	})
	s.Validation = v
	return err
}

// mostLowest is how many images Lowest has at most.
const mostLowest = 300

// closest finds the calibration images that are closest to the threshold, and the lowest.
func (s *Summary) closest(ctx context.Context, pictures images.Set, o SummaryOptions) error {
	d := s.Detector
	switch {
	case len(d.Folds) > 0:
		s.missing("each image was judged by the fold that it was not in: the images closest to the threshold are not shown")
		return nil
	case math.IsInf(d.Threshold, -1):
		return nil
	}
	c, err := d.OpenCalibration(ctx, s.data, o.Features)
	var all []detector.CalibrationImage
	if err == nil {
		s.calibration = c
		all, err = c.Images(ctx)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		s.missing("the calibration images are not shown: %w", err)
		return nil
	}
	if len(d.Splits["calibration"]) == 0 {
		if pictures, err = images.FeatureSet("calibration", "", o.Roots, c.Sets...); err != nil {
			return err
		}
	}
	picture := func(row int) images.Picture {
		if pictures.Image != nil {
			return pictures.Image(row)
		}
		return images.Picture{Path: fmt.Sprintf("row %d", row)}
	}
	list, err := training.ReviewList(c, all, min(c.Some(), mostLowest))
	if err != nil {
		return err
	}
	for _, i := range list {
		s.Lowest = append(s.Lowest, LowestImage{picture(i.Row), i})
	}
	away := func(i detector.CalibrationImage) float64 { return math.Abs(i.Score - d.ThresholdOf(i.Label)) }
	slices.SortStableFunc(all, func(a, b detector.CalibrationImage) int { return cmp.Compare(away(a), away(b)) })
	for _, i := range all[:min(len(all), o.Closest)] {
		s.Closest = append(s.Closest, ClosestImage{Image: picture(i.Row), Score: i.Score, Threshold: d.ThresholdOf(i.Label), Given: i.Class, OOD: i.OOD})
	}
	return nil
}

// classes counts the images of each class.
func (s *Summary) classes() {
	d := s.Detector
	calibration := d.Training.ClassCalibration
	if calibration == nil && s.data != nil && len(d.Splits["calibration"]) > 0 {
		calibration = make([]int, len(d.Classes))
		for _, row := range d.Splits["calibration"] {
			if y := s.data.Labels[row]; y >= 0 {
				calibration[y]++
			}
		}
	}
	for i, name := range d.Classes {
		c := SummaryClass{Name: name, Train: -1, Validation: -1, Calibration: -1}
		if i < len(d.Training.ClassRows) {
			c.Train = d.Training.ClassRows[i]
		}
		if i < len(calibration) {
			c.Calibration = calibration[i]
		}
		if s.Validation != nil {
			c.Right, c.Validation = s.Validation.Right(i)
			c.Flagged = s.Validation.Flagged[i]
		}
		if d.Assessment != nil {
			if a, ok := d.Assessment.Classes[name]; ok {
				c.Assessed = &a
			}
		}
		s.Classes = append(s.Classes, c)
	}
}

// mostThresholds is how many thresholds FalseAlarms has, at most.
const mostThresholds = 200

// falseAlarms lists what thresholds cost.
func (s *Summary) falseAlarms() {
	d := s.Detector
	n := len(d.CalibrationScores)
	switch {
	case d.ByClass != nil:
		s.missing("each class has a threshold of its own: there is no one curve of false alarms")
		return
	case len(d.Folds) > 0:
		s.missing("the promise of folds is not about one threshold: there is no curve of false alarms")
		return
	}
	for _, rank := range ranks(n) {
		low, high := detector.FalseAlarmInterval(rank, n)
		s.FalseAlarms = append(s.FalseAlarms, FalseAlarms{Threshold: d.CalibrationScores[rank-1], Share: float64(rank) / float64(n+1), Low: low, High: high})
	}
}

// ranks returns at most mostThresholds of the ranks 1 to n: the lowest, which
// thresholds come from, and some of the others.
func ranks(n int) (some []int) {
	const half = mostThresholds / 2
	for k := 1; k <= n && k <= half; k++ {
		some = append(some, k)
	}
	for i := 1; n > half && i <= half; i++ {
		some = append(some, half+(n-half)*i/half)
	}
	return slices.Compact(some)
}

// older says what a file of an older program lacks.
func (s *Summary) older() {
	d := s.Detector
	if d.Assessment != nil && d.Assessment.Curve == nil {
		s.missing("the detector's file is older than the curve of what class hold-out catches: what it has is the share at 5%% false alarms; train again for the rest")
	}
	if s.Validation == nil && len(d.Classes) > 1 && d.Training.Rows.Validation > 0 {
		s.missing("the detector's file is older than the confusion matrix, and the validation images are not there to make it of")
	}
	if d.Assessment == nil {
		s.missing("no class hold-out was made: it is not known how well a new class would be noticed")
	}
}
