package pipeline

import (
	"context"
	"errors"

	"github.com/mlrbfn/mlrbfn/features"
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

	// TrainOptions says what [Train] trains on, and how.
	TrainOptions = training.Options
	// TrainResult tells how a training went.
	TrainResult = training.Result
	// Share is a part of the training images to set aside.
	Share = training.Share

	// EvaluateOptions says what [Evaluate] measures on what.
	EvaluateOptions = evaluation.Options
	// AblateOptions says which heads [Ablate] compares on what.
	AblateOptions = evaluation.AblateOptions
	// Assessment says how well a new class would be noticed.
	Assessment = detector.Assessment
	// OODSet is a feature set of out-of-distribution images.
	OODSet = evaluation.OODSet
	// Result is one row of results.csv.
	Result = metrics.Measurement

	// InspectOptions says what [Inspect] looks at.
	InspectOptions = evaluation.InspectOptions
	// InspectReport lists what it found.
	InspectReport = evaluation.Inspection

	// SummaryOptions says what [Summarise] shows of a detector.
	SummaryOptions = evaluation.SummaryOptions
	// Summary describes a detector: its quality, its classes and its training.
	Summary = evaluation.Summary

	// ExportOptions says what [Export] writes.
	ExportOptions = detector.ExportOptions
)

// Names that options and results use; see the packages that they are from.
const (
	Near = metrics.Near
	Far  = metrics.Far
)

// Errors that callers tell from others.
var (
	ErrDetector   = detector.ErrDetector
	ErrOtherModel = detector.ErrOtherModel
	ErrSignature  = detector.ErrSignature
)

// Steps are those of the paper that [Ablate] can take back.
var Steps = evaluation.Steps

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
// [evaluation.Inspect].
func Inspect(ctx context.Context, opts InspectOptions) (*InspectReport, error) {
	return evaluation.Inspect(ctx, opts)
}

// Summarise says what is known of a detector; see [evaluation.Summarise].
func Summarise(ctx context.Context, opts SummaryOptions) (*Summary, error) {
	return evaluation.Summarise(ctx, opts)
}

// Export writes a detector as an ONNX graph; see [detector.Export].
func Export(ctx context.Context, opts ExportOptions) error { return detector.Export(ctx, opts) }

// OptionOf returns the name of the options' field that an error is about, such as
// "MaxPixels", or "" if it is about none.
func OptionOf(err error) string { return options.Name(err) }

// Verify reads feature sets wholly and compares every file with its checksum. Its
// errors are those of features.Open and [features.Set.Verify].
func Verify(ctx context.Context, dirs ...string) error {
	for _, dir := range dirs {
		set, err := features.Open(ctx, dir)
		if err != nil {
			return err
		}
		if err := errors.Join(set.Verify(ctx), set.Close()); err != nil {
			return err
		}
	}
	return nil
}
