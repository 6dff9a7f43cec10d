package pipeline

import (
	"context"

	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
	"github.com/mlrbfn/mlrbfn/report"
)

// The parts of a pipeline are packages of their own; these are their names here.
type (
	// Detector judges images by their features; training makes it, and a file holds it.
	Detector = detector.Detector
	// Verdict is the judgement of a detector on one image.
	Verdict = detector.Verdict
	// Source says how a detector's features were made.
	Source = detector.Source
	// TrainingRecord says how a detector was trained.
	TrainingRecord = detector.TrainingRecord
	// RowCount says what became of the rows of the training features.
	RowCount = detector.RowCount

	// TrainOptions says what [Train] trains on, and how.
	TrainOptions = training.Options
	// TrainResult tells how a training went.
	TrainResult = training.Result
	// ClassRecall says how many validation images of a class are given it.
	ClassRecall = training.ClassRecall
	// Share is a part of the training images to set aside.
	Share = training.Share
	// Resume says what [Train] does if there is a checkpoint.
	Resume = training.Resume

	// EvaluateOptions says what [Evaluate] measures on what.
	EvaluateOptions = evaluation.Options
	// AblateOptions says which heads [Ablate] compares on what.
	AblateOptions = evaluation.AblateOptions
	// Assessment says how well a new class would be noticed.
	Assessment = detector.Assessment
	// AssessedClass says how well a class would be noticed if it were new.
	AssessedClass = detector.AssessedClass
	// OODSet is a feature set of out-of-distribution images.
	OODSet = evaluation.OODSet
	// Leak is images that are in two sets of an evaluation.
	Leak = evaluation.Leak
	// Reliability says how far confidences are probabilities.
	Reliability = evaluation.Reliability
	// Result is one row of results.csv.
	Result = metrics.Measurement

	// InspectOptions says what [Inspect] looks at.
	InspectOptions = evaluation.InspectOptions
	// InspectReport lists what it found.
	InspectReport = evaluation.Inspection
	// Issue is a line of issues.csv.
	Issue = training.Issue
	// IssueKind is a kind of fault that an image may have.
	IssueKind = training.IssueKind

	// SummaryOptions says what [Summarise] shows of a detector.
	SummaryOptions = evaluation.SummaryOptions
	// Summary describes a detector: its quality, its classes and its training.
	Summary = evaluation.Summary
	// SummaryClass describes a class of a detector.
	SummaryClass = evaluation.SummaryClass
	// FeatureMap shows where images lie along the axes that tell classes apart.
	FeatureMap = evaluation.SummaryMap
	// TrainSet names a feature set that a detector was trained on.
	TrainSet = detector.TrainingSet

	// ExportOptions says what [Export] writes.
	ExportOptions = detector.ExportOptions
)

// Names that options and results use; see the packages that they are from.
const (
	JoinedScore = detector.JoinedScore
	HeadScore   = detector.HeadScore
	OwnWeight   = detector.OwnWeight

	ResumeIfAny  = training.ResumeIfAny
	ResumeAlways = training.ResumeAlways
	ResumeNever  = training.ResumeNever

	Near         = metrics.Near
	Far          = metrics.Far
	BackboneHead = evaluation.BackboneHead

	DefaultTargetTPR       = training.DefaultTargetTPR
	DefaultCheckpointEvery = training.DefaultCheckpointEvery
	IssueLabel             = training.Label
	IssueDuplicate         = training.Duplicate
	IssueLeak              = training.Leak
	IssueOutlier           = training.Outlier

	DefaultOpset = detector.DefaultOpset
	DefaultFolds = evaluation.DefaultFolds

	TrainingStage = training.TrainingStage

	BundleFile = detector.BundleFile

	ForTraining = detector.ForTraining
)

// Errors that callers tell from others.
var (
	ErrDetector      = detector.ErrDetector
	ErrOtherModel    = detector.ErrOtherModel
	ErrSignature     = detector.ErrSignature
	ErrCheckpoint    = training.ErrCheckpoint
	ErrOtherTraining = training.ErrOtherTraining
)

// EnsembleParts are the scores of the ensemble without brackets; Methods those
// that [Evaluate] compares unless it is told others; Steps those of the paper's
// that [Ablate] can take back.
var (
	EnsembleParts = detector.EnsembleParts
	Methods       = detector.ScoreNames
	Steps         = evaluation.Steps
)

// Defaults that are lists: the seeds of [Train], those that [Evaluate] and [Ablate]
// repeat with, and the depths that [Ablate] compares.
var (
	DefaultSeeds  = training.DefaultSeeds
	EvaluateSeeds = evaluation.DefaultSeeds
	DefaultDepths = evaluation.DefaultDepths
)

// LoadDetector reads a detector that its Save wrote; see [detector.Load].
func LoadDetector(path string) (*Detector, error) { return detector.Load(path) }

// LoadSignedDetector reads a detector that must be signed; see
// [detector.LoadSigned].
func LoadSignedDetector(path, publicKey string) (*Detector, error) {
	return detector.LoadSigned(path, publicKey)
}

// Train trains a detector on feature sets; see [training.Train].
func Train(ctx context.Context, opts TrainOptions) (*Detector, *TrainResult, error) {
	return training.Train(ctx, opts)
}

// Evaluate measures how well methods tell out-of-distribution images from the
// training classes; see [evaluation.Evaluate]. Unless opts.Report is set, it also writes
// the page and the tables of [report.Write].
func Evaluate(ctx context.Context, opts EvaluateOptions) ([]Result, error) {
	if err := report.Check(opts.Out); err != nil {
		return nil, err
	}
	if opts.Report == nil {
		opts.Report = func(e *evaluation.Evaluation) error { return report.Write(opts.Out, e) }
	}
	return evaluation.Evaluate(ctx, opts)
}

// Ablate measures what depth and the paper's steps add; see [evaluation.Ablate].
// It draws the results as [report.DrawAblation] says.
func Ablate(ctx context.Context, opts AblateOptions) ([]Result, error) {
	opts.Draw = func(results []Result, depth bool, steps []string) error {
		return report.DrawAblation(opts.Out, results, depth, steps)
	}
	return evaluation.Ablate(ctx, opts)
}

// Inspect finds what is wrong with the images behind feature sets; see
// [inspection.Inspect].
func Inspect(ctx context.Context, opts InspectOptions) (*InspectReport, error) {
	return evaluation.Inspect(ctx, opts)
}

// Summarise says what is known of a detector; see [summary.Of].
func Summarise(ctx context.Context, opts SummaryOptions) (*Summary, error) {
	return evaluation.Summarise(ctx, opts)
}

// RecordedOptions returns the options that a detector was trained with, as far as its
// file has them; see [training.Recorded].
func RecordedOptions(d *Detector) (opts TrainOptions, notes []string, err error) {
	return training.Recorded(d)
}

// WriteIssues writes issues as CSV; see [issues.Write].
func WriteIssues(file string, all []Issue) error { return training.WriteIssues(file, all) }

// Export writes a detector as an ONNX graph; see [export.Export].
func Export(ctx context.Context, opts ExportOptions) error { return detector.Export(ctx, opts) }

// SplitScores divides a list of names of scores at its commas; see
// [detector.SplitScores].
func SplitScores(list string) []string { return detector.SplitScores(list) }

// CheckScores reports what is wrong with the name of a score, or of an ensemble.
func CheckScores(name string) error { return detector.CheckScores(name) }

// OptionsOf returns the options that repeat a detector's training; see
// [training.OptionsOf].
func OptionsOf(ctx context.Context, d *Detector, dirs []string) (opts TrainOptions, notes []string, err error) {
	return training.OptionsOf(ctx, d, dirs)
}

// OptionOf returns the name of the options' field that an error is about, such as
// "MaxPixels", or "" if it is about none.
func OptionOf(err error) string { return options.Name(err) }
