package pipeline

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"mlrbfn/conditioning"
	"mlrbfn/extractor"
	"mlrbfn/features"
	"mlrbfn/head"
	"mlrbfn/internal/spill"
	"mlrbfn/posthoc"
)

// TrainOptions says what to train a detector on, and how. A zero field takes
// its default.
type TrainOptions struct {
	Features []string `json:"-"` // folders of feature sets, all of one model; needed

	// Validation steers the learning rate; Calibration sets the threshold and
	// the p-values and is used for nothing else. Each takes a tenth of the
	// labelled rows by default.
	Validation, Calibration Share `json:"-"`

	// Paper trains the paper's head, and makes the paper's settings the defaults
	// of the fields below. Otherwise it is an open head, and the defaults are
	// what docs/research.md found best: conditioning.Auto, 2
	// layers, 20 epochs with a learning rate of 0.003 that falls with the
	// cosine.
	Paper bool

	// Conditioning is done to the features before the head; it is fitted on the
	// training rows.
	Conditioning conditioning.Options

	Head  head.Config       // Open is set by Paper
	Train head.TrainOptions // Seed, Progress, Checkpoint and Resume are set per head
	Seeds []uint64          // one head each, trained side by side; nil means 0. The first also makes the split

	// Scores names the score to judge by: "" or OwnScore is the heads' own;
	// any of Methods, or an ensemble "ensemble(A,B,…)", is fitted on the rows
	// that the heads are trained on, and an ensemble put on one scale by the
	// validation rows. Where it reads logits, they are those of a linear head
	// that is trained as Linear says (Epochs 0 means 100) with the first seed.
	Scores string
	Linear head.TrainOptions

	TargetTPR float64 `json:"-"` // share of in-distribution images that the threshold keeps; 0 means 0.95

	// Memory is how many bytes, about, the rows that heads read may take, and
	// again those that are read from files at a time; 0 means half of the machine's
	// memory. What does not fit goes to temporary files in the folder Scratch, ""
	// being the system's, and is shuffled as head.Train says.
	Memory  int64  `json:"-"`
	Scratch string `json:"-"`

	// Checkpoint, where set, is the file that keeps the state of all heads
	// every CheckpointEvery (0 means 30 s) and when training ends early. A
	// later call with the same options and features goes on from it, to the
	// bit; one with others is refused with ErrOtherTraining. The caller removes
	// the file when the detector is saved.
	Checkpoint      string        `json:"-"`
	CheckpointEvery time.Duration `json:"-"`
	Resume          Resume        `json:"-"` // what to do about a checkpoint that is there

	// Resumed, where set, is told before training goes on from a checkpoint how
	// many epochs each head has behind it.
	Resumed func(epochs []int) `json:"-"`

	// Progress, where set, is called after each epoch of each head (counted
	// from 0), from several goroutines.
	Progress func(head int, e head.Epoch) `json:"-"`
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
	Scores         string   `json:"scores"`       // what the threshold is of

	// FalseAlarms is the interval of Detector.FalseAlarms; null likewise.
	FalseAlarms *[2]float64 `json:"false_alarms"`

	Rows     RowCount `json:"rows"`
	Warnings []string `json:"warnings"` // what a person should know
}

// Train trains a detector on cached features: it sets rows aside for validation
// and calibration, trains a head per seed on the rest, and finds the threshold
// on the calibration rows. The same options on the same machine give the same
// detector, whether or not it was interrupted.
//
// A head whose training diverges is left out with a warning. If all do, the
// error wraps head.ErrDiverged, and the checkpoint holds what was good.
func Train(ctx context.Context, opts TrainOptions) (*Detector, *TrainResult, error) {
	data, err := openTrainingData(ctx, opts)
	if err != nil {
		return nil, nil, err
	}
	defer data.Close()
	opts = data.opts
	// Before conditioning, which takes long and numbers the rows anew.
	kept, err := data.openCheckpoint(ctx)
	if err != nil {
		return nil, nil, err
	}
	raw := *data // not conditioned
	defer data.release()
	condition, err := data.condition(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("train on %s: %w", data.dirs[0], err)
	}
	start := time.Now()
	trained, err := data.trainHeads(ctx, kept)
	if err != nil {
		return nil, nil, fmt.Errorf("train on %s: %w", data.dirs[0], err)
	}
	for _, h := range trained.heads {
		h.Conditioning = condition
	}
	result := summarise(trained.history, trained.resumed, time.Since(start).Seconds())

	d := &Detector{
		Classes: data.classes, Heads: trained.heads, Seeds: trained.seeds, TargetTPR: opts.TargetTPR,
		Source: sourceOf(data.sets[0]), History: trained.history,
		Splits: map[string][]int{"validation": data.split.validation, "calibration": data.split.calibration},
	}
	if d.Scoring, err = raw.fitScoring(ctx, d); err != nil {
		return nil, nil, fmt.Errorf("train on %s: %w", data.dirs[0], err)
	}
	if d.Scores, err = data.calibrate(ctx, d); err != nil {
		return nil, nil, err
	}
	d.Threshold = threshold(d.Scores, opts.TargetTPR)

	result.Rows, result.Scores, result.FalseAlarms = data.rows(len(d.Scores)), d.scoreName(), d.FalseAlarms()
	result.Warnings = append(append(result.Warnings, data.warnings...), trained.warnings...)
	if math.IsInf(d.Threshold, -1) {
		result.Warnings = append(result.Warnings, fmt.Sprintf(
			"%d calibration images are too few for a target of %g: no image will be flagged (%d would do)",
			len(d.Scores), opts.TargetTPR, int(math.Ceil(1/(1-opts.TargetTPR)-1e-9))-1))
	} else {
		result.Threshold = &d.Threshold
	}
	switch most := data.mostCommon(); {
	case len(data.validation.Rows) == 0:
		result.ValAccuracy = nil
	case most < 1 && *result.ValAccuracy <= most:
		result.Warnings = append(result.Warnings, fmt.Sprintf(
			"the head has learned nothing: it is right on %.4g of the validation images, and %.4g are of one class; try another learning rate, more epochs or another conditioning",
			*result.ValAccuracy, most))
	}
	d.Training = TrainingRecord{
		Features: opts.Features, Layers: opts.Head.Layers, Centroids: opts.Head.Centroids, Projection: opts.Head.Projection,
		Epochs: opts.Train.Epochs, Batch: opts.Train.Batch, LR: opts.Train.LR, Schedule: string(opts.Train.Schedule), Patience: opts.Train.Patience, Balance: opts.Train.Balance,
		Validation: opts.Validation.String(), Calibration: opts.Calibration.String(), Rows: result.Rows, ClassRows: data.classRows(),
		SumLoss: opts.Head.SumLoss, Window: trained.window,
	}
	if trained.window > 0 {
		result.Warnings = append(result.Warnings, fmt.Sprintf(
			"the rows to train on do not fit into memory (--memory): %d at a time are shuffled", trained.window))
	}
	return d, result, nil
}

// fitScoring fits the score to judge by; nil is the heads' own. The data are not
// conditioned.
func (t *trainingData) fitScoring(ctx context.Context, own *Detector) (*Scoring, error) {
	if t.opts.Scores == OwnScore {
		return nil, nil
	}
	parts, _, err := scoreParts(t.opts.Scores)
	if err != nil {
		return nil, err
	}
	c := &classifier{}
	if slices.ContainsFunc(parts, func(p string) bool { return p != OwnScore && !posthoc.Headless(p) }) {
		o := t.opts.Linear
		o.Seed = t.opts.Seeds[0]
		m, _, err := head.TrainMLP(ctx, head.MLPConfig{}, t.train, t.validation, len(t.classes), o)
		if err != nil {
			return nil, fmt.Errorf("the linear head: %w", err)
		}
		if c, err = networkClassifier(m); err != nil {
			return nil, err
		}
	}
	f := fitting{network: c.network, train: c.data(t.table, t.split.train, t.labels, len(t.classes))}
	s, err := f.scoring(ctx, t.opts.Scores, t.scale(c, own))
	if err != nil {
		return nil, err
	}
	if c.network != nil {
		s.Classifier = c.network[0]
	}
	for _, p := range s.Parts {
		posthoc.Detach(p.Score)
	}
	return s, nil
}

// trainedHeads are the heads whose training ended well.
type trainedHeads struct {
	heads    []*head.MLRBFN
	seeds    []uint64
	history  [][]head.Epoch
	resumed  int // steps of them that were taken before a checkpoint
	window   int // rows that were shuffled together; 0 means all
	warnings []string
}

// trainHeads trains a head per seed, all at once, so that they advance together
// and the time that is left can be told.
func (t *trainingData) trainHeads(ctx context.Context, kept *checkpoint) (*trainedHeads, error) {
	seeds := t.opts.Seeds
	kept.tell(t.opts.Resumed)
	prepared, err := head.Prepare(ctx, t.opts.Head, t.train, t.validation, len(t.classes), t.space)
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
	heads, history, diverged := make([]*head.MLRBFN, len(seeds)), make([][]head.Epoch, len(seeds)), make([]error, len(seeds))
	group, groupCtx := errgroup.WithContext(ctx)
	for i, seed := range seeds {
		o := t.opts.Train
		o.Seed, o.Resume, o.Checkpoint, o.Window = seed, kept.from(i), kept.hook(i, o.Epochs), window
		if t.opts.Progress != nil {
			o.Progress = func(e head.Epoch) { t.opts.Progress(i, e) }
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
	all := trainedHeads{window: prepared.Window(t.opts.Train.Batch)}
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

// trainingData is the rows to train and validate on, from the options, whose
// defaults it fills in.
type trainingData struct {
	*table
	opts              TrainOptions
	split             split
	train, validation head.Data
	held              *table // validation features of their own, or nil
	space             *spill.Space
	made              []*spill.Matrix // rows of train and validation, until release
	warnings          []string
}

// withOurs fills in the zero fields that do not mean the paper's settings.
func (o *TrainOptions) withOurs() {
	o.Head.Open = !o.Paper
	if o.Paper {
		return
	}
	if o.Conditioning.Kind == "" {
		o.Conditioning.Kind = conditioning.Auto
	}
	if o.Head.Layers == 0 {
		o.Head.Layers = 2
	}
	if o.Train.Epochs == 0 {
		o.Train.Epochs = 20
	}
	if o.Train.LR == 0 {
		o.Train.LR = 0.003
	}
	if o.Train.Schedule == "" {
		o.Train.Schedule = head.Cosine
	}
}

func openTrainingData(ctx context.Context, opts TrainOptions) (_ *trainingData, err error) {
	if len(opts.Seeds) == 0 {
		opts.Seeds = []uint64{0}
	}
	if opts.TargetTPR == 0 {
		opts.TargetTPR = 0.95
	}
	opts.withOurs()
	if opts.Head, err = opts.Head.WithDefaults(); err != nil {
		return nil, err
	}
	if opts.Train, err = opts.Train.WithDefaults(); err != nil {
		return nil, err
	}
	if opts.Linear.Epochs == 0 {
		opts.Linear.Epochs = 100
	}
	if opts.Linear, err = opts.Linear.WithDefaults(); err != nil {
		return nil, err
	}
	if opts.Scores == "" {
		opts.Scores = OwnScore
	}
	_, ensemble, err := scoreParts(opts.Scores)
	if err != nil {
		return nil, err
	}
	if ensemble && opts.Validation.None {
		return nil, errNoScale
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
	if opts.Memory == 0 {
		opts.Memory = spill.Default()
	}
	space := spill.New(opts.Memory, opts.Scratch, min(len(opts.Seeds), runtime.GOMAXPROCS(0)))
	t, err := openTable(ctx, space, opts.Features...)
	if err != nil {
		return nil, errors.Join(err, space.Close())
	}
	data := &trainingData{table: t, opts: opts, space: space}
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
	other.train = head.Data{X: t.x, D: t.d, Labels: t.labels, Rows: other.split.train, Pages: t.pages}
	if t.held == nil {
		other.validation = head.Data{X: t.x, D: t.d, Labels: t.labels, Rows: other.split.validation, Pages: t.pages}
	}
	return &other, nil
}

// condition fits the conditioning on the training rows and puts conditioned
// copies in the place of the training and validation rows, until release. It
// returns nil where there is nothing to do.
func (t *trainingData) condition(ctx context.Context) (*conditioning.Conditioning, error) {
	rows := func(d head.Data) conditioning.Data {
		return conditioning.Data{X: d.X, D: d.D, Labels: d.Labels, Rows: d.Rows, Classes: len(t.classes)}
	}
	c, err := conditioning.Fit(ctx, rows(t.train), rows(t.validation), t.opts.Conditioning)
	if err != nil {
		return nil, err
	}
	if c == nil {
		if t.validation.Pages.Window() == 0 {
			return nil, nil
		}
		// Each epoch would read all the file for a few of its rows.
		return nil, t.replace(&t.validation, t.d, func(write func(int, []float32) error) error {
			for i, r := range t.validation.Rows {
				if err := errors.Join(ctx.Err(), write(i, t.validation.X[r*t.d:(r+1)*t.d])); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for _, data := range []*head.Data{&t.train, &t.validation} {
		err := t.replace(data, c.Out(), func(write func(int, []float32) error) error {
			return c.Each(ctx, data.X, data.Rows, write)
		})
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// replace puts rows of d values, which fill writes, in the place of data's.
func (t *trainingData) replace(data *head.Data, d int, fill func(write func(at int, rows []float32) error) error) error {
	m, err := t.space.Matrix(len(data.Rows), d)
	if err != nil {
		return err
	}
	t.made = append(t.made, m)
	if err := fill(m.Write); err != nil {
		return err
	}
	if err := m.Done(); err != nil {
		return err
	}
	made := head.Data{X: m.X, D: d, Labels: make([]int64, len(data.Rows)), Rows: make([]int, len(data.Rows)), Pages: m}
	for i, r := range data.Rows {
		made.Labels[i], made.Rows[i] = data.Labels[r], i
	}
	*data = made
	return nil
}

// release frees the copies that condition made.
func (t *trainingData) release() error {
	var errs []error
	for _, m := range t.made {
		errs = append(errs, m.Close())
	}
	t.made = nil
	return errors.Join(errs...)
}

// openValidation opens features of their own to validate on.
func (t *trainingData) openValidation(ctx context.Context, dir string) (head.Data, error) {
	var err error
	if t.held, err = openTable(ctx, t.space, dir); err != nil {
		return head.Data{}, err
	}
	if err := features.SameSpace(t.sets[0], t.held.sets[0]); err != nil {
		return head.Data{}, err
	}
	labels, err := relabel(t.held.sets[0], t.classes)
	if err != nil {
		return head.Data{}, err
	}
	data := head.Data{X: t.held.x, D: t.d, Labels: labels, Pages: t.held.pages}
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

// classRows counts the rows to train on per class.
func (t *trainingData) classRows() []int {
	counts := make([]int, len(t.classes))
	for _, r := range t.split.train {
		counts[t.labels[r]]++
	}
	return counts
}

// imbalance is how many times the rows of the smallest class the largest has
// where that is worth a word.
const imbalance = 10

// warn notes what is odd about the labels.
func (t *trainingData) warn() {
	counts := t.classRows()
	empty, first, least, most := 0, "", -1, -1
	for c, n := range counts {
		switch {
		case n == 0:
			if empty++; empty == 1 {
				first = t.classes[c]
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
		t.warnings = append(t.warnings, fmt.Sprintf("%d of %d classes have no images to train on, the first of them %q", empty, len(counts), first))
	}
	if least >= 0 && counts[most] >= imbalance*counts[least] {
		t.warnings = append(t.warnings, fmt.Sprintf("the classes are unequal: %d images to train on of %q, %d of %q", counts[most], t.classes[most], counts[least], t.classes[least]))
	}
	if t.sets[0].Model == extractor.PixelsName && !t.opts.Paper {
		t.warnings = append(t.warnings, "the features are pixels, whose classes the paper's head learns better (--paper, --preset mnist); the default one tells strangers better")
	}
	if len(counts) == 1 {
		t.warnings = append(t.warnings, "there is only one class: nothing teaches the head what is not of it")
	}
	if n := t.unlabelled(); n > 0 {
		t.warnings = append(t.warnings, fmt.Sprintf("%d images without a label are left out", n))
	}
}

// mostCommon returns the share of the validation rows that are of their most
// common class; 1 where that is the only one.
func (t *trainingData) mostCommon() float64 {
	counts := make([]int, len(t.classes))
	for _, r := range t.validation.Rows {
		counts[t.validation.Labels[r]]++
	}
	return float64(slices.Max(counts)) / float64(max(len(t.validation.Rows), 1))
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

// repeated counts the rows of another table that are, to the bit, also rows of
// this one: copies of images, whatever their folders are called.
func (t *trainingData) repeated(other *table) int {
	seed, counts := maphash.MakeSeed(), map[uint64]int{} // hashes, as all rows may not fit into memory
	var bytes []byte
	each := func(x []float32, visit func(hash uint64)) {
		for row := range slices.Chunk(x, t.d) {
			bytes = bytes[:0]
			for _, v := range row {
				bytes = binary.LittleEndian.AppendUint32(bytes, math.Float32bits(v))
			}
			visit(maphash.Bytes(seed, bytes))
		}
	}
	each(other.x, func(hash uint64) { counts[hash]++ })
	n := 0
	count := func(hash uint64) {
		n += counts[hash]
		delete(counts, hash)
	}
	each(t.x, count)
	if t.held != nil {
		each(t.held.x, count)
	}
	return n
}

// calibrate returns the detector's scores of the calibration rows, ascending.
// Features of their own need no labels.
func (t *trainingData) calibrate(ctx context.Context, d *Detector) ([]float64, error) {
	x, rows := t.x, t.split.calibration
	if dir := t.opts.Calibration.Features; dir != "" {
		own, err := openTable(ctx, t.space, dir)
		if err != nil {
			return nil, err
		}
		defer own.Close()
		if err := features.SameSpace(t.sets[0], own.sets[0]); err != nil {
			return nil, err
		}
		if n := t.repeated(own); n > 0 {
			t.warnings = append(t.warnings, fmt.Sprintf(
				"%d of %d calibration images are also images to train on or to validate by, which score higher than new ones: more images will be flagged than is promised",
				n, len(own.labels)))
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
	err := errors.Join(t.release(), t.table.Close())
	if t.held != nil {
		err = errors.Join(err, t.held.Close())
	}
	return errors.Join(err, t.space.Close())
}

// summarise condenses the heads' histories; resumed of their steps took none of
// the seconds.
func summarise(history [][]head.Epoch, resumed int, seconds float64) *TrainResult {
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
	r.StepsPerSecond = float64(r.Steps-resumed) / seconds
	return r
}

// sourceOf takes over what a feature set says of how it was made.
func sourceOf(set *features.Set) Source {
	return Source{
		Fingerprint: set.Fingerprint, Model: set.Model, SHA256: set.ModelSHA256,
		Output: set.Output, Pool: set.Pool, Preprocess: set.Preprocess,
	}
}
