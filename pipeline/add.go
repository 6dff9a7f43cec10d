package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// AddOptions says which images to add to what a detector knows.
type AddOptions struct {
	Detector *Detector
	Images   []AddedImages // at least one, or Train.Outliers

	// Features are the folders of the feature sets that the detector was trained on, in
	// any order; none means where they were, or beside the detector's file.
	Features []string

	// Extract says how to extract the new images: Model (where the backbone is now; ""
	// finds it), Options and Advise count, and the rest is the detector's.
	Extract ExtractOptions
	// Extracting, where set, is told before images are extracted.
	Extracting func(AddedImages)
	Training   func() // where set, is called before training begins
	// Train says how to train: Checkpoint, CheckpointEvery, Resume, Resumed, Progress,
	// Memory, Scratch and Tool count; Outliers join those of the detector; the rest is as
	// the detector was trained.
	Train TrainOptions
}

// AddedImages are images of one class, which the detector may know or not.
type AddedImages struct {
	Class  string
	Folder string // all images in it and below are of the class; or a list, tar or Parquet file of images, as ExtractOptions.Sources has them
	// Features is the folder that their feature set is written to. One that is there,
	// whole or unfinished, is continued.
	Features string
}

// Addition says what adding images did, on images that neither the old nor the new
// detector was trained on.
type Addition struct {
	Added   []detector.AddedClass   `json:"added"`   // in the order of AddOptions.Images
	Classes []detector.ChangedClass `json:"classes"` // that the old detector knew
	All     detector.ChangedClass   `json:"all"`     // of these together
	// HeldOut says which images of the known classes were compared: "validation", or
	// where there are none "calibration".
	HeldOut string `json:"held_out"`
	// AUROCBefore and AUROCAfter are those of class hold-out; nil without it.
	AUROCBefore *float64           `json:"auroc_before"`
	AUROCAfter  *float64           `json:"auroc_after"`
	Failed      []features.Failure `json:"failed"` // images that could not be read
	Notes       []string           `json:"-"`      // what is not as it was in the old training
}

// Add trains a detector anew with more images, of classes that it knows or of new
// ones. Only the new images go through the model; the features of the others are those
// that the detector was trained on. Rows that were set aside for validation and
// calibration stay set aside. The result is that of [Train] with the options of the
// detector, Keep, and the new feature sets after the old ones.
//
// The error wraps detector.ErrTrainingSets if the old features are gone or are others
// now. An interrupted run continues where it was when it is called again with the same
// options.
func Add(ctx context.Context, opts AddOptions) (*Detector, *TrainResult, *Addition, error) {
	o, notes, err := training.OptionsOf(ctx, opts.Detector, opts.Features)
	if err != nil {
		return nil, nil, nil, err
	}
	if len(opts.Images)+len(opts.Train.Outliers) == 0 {
		return nil, nil, nil, options.Errorf("Add", "no images are named")
	}
	change := &Addition{Notes: notes, Added: []detector.AddedClass{}, Failed: []features.Failure{}}
	known := len(o.Features)
	for _, added := range opts.Images {
		if added.Class == "" {
			return nil, nil, nil, options.Errorf("Add", "the class of %s has no name", added.Folder)
		}
		if opts.Extracting != nil {
			opts.Extracting(added)
		}
		e := opts.Extract
		e.Detector, e.Class, e.Images, e.Out = opts.Detector, added.Class, added.Folder, added.Features
		if info, err := os.Stat(added.Folder); err == nil && info.Mode().IsRegular() && !images.IsIDX(added.Folder) {
			e.Images, e.Sources = "", []string{added.Folder}
		}
		result, err := Extract(ctx, e)
		if err != nil {
			return nil, nil, nil, err
		}
		change.Failed = append(change.Failed, result.Failed...)
		change.Added = append(change.Added, detector.AddedClass{
			Class: added.Class, New: !slices.Contains(opts.Detector.Classes, added.Class), Features: added.Features, Images: result.Meta.N})
		o.Features = append(o.Features, added.Features)
	}
	t := opts.Train
	o.Checkpoint, o.CheckpointEvery, o.Resume, o.Resumed, o.Progress = t.Checkpoint, t.CheckpointEvery, t.Resume, t.Resumed, t.Progress
	o.Memory, o.Scratch, o.Tool, o.Outliers = t.Memory, t.Scratch, t.Tool, slices.Concat(o.Outliers, t.Outliers)
	o.AllowDriftedFeatures = opts.Extract.AllowDriftedFeatures
	if opts.Training != nil {
		opts.Training()
	}
	d, result, err := Train(ctx, o)
	if err != nil {
		return nil, nil, nil, err
	}
	return d, result, change, change.compare(ctx, opts.Detector, d, known)
}

// mostCompared bounds how many images are compared.
const mostCompared = 20_000

// compare judges images by the detectors before and after; the first feature sets of
// the latter, known in number, are those of the former.
func (a *Addition) compare(ctx context.Context, before, after *Detector, known int) (err error) {
	data, err := after.OpenTraining(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, data.Close()) }()
	first := 0 // row of the sets that were added
	for _, set := range data.Sets[:known] {
		first += set.N
	}
	held := func(part string, from, to int) (rows []int) {
		for _, row := range after.Splits[part] {
			if row >= from && row < to {
				rows = append(rows, row)
			}
		}
		return rows
	}

	// Classes that were known, on images that were set aside before.
	row, label := data.Row, func(row int) string { return after.Classes[data.Labels[row]] }
	a.HeldOut = detector.ForValidation
	rows := held("validation", 0, first)
	if len(rows) == 0 {
		sets, err := before.OpenSets(ctx, detector.ForValidation, nil)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil && len(sets) > 0 {
			set := sets[0]
			defer func() { err = errors.Join(err, set.Close()) }()
			if err := set.With(after.Source.Layers); err != nil {
				return err
			}
			row, label = set.Row, func(row int) string { return set.Classes[set.Labels()[row]] }
			for i, y := range set.Labels() {
				if y >= 0 {
					rows = append(rows, i)
				}
			}
		}
	}
	if len(rows) == 0 {
		a.HeldOut, rows = detector.ForCalibration, held("calibration", 0, first)
	}
	if err := a.compareKnown(ctx, before, after, row, label, rows); err != nil {
		return err
	}
	return a.compareAdded(ctx, before, after, data, known, first, held)
}

// compareKnown compares the detectors on rows of classes that were known.
func (a *Addition) compareKnown(ctx context.Context, before, after *Detector, row func(int) []float32, label func(int) string, rows []int) error {
	a.All.Class = "all of them"
	a.Classes = make([]detector.ChangedClass, len(before.Classes))
	for i, class := range before.Classes {
		a.Classes[i].Class = class
	}
	a.assess(before, after)
	rows = features.Every(rows, mostCompared)
	was, is, err := detector.Both(ctx, before, after, row, rows)
	if err != nil {
		return err
	}
	for i, r := range rows {
		class := label(r)
		for _, c := range []*detector.ChangedClass{&a.All, &a.Classes[slices.Index(before.Classes, class)]} {
			c.Count(class, was[i], is[i])
		}
	}
	return nil
}

// assess says how well each class that was known would be noticed if it were new.
func (a *Addition) assess(before, after *Detector) {
	held := func(d *Detector, class string) (auroc float64, kept bool) {
		if d.Assessment != nil {
			if c, ok := d.Assessment.Classes[class]; ok {
				return c.AUROC, c.Kept
			}
		}
		return math.NaN(), false
	}
	for i, class := range before.Classes {
		c := &a.Classes[i]
		c.AUROCBefore, _ = held(before, class)
		if c.AUROCAfter, c.Kept = held(after, class); c.Kept {
			c.AUROCAfter = math.NaN()
		}
	}
	a.All.AUROCBefore, a.All.AUROCAfter = math.NaN(), math.NaN()
	if before.Assessment != nil {
		a.AUROCBefore, a.All.AUROCBefore = &before.Assessment.AUROC, before.Assessment.AUROC
	}
	if after.Assessment != nil {
		a.AUROCAfter, a.All.AUROCAfter = &after.Assessment.AUROC, after.Assessment.AUROC
	}
}

// compareAdded compares them on the images that were added, whose rows begin at first.
func (a *Addition) compareAdded(ctx context.Context, before, after *Detector, data *detector.TrainingData, known, first int, held func(string, int, int) []int) error {
	for i := range a.Added {
		added := &a.Added[i]
		to := first + data.Sets[known+i].N
		var rows []int
		for r := first; r < to; r++ {
			if data.Labels[r] >= 0 {
				rows = append(rows, r)
			}
		}
		if len(rows) > mostCompared {
			a.Notes = append(a.Notes, fmt.Sprintf("of the images of %s, every n-th was judged by both detectors, %d in all", added.Class, mostCompared))
			rows = features.Every(rows, mostCompared)
			added.Images = len(rows)
		}
		was, is, err := detector.Both(ctx, before, after, data.Row, rows)
		if err != nil {
			return err
		}
		aside := held("validation", first, to)
		if len(aside) == 0 {
			aside = held("calibration", first, to)
		}
		for i, r := range rows {
			added.FlaggedBefore += one(was[i].OOD)
			if _, found := slices.BinarySearch(aside, r); found {
				added.HeldOut++
				added.Right += one(is[i].Class == added.Class)
				added.FlaggedAfter += one(is[i].OOD)
			}
		}
		first = to
	}
	return nil
}

// one counts what is true.
func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
