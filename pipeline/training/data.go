package training

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// Data is the rows that heads are trained and validated on, to train several kinds
// of head on the same rows; [Train] opens its own.
type Data struct {
	*features.Table                 // the training features, unlabelled rows included
	Held            *features.Table // validation features of their own, or nil
	Options         Options
	Warnings        []string // what is odd about the features

	groups            []int // of the rows, nil where each is one of its own
	copies            int   // rows that are like others
	different         int   // groups of rows with identical or nearly identical features, each alone without one
	calibrated        []detector.Verdict
	sample            []float32 // features of calibration images, at most detector.ReferenceImages
	leftOut           int       // calibration rows that are not one of their group's
	split             features.Parts
	train, validation features.Rows
	space             *features.Space
	begin             *head.Linear       // that a residual head begins as, once the rows are conditioned; nil: the class means
	began             *head.FittedLinear // the same, as it was fitted
	excluded          int                // rows that Exclude took the label of
	dropped           int                // hard rows that are in no part of the split
	relabelled        map[int]int        // what Exclude and Relabel changed; see detector.Detector
	hard              map[int]bool       // rows of Exclude that may measure and calibrate, and do not train
	kept              *kept              // of Options.Keep; nil without
	isFold            bool               // of the calibration, whose assessment nobody reads
	calibratedOn      []detector.TrainingSet
	outliers          *outliers // nil: none, or too few
	outlierSets       []detector.TrainingSet
	layers            []features.Layer   // that all sets have, for parts of the score; nil for none
	patches           *extractor.Patches // the model that one of layers is by; nil without
	fitted            map[int]bool       // groups with an image that this was fitted on, which all train
	made              []features.Rows    // rows of train and validation, until release
}

// withDefaults checks options and fills in the zero fields.
func (opts Options) withDefaults() (_ Options, err error) {
	if len(opts.Seeds) == 0 {
		opts.Seeds = DefaultSeeds()
	}
	opts.TargetTPR = cmp.Or(opts.TargetTPR, DefaultTargetTPR)
	if err := opts.withHeadDefaults(); err != nil {
		return opts, err
	}
	opts.Score = cmp.Or(opts.Score, detector.JoinedScore)
	_, ensemble, err := detector.ScoreParts(opts.Score)
	if err != nil {
		return opts, options.Errorf("Score", "%w", err)
	}
	if ensemble && opts.Validation.None {
		return opts, errNoScale
	}
	if err := opts.checkOutliers(); err != nil {
		return opts, err
	}
	if n := opts.Calibration.Folds; opts.Validation.Folds != 0 || n < 0 || n == 1 {
		return opts, options.Errorf("Calibration", "%d folds: only calibration has folds, at least 2", max(n, opts.Validation.Folds))
	}
	if opts.Rows != nil {
		opts.Features = []string{opts.Rows.Dir}
	}
	if len(opts.Features) == 0 {
		return opts, options.Errorf("Features", "none are named")
	}
	if !(opts.TargetTPR > 0 && opts.TargetTPR < 1) {
		return opts, options.Errorf("TargetTPR", "%g does not lie between 0 and 1", opts.TargetTPR)
	}
	if opts.PerClass && opts.Calibration.Folds > 0 {
		return opts, options.Errorf("PerClass", "it needs calibration images that are set aside, and folds set none aside")
	}
	opts.Memory = cmp.Or(opts.Memory, features.DefaultMemory())
	return opts, nil
}

// Open opens the feature sets that the options name and divides their rows. The
// options that it keeps have their defaults filled in.
func Open(ctx context.Context, opts Options) (_ *Data, err error) {
	if opts, err = opts.withDefaults(); err != nil {
		return nil, err
	}
	sets := slices.Concat(opts.Features, opts.Outliers)
	for _, s := range []Share{opts.Validation, opts.Calibration} {
		if s.Features != "" {
			sets = append(sets, s.Features)
		}
	}
	if err := features.Distinct(sets); err != nil {
		return nil, err
	}
	space := features.NewSpace(opts.Memory, opts.Scratch, min(len(opts.Seeds), runtime.GOMAXPROCS(0)))
	var t *features.Table
	if opts.Rows != nil {
		t, err = features.NewTable(ctx, space, opts.Rows)
	} else {
		t, err = features.OpenTable(ctx, space, opts.Features...)
	}
	if err != nil {
		return nil, errors.Join(err, space.Close())
	}
	data := &Data{Table: t, Options: opts, space: space}
	defer disk.OnError(&err, data.Close)
	if err := data.sameFeatures(ctx); err != nil {
		return nil, err
	}
	if err := data.keep(ctx); err != nil {
		return nil, err
	}
	data.oneFolder()
	if err := data.correct(); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(t.Labels, func(y int64) bool { return y >= 0 }) {
		return nil, fmt.Errorf("features %s have no labels to train on: extract them from a folder with one subfolder of images per class", opts.Features[0])
	}
	if dir := opts.Validation.Features; dir != "" {
		if data.validation, err = data.openValidation(ctx, dir); err != nil {
			return nil, err
		}
	}
	if err := data.findGroups(ctx); err != nil {
		return nil, err
	}
	if err := data.findFitted(); err != nil {
		return nil, err
	}
	if err := data.openOutliers(ctx); err != nil {
		return nil, err
	}
	if data, err = data.resplit(opts.Seeds[0]); err != nil {
		return nil, err
	}
	if set := opts.Calibration; opts.GroupBy != "" && !set.None && set.Features == "" && len(data.split.OneGroup) == data.labelled() {
		return nil, options.Errorf("GroupBy", "%s makes one group of all images of a class, and of one group no image can be set aside to calibrate by; it has to tell the groups in a class apart, such as the videos", opts.GroupBy)
	}
	if opts.Calibration.Auto && !opts.PerClass && len(data.split.Calibration) < detector.ScoresNeeded(opts.TargetTPR) {
		data.Options.Calibration = Share{Folds: autoFolds}
		if data, err = data.resplit(opts.Seeds[0]); err != nil {
			return nil, err
		}
	}
	data.Options.Calibration.Auto = false
	data.Options.Train = data.Options.Train.Within(data.train.Len())
	data.dropHard()
	data.warn()
	return data, nil
}

// sameFeatures compares what the model answered where the sets were made, those of
// validation, of calibration and of outliers included.
func (t *Data) sameFeatures(ctx context.Context) (err error) {
	sets, dirs := slices.Clone(t.Sets), slices.Clone(t.Options.Outliers)
	for _, share := range []Share{t.Options.Validation, t.Options.Calibration} {
		if share.Features != "" {
			dirs = append(dirs, share.Features)
		}
	}
	for _, dir := range dirs {
		set, openErr := features.Open(ctx, dir)
		if openErr != nil {
			return openErr
		}
		defer func() { err = errors.Join(err, set.Close()) }()
		sets = append(sets, set)
	}
	t.layers = t.Sets[0].Layers
	for _, set := range sets {
		if !slices.Equal(set.Layers, t.layers) {
			t.layers = nil
		}
	}
	return features.CheckProbes(sets, t.Options.AllowDriftedFeatures, func(text string) { t.Warnings = append(t.Warnings, text) })
}

// oneFolder makes one class of images that lie in a folder without subfolders: good parts, say,
// and nothing else. It has the name of the folder.
func (t *Data) oneFolder() {
	if len(t.Classes) > 0 || t.Sets[0].Root == "" {
		return
	}
	name := filepath.Base(filepath.FromSlash(t.Sets[0].Root))
	t.Classes, t.Labels, t.relabelled = []string{name}, make([]int64, len(t.Labels)), map[int]int{}
	for row := range t.Labels {
		t.relabelled[row] = 0
	}
	t.Warnings = append(t.Warnings, fmt.Sprintf("the images lie in no folder of a class: all of them are the class %q", name))
}

// correct changes labels as Exclude and Relabel say.
func (t *Data) correct() error {
	var lists [2][]Issue
	read := []func(string) ([]Issue, error){ReadExcluded, ReadIssues}
	for i, file := range []string{t.Options.Exclude, t.Options.Relabel} {
		if file == "" {
			continue
		}
		var err error
		if lists[i], err = read[i](file); err != nil {
			return options.Errorf([]string{"Exclude", "Relabel"}[i], "%w", err)
		}
	}
	if lists[0] == nil && lists[1] == nil {
		return nil
	}
	labels, hard, err := CorrectedLabels(t.Labels, t.Classes, t.Sets, lists[0], lists[1])
	if err != nil {
		return options.Errorf(cmp.Or(map[bool]string{true: "Exclude"}[t.Options.Exclude != ""], "Relabel"), "%w", err)
	}
	if t.relabelled == nil {
		t.relabelled = map[int]int{}
	}
	excluded, relabelled := 0, 0
	for i, y := range t.Labels {
		switch {
		case labels[i] == y:
			continue
		case labels[i] < 0:
			excluded++
		default:
			relabelled++
		}
		t.relabelled[i] = int(labels[i])
	}
	t.Labels = labels
	t.hard = hard
	t.excluded += excluded
	said := fmt.Sprintf("as the lists of ‹Exclude› and ‹Relabel› say, images left out of all parts: %d; images given another label: %d", excluded, relabelled)
	if excluded > 0 {
		said += ". What is promised holds for images like those that are left"
	}
	t.Warnings = append(t.Warnings, said)
	return nil
}

// dropHard notes the hard rows that are in no part of the split, so that they count as
// left out, and says where the others are.
func (t *Data) dropHard() {
	if len(t.hard) == 0 {
		return
	}
	count := func(rows []int) (n int) {
		for _, row := range rows {
			if t.hard[row] {
				n++
			}
		}
		return n
	}
	validation, calibration := count(t.split.Validation), count(t.split.Calibration)+count(t.split.LeftOut)
	aside := map[int]bool{}
	for _, row := range slices.Concat(t.split.Validation, t.split.Calibration, t.split.LeftOut) {
		aside[row] = true
	}
	for row := range t.hard {
		if !aside[row] && t.Labels[row] >= 0 {
			t.relabelled[row] = -1
			t.dropped++
		}
	}
	t.Warnings = append(t.Warnings, fmt.Sprintf("images that issues.csv has as wrong labels or outliers: %d are not trained on; %d stay among the validation and %d among the calibration images, since new images will be as hard: without these the threshold would flag too many, and the assessment be too good. If nobody looked through the list, the detector knows easier images than will come",
		t.dropped, validation, calibration))
}

// resplit returns the same data with the parts that a seed gives.
func (t *Data) resplit(seed uint64) (*Data, error) {
	other := *t
	var err error
	if other.split, err = t.parts(seed); err != nil {
		return t, err
	}
	other.leftOut = len(other.split.LeftOut)
	if len(t.hard) > 0 {
		other.split.Train = slices.DeleteFunc(slices.Clone(other.split.Train), func(row int) bool { return t.hard[row] })
	}
	other.train = t.With(other.split.Train)
	if t.Held == nil {
		other.validation = t.With(other.split.Validation)
	}
	return &other, nil
}

// condition fits the conditioning on the training rows and puts conditioned
// copies in the place of the training and validation rows, until release. It
// returns nil where there is nothing to do.
func (t *Data) condition(ctx context.Context) (*head.Conditioning, error) {
	t.Options.stage("conditioning", 0, -1)
	o := t.Options.Conditioning
	if t.reuses() {
		o = head.ConditioningOptions{}
		if c := t.Options.Keep.Heads[0].Conditioning; c != nil {
			o = c.ConditioningOptions
		}
	}
	o.Memory = cmp.Or(o.Memory, t.Options.Memory)
	c, err := head.FitConditioning(ctx, t.train, t.validation, len(t.Classes), o)
	if err != nil {
		return nil, err
	}
	if c == nil {
		if t.validation.Window() == 0 {
			return nil, nil
		}
		// Each epoch would read all the file for a few of its rows.
		return nil, t.replace(&t.validation, t.D, func(write func(int, []float32) error) error {
			for i, r := range t.validation.Index {
				if err := errors.Join(ctx.Err(), write(i, t.validation.Row(r))); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if t.begin, t.began, err = t.start(ctx, c, t.train, t.validation, len(t.Classes), nil); err != nil {
		return nil, err
	}
	for _, data := range []*features.Rows{&t.train, &t.validation} {
		err := t.replace(data, c.Out(), func(write func(int, []float32) error) error {
			return c.Each(ctx, *data, write)
		})
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// replace puts rows of d values, which fill writes, in the place of data's.
func (t *Data) replace(data *features.Rows, d int, fill func(write func(at int, rows []float32) error) error) error {
	made, err := t.space.Make(d, data.Chosen(), fill)
	if err != nil {
		return err
	}
	t.made = append(t.made, made)
	*data = made
	return nil
}

// release frees the copies that condition made.
func (t *Data) release() error {
	errs := lists.Map(t.made, features.Rows.Close)
	t.made = nil
	return errors.Join(errs...)
}

// openValidation opens features of their own to validate on.
func (t *Data) openValidation(ctx context.Context, dir string) (features.Rows, error) {
	var err error
	if t.Held, err = features.OpenTableLike(ctx, t.space, t.Sets[0], dir); err != nil {
		return features.Rows{}, err
	}
	labels, err := features.Relabel(t.Held.Sets[0], t.Classes)
	if err != nil {
		return features.Rows{}, err
	}
	data := t.Held.Rows
	data.Labels = labels
	data = data.Labelled()
	if len(data.Index) == 0 {
		return features.Rows{}, fmt.Errorf("features %s have no labels to validate on", dir)
	}
	return data, nil
}

// judging is the table that the validation rows are of.
func (t *Data) judging() *features.Table {
	if t.Held != nil {
		return t.Held
	}
	return t.Table
}

// someValidation returns at most so many validation rows as a detector reads them.
func (t *Data) someValidation(d *detector.Detector, most int) []float32 {
	return rowsFor(d, t.judging(), features.Every(t.validation.Index, most))
}

// rowsFor returns rows of a table as a detector reads them.
func rowsFor(d *detector.Detector, t *features.Table, rows []int) []float32 {
	if len(d.Source.Layers) == 0 {
		return t.Gather(rows)
	}
	return t.WithLayers(rows)
}

// classRows counts the rows to train on per class.
func (t *Data) classRows() []int { return t.perClass(t.split.Train) }

// classCalibration counts the calibration rows per class; nil where they are a set of
// their own, which need not have labels.
func (t *Data) classCalibration() []int {
	if t.Options.Calibration.Features != "" {
		return nil
	}
	return t.perClass(t.split.Calibration)
}

// perClass counts rows per class.
func (t *Data) perClass(rows []int) []int {
	counts := make([]int, len(t.Classes))
	for _, r := range rows {
		counts[t.Labels[r]]++
	}
	return counts
}

// looksProjected tells whether the first features of all rows have the mean zero and are
// not correlated at all, as principal components are on the rows that they were fitted on.
func (t *Data) looksProjected() bool {
	k, n := min(t.D, 16), len(t.Labels)
	if k < 4 || n < 20 {
		return false
	}
	sum, square := 0.0, 0.0 // a sample tells of most features that their mean is not zero
	for row := 0; row < n; row += max(1, n/1000) {
		v := float64(t.Row(row)[0])
		sum, square = sum+v, square+v*v
	}
	if math.Abs(sum) > 6*math.Sqrt(square) {
		return false
	}
	sums, products := make([]float64, k), make([]float64, k*k)
	for row := range t.Labels {
		x := t.Row(row)[:k]
		for i, v := range x {
			sums[i] += float64(v)
			for j, w := range x[:i+1] {
				products[i*k+j] += float64(v) * float64(w)
			}
		}
	}
	// Of independent numbers around zero, the ratio to the right hand side would be about 10.
	chance := math.Sqrt(float64(n))
	for i := range k {
		if !(math.Abs(sums[i]) < 0.1*math.Sqrt(products[i*k+i])) {
			return false
		}
		for j := range i {
			if !(math.Abs(products[i*k+j]) < 0.1/chance*math.Sqrt(products[i*k+i]*products[j*k+j])) {
				return false
			}
		}
	}
	return true
}

func (t *Data) unlabelled() int {
	n := 0
	for _, y := range t.Labels {
		if y < 0 {
			n++
		}
	}
	return n
}

func (t *Data) rows(calibration int) detector.RowCount {
	return detector.RowCount{
		Train: len(t.train.Index), Validation: len(t.validation.Index),
		Calibration: calibration, LeftOut: t.leftOut, Unlabelled: t.unlabelled() + t.dropped,
	}
}

// Close lets go of the files.
func (t *Data) Close() error {
	err := errors.Join(t.release(), t.Table.Close())
	if t.Held != nil {
		err = errors.Join(err, t.Held.Close())
	}
	return errors.Join(err, t.space.Close())
}

// imbalance is how many times the rows of the smallest class the largest has
// where that is worth a word.
const imbalance = 10

// warn notes what is odd about the labels.
func (t *Data) warn() {
	counts := t.classRows()
	empty, first, least, most := 0, "", -1, -1
	for c, n := range counts {
		switch {
		case n == 0:
			if empty++; empty == 1 {
				first = t.Classes[c]
			}
			continue
		case least < 0 || n < counts[least]:
			least = c
		}
		if most < 0 || n > counts[most] {
			most = c
		}
	}
	if empty > 0 {
		t.Warnings = append(t.Warnings, fmt.Sprintf("classes without images to train on: %d of %d, the first of them %q", empty, len(counts), first))
	}
	if least >= 0 && counts[most] >= imbalance*counts[least] && !t.Options.Train.Balance {
		t.Warnings = append(t.Warnings, fmt.Sprintf("the classes are unequal: %d images to train on of %q, %d of %q; they can be shown equally often (‹Train.Balance sample›)", counts[most], t.Classes[most], counts[least], t.Classes[least]))
	}
	if t.Sets[0].Model == extractor.PixelsName && t.Options.Head.Settings().Residual {
		t.Warnings = append(t.Warnings, "the features are pixels: the paper's head with its settings for MNIST (‹head.PaperPresets mnist›) learns their classes better, the residual one tells out-of-distribution images better")
	}
	if t.looksProjected() {
		t.Warnings = append(t.Warnings, "the features look as if they were projected onto principal axes that were fitted on these same rows: the threshold will be wrong, since other rows do not fit these axes as well, and most of what new classes differ in is gone; train on what the model gives")
	}
	t.warnOfGroups()
	if n := t.unlabelled() - t.excluded; n > 0 {
		t.Warnings = append(t.Warnings, fmt.Sprintf("images without a label are left out: %d", n))
	}
}
