// Package evaluation compares methods of out-of-distribution detection, and heads
// that lack parts, on the same feature sets ([Evaluate], [Ablate]). It also says what is
// wrong with the images behind feature sets: labels that seem wrong, images that occur
// twice or in the test set as well, images that are far from all classes, and odd files
// ([Inspect]); what is known of a detector, with a map of its images ([Summarise]); and
// when a stream of scores is no longer like the calibration scores ([Martingale]).
package evaluation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// Heads that give logits, besides the linear one: that of a feature set's own logits,
// and the MLRBFN.
const (
	BackboneHead = "backbone"
	OwnHead      = "mlrbfn"
)

// DefaultSeeds are those that an evaluation and an ablation repeat with.
func DefaultSeeds() []uint64 { return []uint64{0, 1, 2} }

// OODSet is a feature set of images of none of the training classes.
type OODSet struct{ Group, Name, Features string }

// Options says what to measure on what. A zero field takes its default.
type Options struct {
	Train training.Options // the training features and how heads are trained; Seeds are those to repeat with, nil means DefaultSeeds. No threshold is set, so that Calibration is ignored
	ID    string           // feature set of in-distribution test images
	OOD   []OODSet

	// Methods are the scores to compare; nil means all of detector.ScoreNames but those
	// that cannot be fitted, of which Warn is told.
	Methods []string

	// Detector, where set, is a trained one that takes the place of training,
	// for its heads' own score and for the one that it judges by.
	Detector *detector.Detector

	// Head says whose logits post-hoc scores read: "" those of a linear head that
	// is fitted as Train.Linear says, or of Softmax, where it is set, a network
	// that is trained as SoftmaxTrain says (Epochs 0 means 100) and with one layer
	// is the paper's linear head; BackboneHead those of the backbone's own classifier;
	// OwnHead the MLRBFN's log-confidences, with what its last layer reads as
	// features; there are no weights, so that scores that need these cannot be
	// fitted.
	Head         string
	Softmax      *head.MLPConfig
	SoftmaxTrain head.TrainOptions

	Memory int64 // bytes that scoring takes, about; 0 means 1 GiB

	Out string // folder of the report

	// Against is the folder of an earlier report on the same images, which the page
	// compares with this one; "" for none.
	Against string

	Bootstrap int // resamples of the test images for confidence intervals in the report; 0 means metrics.DefaultResamples, less means none

	// For the report to show. ImageRoots are the folders that its thumbnails may
	// come from, as [images.FeatureSet] says.
	ImageRoots []string
	Commands   []string // to repeat the evaluation with
	Facts      []Fact   // versions, dates and the like

	// Report, where set, writes the report when all is measured and written.
	Report func(*Evaluation) error

	// Leaked, where set, is told which images are in two of the sets.
	Leaked func([]Leak)

	// Reliable, where set, is told how far confidences are probabilities.
	Reliable func(Reliability)

	// Assessed, where set, is told of each seed what class hold-out on the training
	// classes says, where detector.JoinedScore is compared.
	Assessed func(seed uint64, a *detector.Assessment)

	// Warn, where set, is told what is odd about the features.
	Warn func(string)

	// Progress, where set, is told what is being done, and how many of how
	// many epochs, of all heads together, or sets of images are. It is called
	// from several goroutines.
	Progress func(what string, done, total int)
}

// Evaluate trains the heads that the methods need, once per seed, fits scores,
// scores the in-distribution test set and all sets of OOD images, and writes
// results.csv, sets.json, which says what images it is on, and the scores,
// scores/METHOD/SEED/DATASET.npy, under opts.Out.
//
// A post-hoc score is fitted on all labelled training rows, ReAct's and KLM's
// on the validation features where these are a set of their own. The parts of an
// ensemble are fitted on the rows that heads train on: the validation rows, which
// put them on one scale, must be new to all. Results of a score that no seed
// changes are the same for every seed; the accuracy is that of the seed's
// softmax network.
func Evaluate(ctx context.Context, opts Options) ([]metrics.Measurement, error) {
	e, err := openEvaluation(ctx, opts)
	if err != nil {
		return nil, err
	}
	defer e.close()
	file := filepath.Join(opts.Out, "results.csv")
	if err := e.readEarlier(); err != nil {
		return nil, err
	}
	// Nothing is cleared before all is known to be writable.
	if err := errors.Join(detector.MkdirFor(file), disk.CheckWritable(file)); err != nil {
		return nil, err
	}
	if err := clearReport(opts.Out); err != nil {
		return nil, err
	}
	if err := e.leaveOut(opts.Methods != nil); err != nil {
		return nil, err
	}
	var results []metrics.Measurement
	var measured []string
	for _, method := range e.opts.Methods {
		runs, err := e.prepare(ctx, method)
		if opts.Methods == nil && errors.Is(err, errUnfit) && ctx.Err() == nil {
			e.warn(fmt.Sprintf("%s is left out: %s", method, options.Text(err)))
			continue
		}
		if err != nil {
			return nil, err
		}
		rows, err := e.measureAll(ctx, method, runs)
		if err != nil {
			return nil, err
		}
		delete(e.prepared, method) // with what it keeps
		measured, results = append(measured, method), append(results, rows...)
	}
	e.opts.Methods = measured
	if e.reliable, err = e.reliability(ctx); err != nil {
		return nil, err
	}
	if e.reliable != nil && opts.Reliable != nil {
		opts.Reliable(*e.reliable)
	}
	return results, e.report(ctx, results)
}

// contender is a kind of head that is trained with every seed and measured.
type contender struct {
	name    string          // in the report
	head    head.Config     // of an MLRBFN
	softmax *head.MLPConfig // of a ReLU network in its place, which scores by MSP
	linear  bool            // the linear head in its place
	train   head.TrainOptions

	// progress is called after each epoch, from several goroutines; nil means
	// to tell the evaluation's own.
	progress func(head.Epoch)
}

// contend returns the results of a contender with each seed and over them.
func (e *evaluation) contend(ctx context.Context, c contender) ([]metrics.Measurement, error) {
	all, err := e.trainAll(ctx, c)
	if err != nil {
		return nil, err
	}
	var runs []run
	for i, t := range all {
		r := run{e.seed(i), nil}
		if t.heads != nil {
			r.predict = verdictsOf(t.heads)
		} else {
			msp := &detector.Scoring{Parts: []detector.Part{{Name: "msp", Score: posthoc.MaxSoftmax{}, Scale: detector.Unscaled}}}
			r.predict = e.predictor(msp, t.classifier, nil)
		}
		runs = append(runs, r)
	}
	return e.measureAll(ctx, c.name, runs)
}

// measureAll returns the results of a method with each seed and over them.
func (e *evaluation) measureAll(ctx context.Context, method string, runs []run) ([]metrics.Measurement, error) {
	var single []metrics.Measurement
	for _, r := range runs {
		rows, err := e.measure(ctx, method, r)
		if err != nil {
			return nil, err
		}
		single = append(single, rows...)
	}
	return metrics.Summarise(single), nil
}

// evaluation is the open feature sets.
type evaluation struct {
	opts     Options
	train    *training.Data
	id       *features.Table
	idLabels []int64 // in the training classes; −1 where there is none
	ood      []*features.Table
	runs     []Run // what was scored
	leaked   []Leak
	reliable *Reliability // of confidences, once all is measured
	earlier  *Earlier
	room     int64 // bytes that may still be taken to keep logits

	// Trained when they are first asked for, one per seed.
	heads, softmax []trained

	rows     *posthoc.Data       // all labelled training rows, once they are asked for
	prepared map[string]prepared // methods that are not yet measured
	said     map[*detector.Detector]ownPredictor
}

// Check reports what is wrong with the methods and the names of the sets.
func (o Options) Check() error {
	for i, m := range o.Methods {
		if _, _, err := detector.ScoreParts(m); err != nil {
			return options.Errorf("Methods", "%w", err)
		}
		if slices.Contains(o.Methods[:i], m) {
			return options.Errorf("Methods", "%s is named twice", m)
		}
	}
	if !slices.Contains([]string{"", BackboneHead, OwnHead}, o.Head) {
		return options.Errorf("Head", "%q: it is %s, %s or none", o.Head, BackboneHead, OwnHead)
	}
	if o.Against != "" && disk.Same(o.Against, o.Out) {
		return options.Errorf("Against", "%s is the folder that the new report is written to, which replaces the earlier one", o.Against)
	}
	if len(o.OOD) == 0 {
		return options.Errorf("OOD", "no feature sets of out-of-distribution images are named")
	}
	for i, set := range o.OOD {
		reserved := set.Name == "id" || set.Name == "mean" || set.Name == "" || strings.ContainsAny(set.Name, `/\`) || strings.HasPrefix(set.Name, ".")
		if reserved || slices.ContainsFunc(o.OOD[:i], func(other OODSet) bool { return other.Name == set.Name }) {
			return options.Errorf("OOD", "set name %q: names are distinct file names, and not id or mean", set.Name)
		}
	}
	return nil
}

// withDefaults checks options and fills in the zero fields.
func (opts Options) withDefaults() (_ Options, err error) {
	if err := opts.Check(); err != nil {
		return opts, err
	}
	if opts.Methods == nil {
		opts.Methods = detector.ScoreNames
	}
	if opts.Softmax != nil {
		opts.SoftmaxTrain.Epochs = cmp.Or(opts.SoftmaxTrain.Epochs, 100)
		shape, shapeErr := opts.Softmax.WithDefaults()
		if opts.SoftmaxTrain, err = opts.SoftmaxTrain.WithDefaults(); errors.Join(shapeErr, err) != nil {
			return opts, errors.Join(shapeErr, err)
		}
		opts.Softmax = &shape
	}
	opts.Memory = cmp.Or(opts.Memory, posthoc.DefaultMemory)
	opts.Bootstrap = max(cmp.Or(opts.Bootstrap, metrics.DefaultResamples), 0)
	opts.Train.Calibration = training.Share{None: true}
	if len(opts.Train.Seeds) == 0 {
		opts.Train.Seeds = DefaultSeeds()
	}
	return opts, nil
}

// needLayers refuses sets that have not just these layers, unless none are asked for.
func needLayers(layers []features.Layer, sets []*features.Set) error {
	for _, set := range sets {
		if len(layers) > 0 && !slices.Equal(set.Layers, layers) {
			return fmt.Errorf("features %s %w that are read beside them: extract the images again, with the layers %v", set.Dir, features.ErrLayers, layers)
		}
	}
	return nil
}

// checkDetector refuses a detector that was not trained on features like these.
func (e *evaluation) checkDetector(d *detector.Detector) error {
	if own := len(d.Embeddings(make([]float32, d.Dim()))); own != e.train.D {
		return fmt.Errorf("the detector reads %d features and the sets have %d", own, e.train.D)
	}
	if err := needLayers(d.Source.Layers, e.train.Sets); err != nil {
		return err
	}
	if !slices.Equal(d.Classes, e.train.Classes) {
		return errors.New("the detector has other classes than the training features")
	}
	if !features.Comparable(e.train.Sets[0].Space(), d.Source.Space()) {
		return fmt.Errorf("the detector was trained on features of another model or preprocessing: %w", features.ErrFingerprint)
	}
	return nil
}

// checkLogits refuses sets without the backbone's logits of the classes.
func (e *evaluation) checkLogits() error {
	tables := append([]*features.Table{e.train.Table, e.id}, e.ood...)
	if e.train.Held != nil {
		tables = append(tables, e.train.Held)
	}
	for _, t := range tables {
		if err := t.CheckLogits(len(e.train.Classes)); err != nil {
			return err
		}
	}
	for _, set := range e.train.Sets {
		if !slices.Equal(set.Classes, e.train.Classes) {
			return fmt.Errorf("features %s have other classes, or in another order, than all training features together: what their logits are of cannot be told", set.Dir)
		}
	}
	return nil
}

func openEvaluation(ctx context.Context, opts Options) (_ *evaluation, err error) {
	if opts, err = opts.withDefaults(); err != nil {
		return nil, err
	}
	e := &evaluation{opts: opts, room: opts.Memory / 4, prepared: map[string]prepared{}}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	if e.train, err = training.Open(ctx, e.opts.Train); err != nil {
		return nil, err
	}
	open := func(dir string) (*features.Table, error) {
		t, err := features.OpenTableLike(ctx, nil, e.train.Sets[0], dir)
		if err != nil {
			return nil, err
		}
		if len(t.Labels) == 0 {
			return nil, errors.Join(fmt.Errorf("features %s have no rows", dir), t.Close())
		}
		if err := needLayers(e.train.Sets[0].Layers, t.Sets); err != nil { // scores of the training may read them
			return nil, errors.Join(err, t.Close())
		}
		return t, nil
	}
	if e.id, err = open(opts.ID); err != nil {
		return nil, err
	}
	if e.idLabels, err = features.Relabel(e.id.Sets[0], e.train.Classes); err != nil {
		return nil, err
	}
	for _, set := range opts.OOD {
		t, err := open(set.Features)
		if err != nil {
			return nil, err
		}
		e.ood = append(e.ood, t)
	}
	if d := opts.Detector; d != nil {
		if err := e.checkDetector(d); err != nil {
			return nil, err
		}
	}
	if opts.Head == BackboneHead {
		if err := e.checkLogits(); err != nil {
			return nil, err
		}
	}
	for _, w := range e.train.Warnings {
		e.warn(w)
	}
	if e.leaked, err = e.leaks(ctx); err != nil {
		return nil, err
	}
	if len(e.leaked) > 0 && opts.Leaked != nil {
		opts.Leaked(e.leaked)
	}
	return e, nil
}

func (e *evaluation) warn(text string) {
	if e.opts.Warn != nil {
		e.opts.Warn(text)
	}
}

// seed names the i-th.
func (e *evaluation) seed(i int) string { return strconv.FormatUint(e.train.Options.Seeds[i], 10) }

func (e *evaluation) close() {
	tables := append([]*features.Table{e.id}, e.ood...)
	if e.train != nil {
		e.train.Close()
	}
	for _, t := range tables {
		if t != nil {
			t.Close()
		}
	}
}

// run is a method ready to score.
type run struct {
	seed    string
	predict predictor
}

// predictor gives the scores [n] and classes [n] of a table's rows.
type predictor func(ctx context.Context, t *features.Table) (scores []float64, classes []int, err error)

// trained is a contender fitted with one seed.
type trained struct {
	heads      *detector.Detector   // an MLRBFN
	classifier *training.Classifier // or a softmax network
}

// trainAll trains a contender with each seed.
func (e *evaluation) trainAll(ctx context.Context, c contender) ([]trained, error) {
	seeds := e.train.Options.Seeds
	all := make([]trained, len(seeds))
	var done atomic.Int64
	if c.progress == nil {
		c.progress = func(head.Epoch) { e.tell(c.name+": training", int(done.Add(1)), c.train.Epochs*len(seeds)) }
	}
	group, ctx := parallel.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, seed := range seeds {
		group.Go(func() (err error) {
			all[i], err = e.fit(ctx, c, seed)
			if c.linear {
				e.tell(c.name+": fitting", int(done.Add(1)), len(seeds))
			}
			return err
		})
	}
	return all, group.Wait()
}

// fit trains a contender with one seed. Every seed has a split of its own.
func (e *evaluation) fit(ctx context.Context, c contender, seed uint64) (trained, error) {
	if c.linear {
		network, err := e.train.FitLinear(ctx, seed)
		return trained{classifier: network}, err
	}
	o := c.train
	o.Progress = c.progress
	if c.softmax != nil {
		network, err := e.train.TrainNetwork(ctx, seed, *c.softmax, o)
		return trained{classifier: network}, err
	}
	heads, err := e.train.TrainHead(ctx, seed, c.head, o)
	return trained{heads: heads}, err
}

// threshold returns the one that the detector has for the scores of a method; nil
// without one for all images.
func (e *evaluation) threshold(method string) *float64 {
	d := e.opts.Detector
	if d == nil || method != d.ScoreName() || d.ByClass != nil || len(d.Folds) > 0 || math.IsInf(d.Threshold, 0) {
		return nil
	}
	return &d.Threshold
}

// verdictsOf returns a predictor by a detector's verdicts.
func verdictsOf(d *detector.Detector) predictor {
	return func(ctx context.Context, t *features.Table) (scores []float64, classes []int, err error) {
		verdicts, err := verdictsOn(ctx, d, t)
		for _, v := range verdicts {
			scores, classes = append(scores, v.Score), append(classes, v.Label)
		}
		return scores, classes, err
	}
}

// verdictsOn returns a detector's verdicts on all rows of a table.
func verdictsOn(ctx context.Context, d *detector.Detector, t *features.Table) (all []detector.Verdict, err error) {
	chunks := t.Chunks()
	if len(d.Source.Layers) > 0 {
		chunks = t.ChunksWithLayers()
	}
	for x := range chunks {
		some, err := d.Verdicts(ctx, x)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

func (e *evaluation) tell(what string, done, total int) {
	if e.opts.Progress != nil {
		e.opts.Progress(what, done, total)
	}
}

// measure scores all sets, writes the scores where there is a folder for them,
// and returns the results on each.
func (e *evaluation) measure(ctx context.Context, method string, r run) ([]metrics.Measurement, error) {
	meanwhile, _ := parallel.WithContext(ctx) // while the next sets are scored
	defer func() { _ = meanwhile.Wait() }()   // where scoring fails
	scored := 0
	score := func(dataset string, t *features.Table) ([]float64, []int, error) {
		scores, classes, err := r.predict(ctx, t)
		if err == nil && e.opts.Out != "" {
			meanwhile.Go(func() error { return writeScores(e.scoresFile(method, r.seed, dataset), scores) })
		}
		scored++
		e.tell(fmt.Sprintf("%s, seed %s: scoring", method, r.seed), scored, 1+len(e.ood))
		return scores, classes, err
	}
	id, predicted, err := score("id", e.id)
	if err != nil {
		return nil, err
	}
	allPredicted := map[string][]int{"id": predicted}
	e.runs = append(e.runs, Run{Method: method, Seed: r.seed, Predicted: allPredicted, Threshold: e.threshold(method), Scores: func(dataset string) ([]float64, error) {
		scores, _, err := npy.Read[float64](e.scoresFile(method, r.seed, dataset))
		return scores, err
	}})
	accuracy, seed := e.accuracy(predicted), r.seed
	results := make([]metrics.Measurement, len(e.ood))
	for i, set := range e.opts.OOD {
		ood, classes, err := score(set.Name, e.ood[i])
		if err != nil {
			return nil, err
		}
		allPredicted[set.Name] = classes
		meanwhile.Go(func() error {
			r := metrics.Measure(id, ood)
			r.Method, r.Seed, r.Group, r.Dataset, r.IDAcc = method, seed, set.Group, set.Name, accuracy
			results[i] = r
			return nil
		})
	}
	if err := meanwhile.Wait(); err != nil {
		return nil, err
	}
	return results, nil
}

// accuracy is the share of labelled test images whose class is right; NaN
// without any, or where there is one class alone.
func (e *evaluation) accuracy(predicted []int) float64 {
	if len(e.train.Classes) == 1 {
		return math.NaN()
	}
	var pred, labels []int
	for i, y := range e.idLabels {
		if y >= 0 {
			pred, labels = append(pred, predicted[i]), append(labels, int(y))
		}
	}
	return metrics.Accuracy(pred, labels)
}

func (e *evaluation) scoresFile(method, seed, dataset string) string {
	return filepath.Join(e.opts.Out, "scores", method, seed, dataset+".npy")
}

func writeScores(path string, scores []float64) error {
	if err := detector.MkdirFor(path); err != nil {
		return err
	}
	return npy.WriteFile(path, scores, len(scores))
}
