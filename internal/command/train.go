package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
	"github.com/mlrbfn/mlrbfn/report"
)

// fitting is the command train.
type fitting struct {
	*command
	heads                   *HeadFlags // whose options are those of the training
	adding                  *addFlags
	out, page               string
	roots                   []string
	bundle, force           bool
	alarms                  float64
	resume, restart, verify bool
}

var _ = declare("train", 20, "--features FEATURES --out DETECTOR [flags]", "Train a detector on features",
	`Trains a detector on the labelled images of feature sets and writes it as one file.

With --add NAME=DIR --detector OLD, it adds images of a class to OLD; only they are extracted.

An interrupted training continues with the same command, and the detector is bit-identical.`, addTrain)

func addTrain(c *command) {
	t := &fitting{command: c, heads: &HeadFlags{flags: c.FlagSet}}
	c.of = t
	o := &t.heads.options
	c.sets(o, &t.heads.shape)
	c.readsURLs = []string{"features", "val", "calibration", "outliers"}
	c.section("input")
	c.StringArrayVar(&o.Features, "features", nil, "feature set `FEATURES` to train on (repeat for several)")
	c.StringArrayVar(&o.Outliers, "outliers", nil, "`FEATURES` of known out-of-distribution images to learn from (repeat)")
	c.StringVar(&o.Exclude, "exclude", "", "leave out the images in `FILE`: an issues.csv, or paths")
	c.StringVar(&o.Relabel, "relabel", "", "give images the class that `FILE`, an issues.csv, suggests")
	t.adding = addAddFlags(c)
	c.programOnly("features")
	c.section("output")
	c.StringVar(&t.out, "out", "", "file `DETECTOR` to write")
	c.means("out", "Out")
	c.StringVar(&t.page, "report", "", "write a page about the detector to `FILE.html`; show makes one later")
	c.StringArrayVar(&t.roots, "images", nil, "`FOLDER` that images of --report may come from (repeat); default: those that the feature sets record")
	c.means("images", "Images", "Sources", "Roots")
	c.BoolVar(&t.bundle, "bundle", false, "make DETECTOR a folder with a copy of the model, for any machine")
	c.BoolVar(&t.force, "force", false, "replace a detector of other classes")
	c.means("force", "Force")
	c.addJSON("print the result as one JSON object")
	c.addQuiet("show no progress")
	c.programOnly("out", "report", "images", "bundle", "force", "json", "quiet")
	c.rare("images")
	c.section("threshold")
	addShare(c.FlagSet, &o.Calibration, true, "calibration", "`SHARE` of the training images, or feature set, to set the threshold by; cross:K: K folds; auto: cross:10 for few; 0: none")
	c.Float64Var(&t.alarms, "max-false-alarms", 1-training.DefaultTargetTPR, "`SHARE` of in-distribution images that may be flagged")
	c.means("max-false-alarms", "TargetTPR", "MaxFalseAlarms")
	c.Float64Var(&o.TargetTPR, "target-tpr", training.DefaultTargetTPR, "the same as --max-false-alarms of 1 − `SHARE`")
	c.StringVar(&o.Score, "scores", detector.JoinedScore, "`SCORE` to judge by: a method of evaluate, as "+detector.HeadScore+" or ensemble(A,B,…)")
	c.BoolVar(&o.PerClass, "per-class", false, "a threshold for each class; needs about 20 calibration images per class")
	c.BoolVar(&o.NoHoldOut, "no-assess", false, "leave out class hold-out: no assessment, and fixed weights of the score's parts")
	c.programOnly("target-tpr")
	c.section("head and training")
	t.heads.add(training.DefaultSeeds())
	c.rare("target-tpr", "preset", "conditioning", "no-assess")
	c.rare(rareHeadFlags...)
	c.section("running")
	c.Var((*Bytes)(&o.Memory), "memory", "memory for features, about (default: half of the machine's)")
	c.addCacheFlag()
	c.DurationVar(&o.CheckpointEvery, "checkpoint-every", training.DefaultCheckpointEvery, "how often the state of training is saved; 0: never, and no checkpoint is read")
	c.BoolVar(&t.resume, "resume", false, "continue from DETECTOR.checkpoint, which must exist; --lr may differ")
	c.means("resume", "Resume")
	c.BoolVar(&t.restart, "restart", false, "start anew even if DETECTOR.checkpoint exists")
	c.BoolVar(&t.verify, "verify", false, "first compare the feature sets with their checksums")
	c.programOnly("cache", "checkpoint-every", "resume", "restart", "verify")
	c.rare("checkpoint-every", "verify", "resume")
	c.takes(0, 0, "; --features repeats for each set")
	c.run = t.run
}

// options returns what is trained with, as far as the flags alone say.
func (t *fitting) options() (pipeline.TrainOptions, error) {
	set := &t.heads.options
	switch {
	case t.Changed("max-false-alarms") && t.Changed("target-tpr"):
		return *set, Usagef("--max-false-alarms and --target-tpr say the same thing: give one of them")
	case !(t.alarms > 0 && t.alarms < 1):
		return *set, Usagef("--max-false-alarms %g: a share lies between 0 and 1", t.alarms)
	case !(set.TargetTPR > 0 && set.TargetTPR < 1):
		return *set, Usagef("--target-tpr %g: a share lies between 0 and 1", set.TargetTPR)
	case t.Changed("max-false-alarms"):
		set.TargetTPR = 1 - t.alarms
	}
	if err := detector.CheckScores(set.Score); err != nil {
		return *set, Usagef("--scores: %w", err)
	}
	opts, err := t.heads.Options()
	if err != nil {
		return opts, err
	}
	if v, c := opts.Validation, opts.Calibration; v.Fraction+c.Fraction >= 1 {
		return opts, Usagef("--val %s and --calibration %s leave nothing to train on", v, c)
	}
	opts.Tool = Version()
	return opts, nil
}

// check reads and checks the flags, and loads the detector that images are added to.
func (t *fitting) check() (pipeline.TrainOptions, error) {
	none := pipeline.TrainOptions{}
	if err := t.adding.check(); err != nil {
		return none, err
	}
	required := []string{"features", "out"}
	if t.adding.on() {
		required = required[1:]
	}
	if err := needed(t.FlagSet, required); err != nil {
		return none, err
	}
	opts, err := t.options()
	if err != nil {
		return none, err
	}
	every, sets, memory := opts.CheckpointEvery, opts.Features, opts.Memory
	switch {
	case t.Changed("images") && t.page == "":
		return none, Usagef("--images goes with --report")
	case every < 0:
		return none, Usagef("--checkpoint-every %s: it is not negative", every)
	case t.resume && t.restart, t.resume && every == 0:
		return none, Usagef("--resume goes with neither --restart nor --checkpoint-every 0")
	}
	opts.AllowDriftedFeatures = t.adding.opts.Extract.AllowDriftedFeatures
	if t.bundle {
		t.out = filepath.Join(t.out, detector.BundleFile)
	}
	if t.adding.on() {
		if opts, err = t.adding.read(t.out, sets, opts.Outliers); err != nil {
			return none, err
		}
	}
	switch {
	case t.resume:
		opts.Resume = training.ResumeAlways
	case t.restart:
		opts.Resume = training.ResumeNever
	}
	opts.CheckpointEvery = every
	if every > 0 {
		opts.Checkpoint = t.out + ".checkpoint"
	}
	opts.Memory, opts.Scratch, opts.Tool = memory, filepath.Dir(t.out), Version()
	return opts, nil
}

// prepare looks whether what will be written can be, and verifies the feature sets if asked.
func (t *fitting) prepare(ctx context.Context, opts pipeline.TrainOptions, s Streams) error {
	if err := prepareOutput(t.out); err != nil {
		return err
	}
	if err := report.CheckPage(t.page); err != nil {
		return err
	}
	if !t.force && !(opts.Checkpoint != "" && !t.restart && exists(opts.Checkpoint)) {
		if err := mayReplace(s.Err, t.out, func() ([]string, error) { return t.classes(ctx) }); err != nil {
			return err
		}
	}
	if !t.verify {
		return nil
	}
	all := slices.Concat(opts.Features, opts.Outliers)
	for _, share := range []pipeline.Share{opts.Validation, opts.Calibration} {
		if share.Features != "" {
			all = append(all, share.Features)
		}
	}
	return pipeline.Verify(ctx, all...)
}

// classes lists the classes of the detector to be.
func (t *fitting) classes(ctx context.Context) ([]string, error) {
	return t.adding.classes(ctx, t.heads.options.Features)
}

func (t *fitting) run(ctx context.Context, s Streams) error {
	opts, err := t.check()
	if err != nil {
		return err
	}
	if err := t.prepare(ctx, opts, s); err != nil {
		return err
	}
	progress := t.progress(s, "epochs")
	classes, _ := t.classes(ctx) // what is wrong with the sets is found below
	shown := newEpochs(progress, opts, len(distinct(classes)) == 1)
	opts.Progress, opts.Stage = shown.update, func(what string, done, total int) {
		done += shown.begin(what, total)
		if total >= 0 {
			progress.Phase(what, done, total)
		}
	}
	opts.Resumed = func(epochs []int) {
		shown.resume(epochs)
		if !t.quiet {
			fmt.Fprintf(s.Err, "train: continuing from %s, %d of %d epochs\n", opts.Checkpoint, shown.done(), shown.total())
		}
	}
	var detector *pipeline.Detector
	var result *pipeline.TrainResult
	var change *pipeline.Addition
	if t.adding.on() {
		detector, result, change, err = t.adding.run(ctx, s, opts)
	} else {
		detector, result, err = pipeline.Train(ctx, opts)
	}
	progress.Close()
	if err != nil {
		return adviseTraining(s.Err, err, opts.Checkpoint)
	}
	if err := detector.Save(t.out); err != nil {
		return err
	}
	if opts.Checkpoint != "" {
		if err := os.Remove(opts.Checkpoint); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if t.bundle {
		if err := detector.Bundle(ctx, t.out); err != nil {
			return fmt.Errorf("%s is saved, but its model could not be copied beside it: %w", t.out, err)
		}
	}
	return t.tell(ctx, s, detector, result, change)
}

// tell says what was trained, and writes the page.
func (t *fitting) tell(ctx context.Context, s Streams, d *pipeline.Detector, r *pipeline.TrainResult, change *pipeline.Addition) (err error) {
	for i, w := range r.Warnings {
		r.Warnings[i] = t.adviseText(w)
		fmt.Fprintf(s.Err, "train: warning: %s\n", r.Warnings[i])
	}
	if t.page != "" {
		if err := t.writeDetectorPage(ctx, t.page, t.out, pipeline.SummaryOptions{Detector: d, Roots: t.roots}, t.adding.change(change)); err != nil {
			return fmt.Errorf("%s is saved, but not the page: %w", t.out, err)
		}
	}
	type addition struct {
		Detector string `json:"detector"` // before
		*pipeline.Addition
	}
	result := struct {
		*pipeline.TrainResult
		Addition *addition `json:"addition,omitempty"`
	}{TrainResult: r}
	if change != nil {
		result.Addition = &addition{t.adding.file, change}
	}
	text := fmt.Sprintf("%s: %s\n%s", t.out, describe(d, r), t.adding.describe(change))
	if t.page != "" {
		text += fmt.Sprintf("look at %s\n", t.page)
	}
	text += "next: " + nextStep(r, t.out) + "\n"
	err = t.print(s, result, text)
	return errors.Join(err, t.adding.unreadable(s.Err, change))
}

// prepareOutput makes the folders above a file that will be written and checks
// that it can be.
func prepareOutput(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return disk.CheckWritable(path)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// mayReplace refuses to replace a file that is not a detector of these classes. If it
// is one, it prints that it will be replaced.
func mayReplace(stderr io.Writer, out string, of func() ([]string, error)) error {
	if !exists(out) {
		return nil
	}
	old, err := pipeline.LoadDetector(out)
	if err != nil {
		return fmt.Errorf("%s exists and is not a detector that this version reads; --force replaces it", out)
	}
	classes, err := of()
	if err != nil {
		return err
	}
	classes = distinct(classes)
	missing := slices.DeleteFunc(slices.Clone(old.Classes), func(class string) bool { return slices.Contains(classes, class) })
	added := slices.DeleteFunc(slices.Clone(classes), func(class string) bool { return slices.Contains(old.Classes, class) })
	var differences []string
	if len(missing) > 0 {
		differences = append(differences, "the features lack "+some(missing, 4))
	}
	if len(added) > 0 {
		differences = append(differences, "the detector lacks "+some(added, 4))
	}
	if len(differences) > 0 {
		return fmt.Errorf("%s exists and has %s, the features have %d: %s; --force replaces it", out, count(len(old.Classes), "class"), len(classes), strings.Join(differences, ", "))
	}
	fmt.Fprintf(stderr, "train: %s will be replaced, which has the same %s\n", out, count(len(classes), "class"))
	return nil
}

// distinct returns names without repetitions, in order.
func distinct(names []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(names)))
}

// classesOf lists the classes of feature sets.
func classesOf(ctx context.Context, sets []string) (classes []string, err error) {
	for _, dir := range sets {
		set, err := features.Open(ctx, dir)
		if err != nil {
			return nil, err
		}
		classes = append(classes, set.Classes...)
		if err := set.Close(); err != nil {
			return nil, err
		}
	}
	return classes, nil
}

// adviseTraining adds to an error of training what to do next; checkpoint is its file, ""
// for none.
func adviseTraining(stderr io.Writer, err error, checkpoint string) error {
	saved := checkpoint != "" && exists(checkpoint)
	switch {
	case errors.Is(err, context.Canceled) && saved:
		fmt.Fprintf(stderr, "train: the state of training is in %s; the same command continues from there, and --restart starts anew\n", checkpoint)
	case errors.Is(err, head.ErrDiverged) && saved:
		return fmt.Errorf("%w; the last good state is in %s: --resume with another --lr continues from there, --restart starts anew", err, checkpoint)
	case errors.Is(err, training.ErrOtherTraining):
		return fmt.Errorf("%w; the command that began it continues it, --resume if only --lr differs; --restart starts anew", err)
	}
	return err
}

// epochs shows how far all heads together are.
type epochs struct {
	progress *Progress
	each     int  // epochs of a head
	oneClass bool // its accuracy is always 1 and is not shown

	mu     sync.Mutex
	behind []int        // epochs per head
	last   []head.Epoch // the latest per head; zero before the first
}

func newEpochs(progress *Progress, opts pipeline.TrainOptions, oneClass bool) *epochs {
	heads := len(opts.Seeds)
	return &epochs{progress: progress, each: opts.Train.Epochs, oneClass: oneClass, behind: make([]int, heads), last: make([]head.Epoch, heads)}
}

func (p *epochs) total() int { return p.each * len(p.behind) }

func (p *epochs) done() (n int) {
	for _, epochs := range p.behind {
		n += epochs
	}
	return n
}

// begin takes the number of epochs from the stage of training, and returns how many
// were done before.
func (p *epochs) begin(what string, total int) int {
	if what != training.TrainingStage {
		return 0
	}
	p.each = total / max(1, len(p.behind))
	return p.done()
}

// resume begins with the epochs that each head did before.
func (p *epochs) resume(behind []int) { copy(p.behind, behind) }

// update notes an epoch and shows the means over the heads.
func (p *epochs) update(i int, e head.Epoch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.behind[i], p.last[i] = e.Epoch, e
	var mean head.Epoch
	var n float64
	for _, e := range p.last {
		if e.Epoch > 0 {
			n++
			mean.TrainLoss += e.TrainLoss
			mean.ValLoss += e.ValLoss
			mean.ValAccuracy += e.ValAccuracy
			mean.LR += e.LR
		}
	}
	note := fmt.Sprintf("loss %.4f, validation loss %.4f", mean.TrainLoss/n, mean.ValLoss/n)
	if !p.oneClass {
		note += fmt.Sprintf(", accuracy %.4f", mean.ValAccuracy/n)
	}
	p.progress.Update(p.done(), p.total(), fmt.Sprintf("%s, learning rate %.2g", note, mean.LR/n))
}

// describe says in a few lines what was trained.
func describe(d *pipeline.Detector, r *pipeline.TrainResult) string {
	text := fmt.Sprintf("%s, %s of %s, trained on %s for %s (%s in %.3g s)\n",
		count(len(d.Classes), "class"), count(len(d.Heads), "head"), count(d.Heads[0].Network.Settings().Layers, "layer"), count(r.Rows.Train, "image"), count(r.Epochs, "epoch"), count(r.Steps, "step"), r.Seconds)
	text += fmt.Sprintf("loss %.4f, validation loss %.4f", r.TrainLoss, r.ValLoss)
	if r.ValAccuracy != nil {
		text += fmt.Sprintf(", validation accuracy %.4f, balanced %.4f (%s)", *r.ValAccuracy, *r.ValBalancedAccuracy, count(r.Rows.Validation, "image"))
		text += worstClasses(r.ValClasses)
	}
	if len(d.Classes) == 1 {
		text += fmt.Sprintf("\none class: detect says whether an image is of %s, by the score %s", Printable(d.Classes[0]), r.Score)
		if r.Score == "knn" {
			text += " (nearest training images)"
		}
		text += "; promised is how few of its images are flagged, not how many other images are caught"
		if d.Source.Patches == nil {
			text += "\nit sees what changes the whole image, and hardly a scratch or a spot: for these, extract with --layers auto --patches auto"
		} else {
			text += "\nit also sees places that are unlike all places of the training images; not what is in a wrong place, and hardly what is smaller than a sixteenth of the image's side"
		}
	}
	switch {
	case r.Threshold == nil:
	case r.CrossBound != nil:
		text += fmt.Sprintf("\np-values of the score %s by %s in %s, each judged without its own fold, to flag about %.4g%% of in-distribution images; proven is at most %.3g%%",
			r.Score, count(r.Rows.Calibration, "image"), count(len(d.Folds), "fold"), 100*(1-d.TargetTPR), 100**r.CrossBound)
	default:
		text += fmt.Sprintf("\nthreshold %.4f of the score %s, set by %s to flag at most %.4g%% of in-distribution images",
			*r.Threshold, r.Score, count(r.Rows.Calibration, "calibration image"), 100*(1-d.TargetTPR))
		if d.ByClass != nil {
			text += fmt.Sprintf("\nthresholds by class, the largest %.4f, the smallest %.4f; what follows is of the class with the fewest calibration images", largestThreshold(d, 1), -largestThreshold(d, -1))
		}
		text += fmt.Sprintf("\nlong-run false alarms of this threshold: %.2g%% to %.2g%% of in-distribution images (95%% confidence interval)", 100*r.FalseAlarms[0], 100*r.FalseAlarms[1])
	}
	if r.Threshold != nil && evaluation.FewForDrift(len(d.CalibrationScores)) {
		text += fmt.Sprintf("\ndrift: with %s, a small part of images that is different from the first one on may never be noticed", count(len(d.CalibrationScores), "calibration image"))
	}
	if r.NoAssessment != "" {
		text += "\n" + r.NoAssessment
	}
	return text + assessed(r.Assessment)
}

// Below lowAccuracy the classes are the trouble, and below fewCalibration the threshold is:
// its long-run false alarms may be twice what was promised.
const (
	lowAccuracy    = 0.8
	fewCalibration = 100
)

// nextStep says what to do next with a detector that was written to a file.
func nextStep(r *pipeline.TrainResult, file string) string {
	switch {
	case r.ValAccuracy != nil && *r.ValAccuracy < lowAccuracy:
		return fmt.Sprintf("%.0f%% of the validation images get their class, which is low: more images of the worst classes, or a stronger model (`mlrbfn models`), would help; `mlrbfn inspect` finds labels that seem wrong", 100**r.ValAccuracy)
	case r.Threshold != nil && r.CrossBound == nil && r.Rows.Calibration < fewCalibration:
		return fmt.Sprintf("%s are few for a threshold: more images would help, or `--calibration cross:10`, by which all of them calibrate", count(r.Rows.Calibration, "calibration image"))
	}
	return fmt.Sprintf("`%s NEW…` judges new images, `mlrbfn discover` a folder of them together; `mlrbfn inspect` finds wrong labels and copies in the training images", CommandLine("mlrbfn", []string{"detect", "--detector", file}))
}

// assessed says what class hold-out found.
func assessed(a *pipeline.Assessment) string {
	if a == nil {
		return ""
	}
	hardest, class := hardestClass(a)
	text := fmt.Sprintf("\na new class like yours would be noticed with AUROC %s; hardest: %s (%.3f), taken for %s",
		expectedAUROC(a), Printable(hardest), class.AUROC, Printable(class.TakenFor))
	if at5, ok := a.CaughtAt(0.05); ok {
		text += fmt.Sprintf("; at 5%% false alarms %.0f%% are caught", 100*at5)
	}
	text += " (class hold-out; a class that resembles none of yours stays unknown)"
	if o := a.Outliers; o != nil && o.Weight > 0 {
		of := func(g detector.Gain) string {
			text := fmt.Sprintf("AUROC %.3f (without them %.3f)", g.AUROC, g.AUROCWithout)
			if _, ok := a.CaughtAt(0.05); ok {
				text += fmt.Sprintf(", at 5%% false alarms %.0f%% (%.0f%%) caught", 100*g.Caught, 100*g.CaughtWithout)
			}
			return text
		}
		text += fmt.Sprintf("\n%s: outliers left out are told with %s; classes left out with %s", count(o.Images, "known outlier"), of(o.Outliers), of(o.Classes))
	}
	return text
}

// expectedAUROC writes the mean over the classes, and the interval for a further one.
func expectedAUROC(a *pipeline.Assessment) string {
	if a.Interval == nil {
		return fmt.Sprintf("%.3f", a.AUROC)
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", a.AUROC, a.Interval[0], a.Interval[1])
}

// largestThreshold returns the largest of the classes' thresholds times a sign.
func largestThreshold(d *pipeline.Detector, sign float64) float64 {
	most := math.Inf(-1)
	for c := range d.Classes {
		most = max(most, sign*d.ThresholdOf(c))
	}
	return most
}

// worstClasses names the classes, three at most, whose validation images the
// detector gives another class more often than not.
func worstClasses(classes []training.ClassRecall) string {
	bad := slices.DeleteFunc(slices.Clone(classes), func(c training.ClassRecall) bool { return 2*c.Right >= c.Images })
	slices.SortStableFunc(bad, func(a, b training.ClassRecall) int { return cmp.Compare(a.Recall(), b.Recall()) })
	if len(bad) == 0 {
		return ""
	}
	names := lists.Map(bad[:min(len(bad), 3)], func(c training.ClassRecall) string {
		return fmt.Sprintf("%s (%d of %d right)", Printable(c.Class), c.Right, c.Images)
	})
	return "\nworst classes: " + strings.Join(names, ", ")
}

// trainLine returns the command that trains a detector again, as far as its file says: the
// command train, whose flags are given what differs from what they are without.
func trainLine(d *pipeline.Detector, out string) string {
	was, _, err := training.Recorded(d)
	if err != nil {
		return ""
	}
	t := commands["train"].make().of.(*fitting)
	h, o := t.heads, &t.heads.options
	if _, paper := was.Head.(head.Paper); paper {
		h.network = "paper"
		err = errors.Join(t.Set("paper", "true"), h.takePaper(""))
	}
	without := map[string]string{}
	t.VisitAll(func(f *pflag.Flag) { without[f.Name] = f.Value.String() })
	if err = errors.Join(err, h.take(h.network, was.Head, was.Train)); err != nil {
		return ""
	}
	t.out, t.alarms, h.conditioning = out, math.Round((1-was.TargetTPR)*1e12)/1e12, conditioningName(was.Conditioning)
	o.Features, o.Seeds, o.GroupBy, o.PerClass, o.NoHoldOut = was.Features, was.Seeds, was.GroupBy, was.PerClass, was.NoHoldOut
	o.Outliers = was.Outliers
	o.Conditioning, o.Validation, o.Calibration = was.Conditioning, was.Validation, was.Calibration
	if h.shape.Residual || was.Score != detector.HeadScore {
		o.Score = was.Score
	}
	t.VisitAll(func(f *pflag.Flag) { f.Changed = f.Changed || !f.Hidden && f.Value.String() != without[f.Name] })
	return t.line()
}

// corrected says which labels the training was given by an issues.csv or a review of calibration images, whose name the
// detector does not have; "" for none.
func corrected(d *pipeline.Detector) string {
	if len(d.Relabelled) == 0 {
		return ""
	}
	left := 0
	for _, class := range d.Relabelled {
		if class < 0 {
			left++
		}
	}
	return fmt.Sprintf("by an issues.csv or a review of calibration images, %s left out and %s given another label: to repeat the training, add --exclude or --relabel",
		plural(left, "%d image was", "%d images were"), plural(len(d.Relabelled)-left, "%d image was", "%d images were"))
}

// conditioningName is the value of --conditioning.
func conditioningName(o head.ConditioningOptions) string {
	switch {
	case o.L2 && (o.Kind == head.None || o.Kind == ""):
		return "l2"
	case o.L2:
		return "l2+" + string(o.Kind)
	}
	return string(cmp.Or(o.Kind, head.None))
}
