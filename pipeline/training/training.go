// Package training trains detectors on feature sets: it divides the rows, trains
// the heads, keeps checkpoints of them and calibrates the detector.
package training

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// Result tells how training went; metrics of several heads are means.
type Result struct {
	Epochs         int      `json:"epochs"` // of each head
	Steps          int      `json:"steps"`  // of all heads together
	StepsPerSecond float64  `json:"steps_per_second"`
	Seconds        float64  `json:"seconds"` // of training alone
	TrainLoss      float64  `json:"train_loss"`
	ValLoss        float64  `json:"val_loss"`     // the training loss without validation rows
	ValAccuracy    *float64 `json:"val_accuracy"` // null without validation rows or with one class

	// ValBalancedAccuracy is the mean of the classes' recalls on the validation
	// rows; ValClasses has these. Both are of all heads together, and null where
	// ValAccuracy is.
	ValBalancedAccuracy *float64      `json:"val_balanced_accuracy"`
	ValClasses          []ClassRecall `json:"val_classes"`

	Threshold *float64 `json:"threshold"` // null where nothing will be flagged
	Score     string   `json:"scores"`    // what the threshold is of

	// CrossBound is detector.CrossBound with folds, else null.
	CrossBound *float64 `json:"cross_bound,omitempty"`

	// Assessment is that of the detector: null without class hold-out.
	Assessment   *detector.Assessment `json:"assessment"`
	NoAssessment string               `json:"no_assessment,omitempty"` // why not, where it was asked for

	// FalseAlarms is the interval of Detector.FalseAlarms; null likewise.
	FalseAlarms *[2]float64 `json:"false_alarms"`

	Rows     detector.RowCount `json:"rows"`
	Warnings []string          `json:"warnings"` // what a person should know; advice names fields of Options
}

// ClassRecall says how many validation images of a class the detector gives that
// class.
type ClassRecall struct {
	Class  string `json:"class"`
	Images int    `json:"images"`
	Right  int    `json:"right"`
}

// Recall returns the share of the images that is right.
func (c ClassRecall) Recall() float64 { return float64(c.Right) / float64(c.Images) }

// Train trains a detector on cached features: it sets rows aside for validation
// and calibration, trains a head per seed on the rest, and finds the threshold
// on the calibration rows. The same options on the same machine give the same
// detector, whether or not it was interrupted.
//
// A head whose training diverges is left out with a warning. If all do, the
// error wraps head.ErrDiverged, and the checkpoint holds what was good.
func Train(ctx context.Context, opts Options) (*detector.Detector, *Result, error) {
	data, err := Open(ctx, opts)
	if err != nil {
		return nil, nil, err
	}
	defer data.Close()
	opts = data.Options
	if err := CheckMemory(opts.Score, data.D, len(data.Classes), opts.Memory); err != nil {
		return nil, nil, fmt.Errorf("train on %s: %w", data.Dirs[0], err)
	}
	// Before conditioning, which takes long and numbers the rows anew.
	kept, err := data.openCheckpoint(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer data.release()
	raw, trained, err := data.fit(ctx, kept)
	if err != nil {
		return nil, nil, fmt.Errorf("train on %s: %w", data.Dirs[0], err)
	}
	result, d, joined := summarise(trained), trained.detector, trained.joined
	d.History, d.Relabelled, d.Assessment = trained.history, data.relabelled, joined.Assessment
	d.Splits = map[string][]int{"validation": data.split.Validation, "calibration": data.split.Calibration}
	if len(data.split.LeftOut) > 0 {
		d.Splits["left_out"] = data.split.LeftOut
	}
	opts.stage("calibration", 0, -1)
	if err := data.setThreshold(ctx, raw, d); err != nil {
		return nil, nil, fmt.Errorf("calibrate on %s: %w", data.Dirs[0], err)
	}
	if d.Confidence, err = raw.fitConfidence(ctx, d); err != nil {
		return nil, nil, err
	}
	if d.Reference, err = data.reference(ctx, raw, d); err != nil {
		return nil, nil, err
	}
	rows, _ := data.samples(raw, d)
	if d.Probe, err = d.NewProbe(ctx, data.probe(d), everyRow(rows, d.Dim(), detector.ProbeRows)); err != nil {
		return nil, nil, err
	}

	result.Warnings = append(append(result.Warnings, data.Warnings...), trained.warnings...)
	if text := data.saidOfOutliers(d.Assessment); text != "" {
		result.Warnings = append(result.Warnings, text)
	}
	data.promise(result, d)
	if err := raw.warnOfFar(ctx, result, d); err != nil {
		return nil, nil, err
	}
	if d.Validation, err = raw.validate(ctx, d); err != nil {
		return nil, nil, err
	}
	result.ValClasses = raw.recalls(d.Validation)
	result.judgeAccuracy(len(data.Classes))
	d.Training = data.record(opts, result, trained.window)
	d.Training.FittedC = joined.C
	if raw.began != nil {
		d.Training.StartC = raw.began.C
	}
	if d.Training.Sets, err = data.trainedOn(ctx); err != nil {
		return nil, nil, err
	}
	if trained.window > 0 {
		result.Warnings = append(result.Warnings, fmt.Sprintf(
			"the rows to train on do not fit into memory (‹Memory›): %d at a time are shuffled", trained.window))
	}
	return d, result, nil
}

// setThreshold sets the threshold by the calibration rows, or by folds of the raw rows.
func (data *Data) setThreshold(ctx context.Context, raw *Data, d *detector.Detector) (err error) {
	if data.Options.Calibration.Folds > 0 {
		err = raw.crossCalibrate(ctx, d)
	} else if d.CalibrationScores, err = data.calibrate(ctx, d); err == nil {
		d.Threshold = detector.Threshold(d.CalibrationScores, d.TargetTPR)
	}
	if err == nil {
		data.calibrateByClass(d)
	}
	return err
}

// promise says in the result what the threshold promises.
func (data *Data) promise(result *Result, d *detector.Detector) {
	result.Rows, result.Score, result.FalseAlarms = data.rows(len(d.CalibrationScores)), d.ScoreName(), d.FalseAlarms()
	if math.IsInf(d.Threshold, -1) {
		result.Warnings = append(result.Warnings, data.tooFew(len(d.CalibrationScores)))
		return
	}
	result.Threshold = &d.Threshold
	result.warnOfTies(d)
	if k := len(d.Folds); k > 0 {
		bound := detector.CrossBound(1-d.TargetTPR, len(d.CalibrationScores), k)
		result.CrossBound = &bound
	}
}

// record is what the detector's file says of the training.
func (data *Data) record(opts Options, result *Result, window int) detector.TrainingRecord {
	shape := opts.Head.Settings()
	return detector.TrainingRecord{
		Features: opts.Features, Layers: shape.Layers, Centroids: shape.Centroids, Projection: shape.Projection,
		Epochs: opts.Train.Epochs, Batch: opts.Train.Batch, LR: opts.Train.LR, Schedule: string(opts.Train.Schedule), Patience: opts.Train.Patience, Balance: opts.Train.Balance,
		Validation: opts.Validation.String(), Calibration: opts.Calibration.String(), Rows: result.Rows, ClassRows: data.classRows(),
		SumLoss: shape.SumLoss, Window: window, Split: data.rule(), GroupBy: opts.GroupBy, Kept: data.keptSplit(),
		Tool: opts.Tool, Score: opts.Score, ClassCalibration: data.classCalibration(), NoHoldOut: opts.NoHoldOut, LinearC: opts.Linear.C, Conditioning: &opts.Conditioning,
	}
}

// fit conditions the rows, trains the heads and fits the score, for a detector that is
// not calibrated. raw is the data that are not conditioned; t has the conditioned
// rows until release.
func (t *Data) fit(ctx context.Context, kept *checkpoint) (raw *Data, trained *trainedHeads, err error) {
	before := *t
	condition, err := t.condition(ctx)
	before.began = t.began
	if err != nil {
		return nil, nil, err
	}
	start := time.Now()
	if trained, err = t.trainHeads(ctx, kept); err != nil {
		return nil, nil, err
	}
	trained.seconds = time.Since(start).Seconds()
	for _, h := range trained.heads {
		h.Conditioning = condition
	}
	d := &detector.Detector{Classes: t.Classes, Heads: trained.heads, Seeds: trained.seeds, TargetTPR: t.Options.TargetTPR, Source: t.source()}
	trained.detector = d
	if trained.joined, err = before.fitScoring(ctx, d); err != nil {
		return nil, nil, err
	}
	fixed := t.isFold || t.Options.Keep != nil && len(t.Options.Keep.Source.Layers) > 0 // as the others read rows
	if d.Scoring = trained.joined.Scoring; !fixed && !d.Scoring.ReadsLayers() {
		d.Source = d.Source.With(nil)
	}
	return &before, trained, nil
}

// trainedHeads are the heads whose training ended well.
type trainedHeads struct {
	heads    []*head.Head
	detector *detector.Detector // of them
	joined   *Joined            // its score
	seeds    []uint64
	history  [][]head.Epoch
	seconds  float64
	resumed  int // steps of them that were taken before a checkpoint
	window   int // rows that were shuffled together; 0 means all
	warnings []string
}

// trainHeads trains a head per seed, all at once, so that they advance together
// and the time that is left can be told.
func (t *Data) trainHeads(ctx context.Context, kept *checkpoint) (*trainedHeads, error) {
	seeds := t.Options.Seeds
	kept.tell(t.Options.Resumed)
	t.Options.stage(TrainingStage, 0, t.Options.Train.Epochs*len(seeds))
	prepared, err := startWith(t.Options.Head, t.begin).Prepare(ctx, t.train, t.validation, len(t.Classes), t.space)
	if err != nil {
		return nil, err
	}
	defer prepared.Close()
	window := 0
	for i := range seeds {
		if s := kept.from(i); s != nil {
			// A head that had not begun goes by the rows of those that had.
			window = cmp.Or(s.Window, -1)
		}
	}
	heads, history, diverged := make([]*head.Head, len(seeds)), make([][]head.Epoch, len(seeds)), make([]error, len(seeds))
	group, groupCtx := parallel.WithContext(ctx)
	for i, seed := range seeds {
		o := t.Options.Train
		o.Seed, o.Resume, o.Checkpoint, o.Window = seed, kept.from(i), kept.hook(i, o.Epochs), window
		if t.Options.Progress != nil {
			o.Progress = func(e head.Epoch) { t.Options.Progress(i, e) }
		}
		group.Go(func() (err error) {
			heads[i], history[i], err = prepared.Train(groupCtx, o)
			if stopped := (*head.StoppedError)(nil); errors.As(err, &stopped) {
				kept.put(i, stopped.State, true)
			}
			if errors.Is(err, head.ErrDiverged) {
				diverged[i], err = err, nil
			}
			return err
		})
	}
	err = group.Wait()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	all := trainedHeads{window: prepared.Window(t.Options.Train.Batch)}
	for i, seed := range seeds {
		if diverged[i] != nil {
			all.warnings = append(all.warnings, fmt.Sprintf("the head of seed %d is left out of the detector: %v", seed, diverged[i]))
			continue
		}
		if s := kept.from(i); s != nil {
			all.resumed += s.Steps
			all.window = s.Window
		}
		all.heads, all.seeds, all.history = append(all.heads, heads[i]), append(all.seeds, seed), append(all.history, history[i])
	}
	if err == nil && len(all.heads) == 0 {
		err = diverged[0] // the others say no more
	}
	if keepErr := kept.flush(err != nil); keepErr != nil {
		if err != nil {
			return nil, fmt.Errorf("%v, and what was done could not be kept: %w", err, keepErr)
		}
		all.warnings = append(all.warnings, keepErr.Error())
	}
	return &all, err
}

// calibrate returns the detector's scores of the calibration rows, ascending.
// Features of their own need no labels.
func (t *Data) calibrate(ctx context.Context, d *detector.Detector) ([]float64, error) {
	from, rows := t.Table, t.split.Calibration
	if dir := t.Options.Calibration.Features; dir != "" {
		own, err := features.OpenTableLike(ctx, t.space, t.Sets[0], dir)
		if err != nil {
			return nil, err
		}
		defer own.Close()
		named, err := namedSets(ctx, own.Sets, detector.ForCalibration)
		if err != nil {
			return nil, err
		}
		t.calibratedOn = append(t.calibratedOn, named...)
		if rows, err = t.calibrationRows(ctx, own); err != nil {
			return nil, err
		}
		from = own
	}
	t.sample = slices.Clone(rowsFor(d, from, features.Every(rows, detector.ReferenceImages)))
	verdicts, err := judged(ctx, d, from, rows)
	if err != nil {
		return nil, err
	}
	t.calibrated = append(t.calibrated, verdicts...)
	scores := lists.Map(verdicts, func(v detector.Verdict) float64 { return v.Score })
	slices.Sort(scores)
	return scores, nil
}

// judged returns a detector's verdicts on rows.
func judged(ctx context.Context, d *detector.Detector, from *features.Table, rows []int) ([]detector.Verdict, error) {
	var verdicts []detector.Verdict
	for part := range slices.Chunk(rows, judgedRows) {
		some, err := d.Verdicts(ctx, rowsFor(d, from, part))
		if err != nil {
			return nil, err
		}
		verdicts = append(verdicts, some...)
	}
	return verdicts, nil
}

// trainedOn names the feature sets of a training that has come to its end.
func (t *Data) trainedOn(ctx context.Context) ([]detector.TrainingSet, error) {
	all, err := namedSets(ctx, t.Sets, detector.ForTraining)
	var held []detector.TrainingSet
	if err == nil && t.Held != nil {
		held, err = namedSets(ctx, t.Held.Sets, detector.ForValidation)
	}
	return slices.Concat(all, held, t.calibratedOn, t.outlierSets), err
}

// namedSets names feature sets by their content and what they are used for.
func namedSets(ctx context.Context, sets []*features.Set, use string) (all []detector.TrainingSet, err error) {
	for _, set := range sets {
		named, err := detector.NewTrainingSet(ctx, set, use)
		if err != nil {
			return nil, err
		}
		all = append(all, named)
	}
	return all, nil
}

// summarise condenses the heads' histories; the steps before a checkpoint took none of
// the seconds.
func summarise(t *trainedHeads) *Result {
	var accuracy float64
	r := &Result{Seconds: t.seconds, ValAccuracy: &accuracy, Warnings: []string{}, Assessment: t.joined.Assessment, NoAssessment: t.joined.Why}
	for _, epochs := range t.history {
		last := epochs[len(epochs)-1]
		share := 1 / float64(len(t.history))
		r.Epochs = last.Epoch
		r.Steps += last.Steps
		r.TrainLoss += last.TrainLoss * share
		r.ValLoss += last.ValLoss * share
		accuracy += last.ValAccuracy * share
	}
	r.StepsPerSecond = float64(r.Steps-t.resumed) / t.seconds
	return r
}

// sourceOf takes over what a feature set says of how it was made.
// source says how the rows were made.
func (t *Data) source() detector.Source {
	s := sourceOf(t.Sets[0])
	s.Patches = t.patches
	return s.With(t.layers)
}

func sourceOf(set *features.Set) detector.Source {
	return detector.Source{
		Fingerprint: set.Space(), Model: set.Model, SHA256: set.ModelSHA256,
		Output: set.Output, Pool: set.Pool, Preprocess: set.Preprocess,
	}
}

// What follows is what package evaluation repeats with many heads and seeds.

// TrainHead trains one head on the rows that a seed gives and returns it as a
// detector without a threshold.
func (t *Data) TrainHead(ctx context.Context, seed uint64, c head.Config, o head.TrainOptions) (*detector.Detector, error) {
	rows, err := t.resplit(seed)
	if err != nil {
		return nil, err
	}
	defer rows.release()
	condition, err := rows.condition(ctx)
	if err != nil {
		return nil, err
	}
	prepared, err := startWith(c, rows.begin).Prepare(ctx, rows.train, rows.validation, len(t.Classes), rows.space)
	if err != nil {
		return nil, err
	}
	defer prepared.Close()
	o.Seed = seed
	h, _, err := prepared.Train(ctx, o)
	if err != nil {
		return nil, err
	}
	h.Conditioning = condition
	d := &detector.Detector{Classes: t.Classes, Heads: []*head.Head{h}}
	raw, err := t.resplit(seed) // not conditioned
	if err != nil {
		return nil, err
	}
	d.Confidence, err = raw.fitConfidence(ctx, d)
	return d, err
}

// TrainNetwork trains a ReLU network on the rows that a seed gives.
func (t *Data) TrainNetwork(ctx context.Context, seed uint64, c head.MLPConfig, o head.TrainOptions) (*Classifier, error) {
	rows, err := t.resplit(seed)
	if err != nil {
		return nil, err
	}
	o.Seed = seed
	m, _, err := head.TrainMLP(ctx, c, rows.train, rows.validation, len(t.Classes), o)
	if err != nil {
		return nil, err
	}
	return ClassifierOf(m), nil
}

// FitLinear fits the linear head on the rows that a seed gives.
func (t *Data) FitLinear(ctx context.Context, seed uint64) (*Classifier, error) {
	rows, err := t.resplit(seed)
	if err != nil {
		return nil, err
	}
	h, err := head.FitLinear(ctx, rows.train, rows.validation, len(t.Classes), t.Options.Linear)
	if err != nil {
		return nil, fmt.Errorf("the linear head: %w", err)
	}
	return ClassifierOf(posthoc.MLP{h.Linear}), nil
}

// FitEnsemble fits an ensemble on the rows that a seed gives. Its parts read the
// logits of c and the scores of own.
func (t *Data) FitEnsemble(ctx context.Context, seed uint64, name string, c *Classifier, own *detector.Detector, memory int64) (*detector.Scoring, error) {
	rows, err := t.resplit(seed)
	if err != nil {
		return nil, err
	}
	return rows.fitOn(ctx, name, c, own, memory)
}

// Labelled returns all training rows with a label.
func (t *Data) Labelled(c *Classifier) *posthoc.Data {
	return c.Data(t.Table, t.Rows.Labelled().Index, t.Labels, len(t.Classes))
}

// HeldOut returns the validation rows where they are a feature set of their own,
// else nil.
func (t *Data) HeldOut(c *Classifier) *posthoc.Data {
	if t.Held == nil {
		return nil
	}
	return c.Data(t.Held, t.validation.Index, t.validation.Labels, len(t.Classes))
}
