package detector

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/safetensors"
)

// This file finds the feature sets that a detector was trained on: they give the
// nearest training images, the pictures of its page, and the rows that it is
// trained on again with a class more.

// TrainingSet names a feature set that a detector was trained on. What it holds
// decides; Path is a hint. Its JSON names are those of detector files.
type TrainingSet struct {
	Path    string `json:"path"` // the folder, absolute, when it was trained on
	Use     string `json:"use"`  // ForTraining, ForValidation, ForCalibration or ForOutliers
	Rows    int    `json:"rows"`
	Content string `json:"content_sha256"` // see features.Set.Content
}

// Uses of a TrainingSet. Rows of ForTraining are also validation and calibration rows
// where these have no set of their own.
const (
	ForTraining    = "train"
	ForValidation  = "validation"
	ForCalibration = "calibration"
	ForOutliers    = "outliers"
)

// ErrTrainingSets is wrapped by the error of feature sets that are not, or not any
// more, those that a detector was trained on.
var ErrTrainingSets = errors.New("not the features that the detector was trained on")

// NewTrainingSet names an open feature set.
func NewTrainingSet(ctx context.Context, set *features.Set, use string) (TrainingSet, error) {
	path := set.Dir
	if !set.InMemory() && !bucket.IsURL(path) {
		var err error
		if path, err = filepath.Abs(set.Dir); err != nil {
			return TrainingSet{}, err
		}
	}
	content, err := set.Content(ctx)
	return TrainingSet{Path: path, Use: use, Rows: set.N, Content: content}, err
}

// TrainingData are the rows that a detector was trained on, as they lie in feature
// sets.
type TrainingData struct {
	Sets   []*features.Set
	Labels []int64 // [N], classes of the detector as it was trained; −1 for a row without or left out
	Train  []int   // the rows that its heads were trained on, ascending

	// Unverified says that the detector's file is older than the record of what it
	// was trained on: the sets have the right number of rows, features and classes,
	// and no more is known.
	Unverified bool

	first []int // row of each set
}

// OpenTraining opens the feature sets that the detector's heads were trained on: in
// dirs, in any order, or with none where they were at training, or beside the
// detector's file. The error wraps ErrTrainingSets where they are gone or others.
func (d *Detector) OpenTraining(ctx context.Context, dirs []string) (_ *TrainingData, err error) {
	return d.openTraining(ctx, dirs, d.Source.Layers)
}

// openTraining is OpenTraining of rows with some layers.
func (d *Detector) openTraining(ctx context.Context, dirs []string, layers []features.Layer) (_ *TrainingData, err error) {
	sets, err := d.openSets(ctx, ForTraining, dirs, layers)
	if err != nil {
		return nil, err
	}
	t := &TrainingData{Sets: sets, Unverified: len(d.Training.Sets) == 0}
	defer disk.OnError(&err, t.Close)
	for _, s := range sets {
		to := make([]int64, len(s.Classes))
		for i, class := range s.Classes {
			if to[i] = int64(slices.Index(d.Classes, class)); to[i] < 0 {
				return nil, fmt.Errorf("features %s have the class %q, which the detector does not know: %w", s.Dir, class, ErrTrainingSets)
			}
		}
		t.first = append(t.first, len(t.Labels))
		for _, y := range s.Labels() {
			if y >= 0 {
				y = to[y]
			}
			t.Labels = append(t.Labels, y)
		}
	}
	for row, class := range d.Relabelled {
		if row < 0 || row >= len(t.Labels) || class < -1 || class >= len(d.Classes) {
			return nil, fmt.Errorf("it has the label %d for row %d: %w", class, row, ErrTrainingSets)
		}
		t.Labels[row] = int64(class)
	}
	aside := make([]bool, len(t.Labels))
	for _, rows := range d.Splits {
		for _, row := range rows {
			if row < 0 || row >= len(aside) {
				return nil, fmt.Errorf("it set row %d aside, and there are %d: %w", row, len(aside), ErrTrainingSets)
			}
			aside[row] = true
		}
	}
	for row, y := range t.Labels {
		if y >= 0 && !aside[row] {
			t.Train = append(t.Train, row)
		}
	}
	if n := d.Training.Rows.Train; len(t.Train) != n {
		return nil, fmt.Errorf("%d rows are for training, and it was trained on %d: %w", len(t.Train), n, ErrTrainingSets)
	}
	return t, nil
}

// At returns the set that has a row, and the number of the row there.
func (t *TrainingData) At(row int) (*features.Set, int) {
	at, exact := slices.BinarySearch(t.first, row)
	if !exact {
		at--
	}
	for t.Sets[at].N == row-t.first[at] { // sets without rows
		at++
	}
	return t.Sets[at], row - t.first[at]
}

// OpenTable is [features.OpenTable] of rows as the detector reads them.
func (d *Detector) OpenTable(ctx context.Context, space *features.Space, dirs ...string) (*features.Table, error) {
	var sets []*features.Set
	for _, dir := range dirs {
		set, err := features.Open(ctx, dir)
		if err == nil {
			sets = append(sets, set)
			err = set.With(d.Source.Layers)
		}
		if err != nil {
			return nil, errors.Join(err, closeSets(sets))
		}
	}
	return features.NewTable(ctx, space, sets...)
}

// Row returns the features of a row.
func (t *TrainingData) Row(row int) []float32 {
	set, at := t.At(row)
	return set.Row(at)
}

// Close lets go of the sets' files.
func (t *TrainingData) Close() error { return closeSets(t.Sets) }

func closeSets(sets []*features.Set) error {
	return errors.Join(lists.Map(sets, (*features.Set).Close)...)
}

// OpenSets opens the feature sets that the detector had for one use, in their order,
// as OpenTraining does; nil if there were none.
func (d *Detector) OpenSets(ctx context.Context, use string, dirs []string) ([]*features.Set, error) {
	return d.openSets(ctx, use, dirs, d.Source.Layers)
}

// openSets is OpenSets of rows with some layers.
func (d *Detector) openSets(ctx context.Context, use string, dirs []string, layers []features.Layer) (_ []*features.Set, err error) {
	if len(d.Training.Sets) == 0 {
		return d.openUnnamed(ctx, use, dirs)
	}
	var sets []*features.Set
	defer disk.OnError(&err, func() error { return closeSets(sets) })
	for _, named := range d.Training.Sets {
		if named.Use != use {
			continue
		}
		set, err := d.openNamed(ctx, named, dirs)
		if err != nil {
			return nil, err
		}
		sets = append(sets, set)
		if err := set.With(layers); err != nil {
			return nil, err
		}
	}
	return sets, nil
}

// openNamed opens the first of some folders that has the content of a named set.
func (d *Detector) openNamed(ctx context.Context, named TrainingSet, dirs []string) (*features.Set, error) {
	if len(dirs) == 0 {
		// A path from a file is no reason to look into the working directory.
		if filepath.IsAbs(named.Path) {
			dirs = append(dirs, named.Path)
		}
		if d.file != "" {
			dirs = append(dirs, filepath.Join(filepath.Dir(d.file), filepath.Base(named.Path)))
		}
	}
	var errs []error
	for _, dir := range dirs {
		set, err := features.Open(ctx, dir)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		content := ""
		if set.N == named.Rows {
			if content, err = set.Content(ctx); ctx.Err() != nil {
				return nil, errors.Join(ctx.Err(), set.Close())
			}
		}
		if err == nil && content == named.Content {
			return set, nil
		}
		if err == nil {
			err = fmt.Errorf("%s has other images or labels now", dir)
		}
		errs = append(errs, err, set.Close())
	}
	return nil, options.Errorf("Features", "the feature set that was at %s, with %d rows, cannot be found: %w: %w; name the folder that it is in now", named.Path, named.Rows, ErrTrainingSets, errors.Join(errs...))
}

// openUnnamed is OpenSets for a detector whose file does not record content.
func (d *Detector) openUnnamed(ctx context.Context, use string, dirs []string) (_ []*features.Set, err error) {
	rows := d.Training.Rows.Train + d.Training.Rows.Unlabelled
	for _, aside := range d.Splits {
		rows += len(aside)
	}
	switch {
	case use != ForTraining:
		return nil, fmt.Errorf("the detector's file is older than the record of the features for %s: %w", use, ErrTrainingSets)
	case len(dirs) == 0:
		dirs = slices.DeleteFunc(slices.Clone(d.Training.Features), func(dir string) bool { return !filepath.IsAbs(dir) })
		if len(dirs) < len(d.Training.Features) || len(dirs) == 0 {
			return nil, options.Errorf("Features", "the detector's file is older than the record of what it was trained on; name its feature sets (%q): %w", d.Training.Features, ErrTrainingSets)
		}
	}
	var sets []*features.Set
	defer disk.OnError(&err, func() error { return closeSets(sets) })
	var classes []string
	n := 0
	for _, dir := range dirs {
		set, err := features.Open(ctx, dir)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", ErrTrainingSets, err)
		}
		if err != nil {
			return nil, options.Errorf("Features", "%w", err)
		}
		sets = append(sets, set)
		classes = append(classes, set.Classes...)
		n += set.N
		if set.D != d.Heads[0].Dim() || !features.Comparable(set.Space(), d.Source.Space()) {
			return nil, options.Errorf("Features", "features %s are of another model or preprocessing: %w", dir, ErrTrainingSets)
		}
	}
	slices.Sort(classes)
	if !slices.Equal(slices.Compact(classes), slices.Sorted(slices.Values(d.Classes))) || n != rows {
		return nil, options.Errorf("Features", "features %q have %d rows or other classes, and the detector was trained on %d: %w", dirs, n, rows, ErrTrainingSets)
	}
	return sets, nil
}

// encodePaths returns the record with paths as files have them.
func (r TrainingRecord) encodePaths(as func(string) string) TrainingRecord {
	r.Sets = slices.Clone(r.Sets)
	for i := range r.Sets {
		r.Sets[i].Path = as(r.Sets[i].Path)
	}
	return r
}

// relabelledTensors are labels.rows [n], ascending, and labels.classes [n]; nothing
// where no label was changed.
func (d *Detector) relabelledTensors() []safetensors.Tensor {
	if len(d.Relabelled) == 0 {
		return nil
	}
	var rows, classes []int64
	for _, row := range slices.Sorted(maps.Keys(d.Relabelled)) {
		rows, classes = append(rows, int64(row)), append(classes, int64(d.Relabelled[row]))
	}
	return []safetensors.Tensor{{Name: "labels.rows", Shape: []int{len(rows)}, Data: rows}, {Name: "labels.classes", Shape: []int{len(rows)}, Data: classes}}
}

func (d *Detector) readRelabelled(r *safetensors.Reader) error {
	rows, _, found := safetensors.Optional[int64](r, "labels.rows")
	if !found {
		return r.Err
	}
	classes, _ := safetensors.Values[int64](r, "labels.classes")
	if r.Err != nil {
		return r.Err
	}
	if len(classes) != len(rows) {
		return fmt.Errorf("tensor labels.classes has %d values, and labels.rows %d", len(classes), len(rows))
	}
	d.Relabelled = make(map[int]int, len(rows))
	for i, row := range rows {
		d.Relabelled[int(row)] = int(classes[i])
	}
	return nil
}

// openTraining opens the features that the detector was trained on: those in named,
// or else those that it names where they are found unchanged. Then it is no error if
// there are none, but a note.
func openTraining(ctx context.Context, d *Detector, named []string) (_ *TrainingData, note string, err error) {
	data, err := d.openTraining(ctx, named, nil)
	if err == nil || ctx.Err() != nil || len(named) > 0 {
		return data, "", err
	}
	if about, ok := errors.AsType[*options.Error](err); ok {
		err = about.Err
	}
	return nil, "the training features are missing (‹Features›), so that no training images are shown: " + err.Error(), nil
}

// reference returns that of the detector. Older ones have none; then it is that of
// the calibration rows among the training features, if these give the calibration
// scores, or of a score of one part the calibration scores themselves. It is nil
// where nothing is known.
func (e *Explainer) reference(ctx context.Context) (*Reference, error) {
	d := e.detector
	switch {
	case d.Reference != nil:
		return d.Reference, nil
	case len(d.Folds) == 0 && len(d.PartNames()) == 1 && len(d.CalibrationScores) > 0:
		return &Reference{Of: "calibration", Parts: [][]float64{d.CalibrationScores}}, nil
	case e.bank == nil || len(d.Folds) > 0 || len(d.Source.Layers) > 0:
		return nil, nil
	}
	rows := d.Splits["calibration"]
	var x []float32
	for _, row := range features.Every(rows, ReferenceImages) {
		x = append(x, e.data.Row(row)...)
	}
	if len(x) == 0 {
		return nil, nil
	}
	verdicts, err := d.Verdicts(ctx, x)
	if err != nil {
		return nil, err
	}
	for _, v := range verdicts {
		const rounding = 1e-6
		at, _ := slices.BinarySearch(d.CalibrationScores, v.Score-rounding*(1+math.Abs(v.Score)))
		if at == len(d.CalibrationScores) || d.CalibrationScores[at] > v.Score+rounding*(1+math.Abs(v.Score)) {
			return nil, nil // other rows, by now
		}
	}
	return d.NewReference(ctx, "calibration", x)
}

// BundleFile is the name of the detector in a bundle's folder.
const BundleFile = "detector.safetensors"

// Bundle copies the model that the detector's features come from, with its
// configurations, into the folder model beside the detector file, so that both
// work wherever the folder is copied to. A detector of pixels has no model.
func (d *Detector) Bundle(ctx context.Context, file string) error {
	if d.Source.Model == extractor.PixelsName {
		return nil
	}
	folder := filepath.Dir(file)
	r := extractor.ModelReference{SHA256: d.Source.SHA256, Hint: d.Source.Model, Beside: folder}
	return r.Copy(ctx, filepath.Join(folder, "model"))
}
