package training

import (
	"cmp"
	"fmt"
	"time"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// Defaults of Options.
const (
	DefaultTargetTPR       = 0.95
	DefaultCheckpointEvery = 30 * time.Second
)

// DefaultSeeds are the seeds of a detector's heads.
func DefaultSeeds() []uint64 { return []uint64{0} }

// Options says what to train a detector on, and how. A zero field takes
// its default.
type Options struct {
	Features []string // folders of feature sets, all of one model; needed

	// Rows, unless nil, is a feature set to train on in place of Features, which may be
	// one in memory.
	Rows *features.Set

	// Validation steers the learning rate; Calibration sets the threshold and
	// the p-values and is used for nothing else. Each takes a tenth of the
	// labelled rows by default.
	Validation, Calibration Share

	// GroupBy, where set, is a regular expression that names the group of an image
	// by its path in the feature set: what the first bracketed part matches, or all
	// that the expression matches. Images of one group, such as the frames of a
	// video or the photographs of a patient, stay in one part of the split, as
	// identical and nearly identical ones do always.
	GroupBy string

	// Exclude and Relabel are files issues.csv of an inspection of Features, from which
	// a person may have deleted lines. Copies and leaks of Exclude are left out; its wrong
	// labels and outliers are not trained on, but validate and calibrate where they would
	// without it. Exclude may also be a list of paths, one a line, which are left out. Images of Relabel whose label seemed wrong get the suggested class, even if Exclude has
	// them too.
	Exclude, Relabel string

	// Outliers are folders of feature sets of out-of-distribution images that are known,
	// of the same model, with or without labels. They are one more part of
	// detector.JoinedScore, with a weight that class hold-out chooses: 0 where the part
	// gains nothing, or harms on classes left out. They set no threshold.
	Outliers []string

	// AllowDriftedFeatures trains on sets together though their probes say that the model
	// gave other features for some of them.
	AllowDriftedFeatures bool

	// Keep, unless nil, is a detector that was trained on the first of Features, in the
	// same order. The rows that it set aside for validation and calibration stay set
	// aside, and labels stay as it had them, so that it can be compared with the new
	// detector on images that neither was trained on. The seed divides the other rows.
	// OptionsOf gives the options that it was trained with.
	Keep *detector.Detector

	// Head is the network to train, with its shape: a head.Residual or a
	// head.Paper. It also has the defaults of the next two fields. nil means
	// head.Residual{}.
	Head head.Config

	// Conditioning is done to the features before the head; it is fitted on the
	// training rows.
	Conditioning head.ConditioningOptions

	Train head.TrainOptions // Seed, Progress, Checkpoint and Resume are set per head
	Seeds []uint64          // one head each, trained side by side; nil means DefaultSeeds. The first also makes the split

	// Score names the score to judge by: detector.JoinedScore, the default, is the one
	// whose parts class hold-out weighs, and of the paper's heads their own;
	// detector.HeadScore is the heads' own; any of Methods, or an ensemble
	// "ensemble(A,B,…)", is fitted on the rows that the heads are trained on, and an
	// ensemble put on one scale by the validation rows. Where a score reads logits,
	// they are those of a linear head that is fitted as Linear says on the rows that
	// the first seed gives.
	Score  string
	Linear head.LinearOptions

	// NoHoldOut gives the parts of detector.JoinedScore fixed weights, which takes no
	// time, and makes no assessment.
	NoHoldOut bool

	// WithoutParts are parts of detector.JoinedScore that are left out, which may be
	// detector.GuardPart, to measure what they add. The detector does not record it.
	WithoutParts []string

	// PartRows is how many rows, about, the parts of detector.JoinedScore are fitted on at
	// most; 0 means 100,000. It is to measure what the bound costs.
	PartRows int

	TargetTPR float64 // share of in-distribution images that the threshold accepts; 0 means DefaultTargetTPR

	// PerClass gives each class a threshold and p-values of its own, so that at most
	// 1 − TargetTPR of the images that the detector gives the class are flagged.
	// Classes with too few calibration images share a threshold.
	PerClass bool

	// Tool names the program and its version for the detector's file; it may be "".
	Tool string

	// Memory is how many bytes, about, the rows that heads read may take, and
	// again those that are read from files at a time; 0 means half of the machine's
	// memory. What does not fit goes to temporary files in the folder Scratch, ""
	// being the system's, and is shuffled as head.Train says.
	Memory  int64
	Scratch string

	// Checkpoint, where set, is the file that keeps the state of all heads
	// every CheckpointEvery (0 means DefaultCheckpointEvery) and when training
	// ends early. A later call with the same options and features continues from
	// it, with a bit-identical result; one with others is refused with
	// ErrOtherTraining. The caller removes the file when the detector is saved.
	Checkpoint      string
	CheckpointEvery time.Duration
	Resume          Resume // what to do about a checkpoint that exists

	// Resumed, where set, is told before training goes on from a checkpoint how
	// many epochs each head has behind it.
	Resumed func(epochs []int)

	// Progress, where set, is called after each epoch of each head (counted
	// from 0), from several goroutines.
	Progress func(head int, e head.Epoch)

	// Stage, where set, is told what is being done and how far it is; total is −1 where
	// that is not known. What Progress tells follows TrainingStage, whose total is the
	// epochs of all heads.
	Stage func(what string, done, total int)

	fromMeans bool // a residual head begins with the class means, as in old checkpoints
}

// TrainingStage is what Options.Stage is told when heads are trained.
const TrainingStage = "training"

// stage tells Options.Stage.
func (o *Options) stage(what string, done, total int) {
	if o.Stage != nil {
		o.Stage(what, done, total)
	}
}

// Share is a part of the training rows to set aside: a fraction of them, drawn
// class by class, or a feature set of its own. The zero value is a tenth.
type Share struct {
	None     bool    // set nothing aside
	Fraction float64 // in (0, 1); 0 means 0.1
	Features string  // folder of a feature set; takes the place of a fraction
	// Folds, of Calibration alone, is the number of folds of cross-conformal
	// calibration, at least 2: all rows train and calibrate. It suits few images;
	// training and judging take so many times longer.
	Folds int
	// Auto, of Calibration alone, is a tenth of the rows, or autoFolds folds where these are
	// too few to keep TargetTPR.
	Auto bool
}

// autoFolds is the number of folds of Share.Auto.
const autoFolds = 10

// fraction returns the part of the training rows that goes to the share.
func (s Share) fraction() float64 {
	switch {
	case s.None || s.Features != "" || s.Folds > 0:
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
	if s.Auto {
		return "auto"
	}
	if s.Folds > 0 {
		return fmt.Sprintf("cross:%d", s.Folds)
	}
	return fmt.Sprint(s.fraction())
}

// withHeadDefaults fills in the zero fields whose defaults depend on the network.
func (o *Options) withHeadDefaults() (err error) {
	if o.Head == nil {
		o.Head = head.Residual{}
	}
	if o.Head, err = o.Head.WithDefaults(); err != nil {
		return err
	}
	o.Conditioning.Kind = cmp.Or(o.Conditioning.Kind, o.Head.Conditioning().Kind)
	o.Train, err = o.Head.TrainOptions(o.Train)
	return err
}

var errNoScale = options.Errorf("Validation", "an ensemble needs validation images, which put its parts on one scale")
