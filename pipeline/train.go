package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"mlrbfn/features"
	"mlrbfn/head"
)

// TrainOptions says what to train a detector on, and how. A zero field takes
// its default.
type TrainOptions struct {
	Features []string // folders of feature sets, all of one model; needed

	// Validation steers the learning rate; Calibration sets the threshold and
	// the p-values and is used for nothing else. Each takes a tenth of the
	// labelled rows by default.
	Validation, Calibration Share

	Head  head.Config
	Train head.TrainOptions // Seed and Progress are set per head
	Seeds []uint64          // one head each, trained side by side; nil means 0. The first also makes the split

	TargetTPR float64 // share of in-distribution images that the threshold keeps; 0 means 0.95

	// Progress, where set, is called after each epoch of each head (counted
	// from 0), from several goroutines.
	Progress func(head int, e head.Epoch)
}

// Share is a part of the training rows to set aside: a fraction of them, drawn
// class by class, or a feature set of its own. The zero value is a tenth.
type Share struct {
	None     bool    // set nothing aside
	Fraction float64 // in (0, 1); 0 means 0.1
	Features string  // folder of a feature set; takes the place of a fraction
}

// fraction returns the part of the training rows that goes to the share.
func (s Share) fraction() float64 {
	switch {
	case s.None || s.Features != "":
		return 0
	case s.Fraction == 0:
		return 0.1
	}
	return s.Fraction
}

func (s Share) String() string {
	if s.Features != "" {
		return s.Features
	}
	return fmt.Sprint(s.fraction())
}

// TrainResult tells how training went; figures of several heads are means.
type TrainResult struct {
	Epochs         int      `json:"epochs"` // of each head
	Steps          int      `json:"steps"`  // of all heads together
	StepsPerSecond float64  `json:"steps_per_second"`
	Seconds        float64  `json:"seconds"` // of training alone
	TrainLoss      float64  `json:"train_loss"`
	ValLoss        float64  `json:"val_loss"`     // the training loss without validation rows
	ValAccuracy    *float64 `json:"val_accuracy"` // null without validation rows
	Threshold      *float64 `json:"threshold"`    // null where nothing will be flagged
	Rows           RowCount `json:"rows"`
	Warnings       []string `json:"warnings"` // what a person should know
}

// Train trains a detector on cached features: it sets rows aside for validation
// and calibration, trains a head per seed on the rest, and finds the threshold
// on the calibration rows. The same options on the same machine give the same
// detector.
func Train(ctx context.Context, opts TrainOptions) (*Detector, *TrainResult, error) {
	data, err := openTrainingData(ctx, opts)
	if err != nil {
		return nil, nil, err
	}
	defer data.Close()
	opts = data.opts

	heads := make([]*head.MLRBFN, len(opts.Seeds))
	history := make([][]head.Epoch, len(opts.Seeds))
	start := time.Now()
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, seed := range opts.Seeds {
		group.Go(func() (err error) {
			o := opts.Train
			o.Seed = seed
			if opts.Progress != nil {
				o.Progress = func(e head.Epoch) { opts.Progress(i, e) }
			}
			heads[i], history[i], err = head.Train(groupCtx, opts.Head, data.train, data.validation, len(data.classes), o)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, nil, fmt.Errorf("train on %s: %w", data.dirs[0], err)
	}
	result := summarise(history, time.Since(start).Seconds())

	d := &Detector{
		Classes: data.classes, Heads: heads, Seeds: opts.Seeds, TargetTPR: opts.TargetTPR,
		Source: sourceOf(data.sets[0]), History: history,
		Splits: map[string][]int{"validation": data.split.validation, "calibration": data.split.calibration},
	}
	if d.Scores, err = data.calibrate(ctx, d); err != nil {
		return nil, nil, err
	}
	d.Threshold = threshold(d.Scores, opts.TargetTPR)

	result.Rows = data.rows(len(d.Scores))
	result.Warnings = append(result.Warnings, data.warnings...)
	if math.IsInf(d.Threshold, -1) {
		result.Warnings = append(result.Warnings, fmt.Sprintf(
			"%d calibration images are too few for a target of %g: no image will be flagged (%d would do)",
			len(d.Scores), opts.TargetTPR, int(math.Ceil(1/(1-opts.TargetTPR)-1e-9))-1))
	} else {
		result.Threshold = &d.Threshold
	}
	if len(data.validation.Rows) == 0 {
		result.ValAccuracy = nil
	}
	d.Training = TrainingRecord{
		Features: opts.Features, Layers: opts.Head.Layers, Centroids: opts.Head.Centroids, Projection: opts.Head.Projection,
		Epochs: opts.Train.Epochs, Batch: opts.Train.Batch, LR: opts.Train.LR, Patience: opts.Train.Patience,
		Validation: opts.Validation.String(), Calibration: opts.Calibration.String(), Rows: result.Rows,
		SumLoss: opts.Head.SumLoss,
	}
	return d, result, nil
}

// trainingData is the rows to train and validate on, from the options, whose
// defaults it fills in.
type trainingData struct {
	*table
	opts              TrainOptions
	split             split
	train, validation head.Data
	held              *table // validation features of their own, or nil
	warnings          []string
}

func openTrainingData(ctx context.Context, opts TrainOptions) (_ *trainingData, err error) {
	if len(opts.Seeds) == 0 {
		opts.Seeds = []uint64{0}
	}
	if opts.TargetTPR == 0 {
		opts.TargetTPR = 0.95
	}
	if opts.Head, err = opts.Head.WithDefaults(); err != nil {
		return nil, err
	}
	if opts.Train, err = opts.Train.WithDefaults(); err != nil {
		return nil, err
	}
	if len(opts.Features) == 0 {
		return nil, errors.New("no features to train on")
	}
	if !(opts.TargetTPR > 0 && opts.TargetTPR < 1) {
		return nil, fmt.Errorf("target TPR %g: it lies between 0 and 1", opts.TargetTPR)
	}
	sets := slices.Clone(opts.Features)
	for _, s := range []Share{opts.Validation, opts.Calibration} {
		if s.Features != "" {
			sets = append(sets, s.Features)
		}
	}
	if err := distinct(sets); err != nil {
		return nil, err
	}
	t, err := openTable(ctx, opts.Features...)
	if err != nil {
		return nil, err
	}
	data := &trainingData{table: t, opts: opts}
	defer func() {
		if err != nil {
			err = errors.Join(err, data.Close())
		}
	}()
	if !slices.ContainsFunc(t.labels, func(y int64) bool { return y >= 0 }) {
		return nil, fmt.Errorf("features %s have no labels to train on: extract them from a folder with one subfolder of images per class", opts.Features[0])
	}
	if dir := opts.Validation.Features; dir != "" {
		if data.validation, err = data.openValidation(ctx, dir); err != nil {
			return nil, err
		}
	}
	if data, err = data.resplit(opts.Seeds[0]); err != nil {
		return nil, err
	}
	data.warn()
	return data, nil
}

// resplit returns the same data with the parts that a seed gives.
func (t *trainingData) resplit(seed uint64) (*trainingData, error) {
	other := *t
	var err error
	if other.split, err = splitRows(t.labels, len(t.classes), t.opts.Validation.fraction(), t.opts.Calibration.fraction(), seed); err != nil {
		return t, err
	}
	other.train = head.Data{X: t.x, D: t.d, Labels: t.labels, Rows: other.split.train}
	if t.held == nil {
		other.validation = head.Data{X: t.x, D: t.d, Labels: t.labels, Rows: other.split.validation}
	}
	return &other, nil
}

// openValidation opens features of their own to validate on.
func (t *trainingData) openValidation(ctx context.Context, dir string) (head.Data, error) {
	var err error
	if t.held, err = openTable(ctx, dir); err != nil {
		return head.Data{}, err
	}
	if err := features.SameSpace(t.sets[0], t.held.sets[0]); err != nil {
		return head.Data{}, err
	}
	labels, err := relabel(t.held.sets[0], t.classes)
	if err != nil {
		return head.Data{}, err
	}
	data := head.Data{X: t.held.x, D: t.d, Labels: labels}
	for i, y := range labels {
		if y >= 0 {
			data.Rows = append(data.Rows, i)
		}
	}
	if len(data.Rows) == 0 {
		return head.Data{}, fmt.Errorf("features %s have no labels to validate on", dir)
	}
	return data, nil
}

// warn notes what is odd about the labels.
func (t *trainingData) warn() {
	counts := make([]int, len(t.classes))
	for _, r := range t.split.train {
		counts[t.labels[r]]++
	}
	empty, first := 0, ""
	for c, n := range counts {
		if n == 0 {
			if empty++; empty == 1 {
				first = t.classes[c]
			}
		}
	}
	if empty > 0 {
		t.warnings = append(t.warnings, fmt.Sprintf("%d of %d classes have no images to train on, the first of them %q", empty, len(counts), first))
	}
	if len(counts) == 1 {
		t.warnings = append(t.warnings, "there is only one class: nothing teaches the head what is not of it")
	}
	if n := t.unlabelled(); n > 0 {
		t.warnings = append(t.warnings, fmt.Sprintf("%d images without a label are left out", n))
	}
}

func (t *trainingData) unlabelled() int {
	n := 0
	for _, y := range t.labels {
		if y < 0 {
			n++
		}
	}
	return n
}

func (t *trainingData) rows(calibration int) RowCount {
	return RowCount{
		Train: len(t.train.Rows), Validation: len(t.validation.Rows),
		Calibration: calibration, Unlabelled: t.unlabelled(),
	}
}

// calibrate returns the detector's scores of the calibration rows, ascending.
// Features of their own need no labels.
func (t *trainingData) calibrate(ctx context.Context, d *Detector) ([]float64, error) {
	x, rows := t.x, t.split.calibration
	if dir := t.opts.Calibration.Features; dir != "" {
		own, err := openTable(ctx, dir)
		if err != nil {
			return nil, err
		}
		defer own.Close()
		if err := features.SameSpace(t.sets[0], own.sets[0]); err != nil {
			return nil, err
		}
		x, rows = own.x, make([]int, len(own.labels))
		for i := range rows {
			rows[i] = i
		}
	}
	scores := []float64{}
	block := make([]float32, 0, verdictBlock*t.d)
	for part := range slices.Chunk(rows, verdictBlock) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		block = block[:0]
		for _, r := range part {
			block = append(block, x[r*t.d:(r+1)*t.d]...)
		}
		for _, v := range d.Verdicts(block) {
			scores = append(scores, v.Score)
		}
	}
	slices.Sort(scores)
	return scores, nil
}

func (t *trainingData) Close() error {
	err := t.table.Close()
	if t.held != nil {
		err = errors.Join(err, t.held.Close())
	}
	return err
}

// summarise condenses the heads' histories.
func summarise(history [][]head.Epoch, seconds float64) *TrainResult {
	var accuracy float64
	r := &TrainResult{Seconds: seconds, ValAccuracy: &accuracy, Warnings: []string{}}
	for _, epochs := range history {
		last := epochs[len(epochs)-1]
		share := 1 / float64(len(history))
		r.Epochs = last.Epoch
		r.Steps += last.Steps
		r.TrainLoss += last.TrainLoss * share
		r.ValLoss += last.ValLoss * share
		accuracy += last.ValAccuracy * share
	}
	r.StepsPerSecond = float64(r.Steps) / seconds
	return r
}

// sourceOf takes over what a feature set says of how it was made.
func sourceOf(set *features.Set) Source {
	return Source{
		Fingerprint: set.Fingerprint, Model: set.Model, SHA256: set.ModelSHA256,
		Output: set.Output, Pool: set.Pool, Preprocess: set.Preprocess,
	}
}
