package detector

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/lists"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/safetensors"
)

// Probe says what a detector's features and verdicts should be on a few images that
// package extractor draws. A model that is opened for the detector answers on the same
// images, and is refused if its features differ so far that verdicts could change.
type Probe struct {
	features.Probe           // what the model answered where the training features were made
	Scores         []float64 // what the detector says of these, per image
	Labels         []int
	// Rows are the features [n, D] of some calibration or validation images: what other
	// features mean for verdicts on the known classes is estimated on them.
	Rows []float32
}

// ProbeRows is how many rows a Probe has at most.
const ProbeRows = 32

// NewProbe returns the probe of a detector that is complete otherwise, nil where of is.
// Rows [n, D] are features of images that nothing was fitted on.
func (d *Detector) NewProbe(ctx context.Context, of *features.Probe, rows []float32) (*Probe, error) {
	if of == nil {
		return nil, nil
	}
	p := &Probe{Probe: *of, Rows: rows}
	verdicts, err := d.Verdicts(ctx, of.Features)
	for _, v := range verdicts {
		p.Scores, p.Labels = append(p.Scores, v.Score), append(p.Labels, v.Label)
	}
	return p, err
}

// Drift says how far features, and with them verdicts, differ from what they were when a
// detector was trained.
type Drift struct {
	// Features is the largest change of the features of a probe's image, as a share of
	// their length.
	Features float64
	// Score is how far the scores of in-distribution images change, root mean square, in
	// standard deviations of the calibration scores; Classes the share of these images
	// that are given another class.
	Score, Classes float64
	// Flagged is the share of in-distribution images that would be flagged, and Promised
	// the interval of that share that the calibration promises; nil where nothing is
	// flagged.
	Flagged  float64
	Promised *[2]float64
	// Program is how far this program gives the old features other scores, as a share of
	// them.
	Program float64
}

// Bounds of a Drift. Each is a hundredth or less of what could be seen in verdicts.
const (
	roundedFeatures = 1e-5 // of float32, wherever they are computed
	roundedScores   = 0.01 // standard deviations: 5% of false alarms become at most 5.1%
	roundedProgram  = 1e-6
)

// Bounds that verdicts do not survive, beside that of the promise.
const (
	mostScore   = 1    // standard deviation
	mostClasses = 0.05 // of the images
	mostProgram = 1e-2
)

// Rounding tells whether the features are those of before, but for rounding.
func (d Drift) Rounding() bool {
	return d.Program <= roundedProgram && d.Score <= roundedScores && d.Classes == 0
}

// Breaks tells whether verdicts could change: whether more or fewer in-distribution
// images would be flagged than the interval of the promise has, or scores or classes are
// others.
func (d Drift) Breaks() bool {
	promise := d.Promised != nil && (d.Flagged < d.Promised[0] || d.Flagged > d.Promised[1])
	return !d.Rounding() && (promise || !(d.Score <= mostScore) || d.Classes > mostClasses || d.Program > mostProgram)
}

// String says it in a sentence, without its full stop.
func (d Drift) String() string {
	if math.IsInf(d.Features, 1) {
		return "the model gives no features for the detector's probe"
	}
	text := fmt.Sprintf("features differ by %.2g%%, so that the scores of in-distribution images change by %.2g standard deviations", 100*d.Features, d.Score)
	if d.Classes > 0 {
		text += fmt.Sprintf(", %.2g%% of them are given another class", 100*d.Classes)
	}
	if p := d.Promised; p != nil {
		text += fmt.Sprintf(", and %.2g%% of them would be flagged (promised are %.2g%% to %.2g%%)", 100*d.Flagged, 100*p[0], 100*p[1])
	}
	if d.Program > roundedProgram {
		text += fmt.Sprintf("; and this program gives the same features scores that differ by %.2g%%", 100*d.Program)
	}
	return text
}

// DriftOf compares what a model answers now with the detector's probe. It is the zero
// Drift if the detector has none, or one of other images than this program knows.
//
// Features of real images are not at hand. Each of the probe's rows is changed as the
// features of each image of the probe changed, in proportion to its length.
func (d *Detector) DriftOf(ctx context.Context, now *features.Probe) (Drift, error) {
	p := d.Probe
	if p == nil || !p.Comparable(now) {
		return Drift{}, nil
	}
	var drift Drift
	spread := spread(d.CalibrationScores)
	verdicts, err := d.Verdicts(ctx, p.Features)
	if err != nil {
		return Drift{}, err
	}
	for i, v := range verdicts {
		drift.Program = max(drift.Program, math.Abs(v.Score-p.Scores[i])/(math.Abs(p.Scores[i])+spread))
		if v.Label != p.Labels[i] {
			drift.Program = math.Inf(1)
		}
	}
	dim := d.Dim()
	for i := range p.Images {
		old, new := p.Features[i*dim:(i+1)*dim], now.Features[i*dim:(i+1)*dim]
		drift.Features = max(drift.Features, length(old, new)/max(length(old, nil), math.SmallestNonzeroFloat64))
	}
	if drift.Features <= roundedFeatures {
		return drift, nil
	}
	if math.IsInf(drift.Features, 1) || math.IsNaN(drift.Features) {
		drift.Features, drift.Score, drift.Classes = math.Inf(1), math.Inf(1), 1
		return drift, nil
	}
	before, after := p.Features, now.Features
	if len(p.Rows) > 0 {
		before, after = p.moved(now, dim)
	}
	was, err := d.Verdicts(ctx, before)
	if err != nil {
		return Drift{}, err
	}
	is, err := d.Verdicts(ctx, after)
	if err != nil {
		return Drift{}, err
	}
	if k := Rank(len(d.CalibrationScores), d.TargetTPR); k > 0 {
		low, high := FalseAlarmInterval(k, len(d.CalibrationScores))
		drift.Promised = &[2]float64{low, high}
	}
	n, threshold := float64(len(was)), Threshold(d.CalibrationScores, d.TargetTPR)
	for i := range was {
		change := is[i].Score - was[i].Score
		drift.Score += change * change / n
		if is[i].Label != was[i].Label {
			drift.Classes += 1 / n
		}
		if drift.Promised != nil {
			// How many calibration images would be below the threshold.
			drift.Flagged += pValue(d.CalibrationScores, math.Nextafter(threshold-change, math.Inf(-1))) / n
		}
	}
	drift.Score = math.Sqrt(drift.Score) / spread
	return drift, nil
}

// moved returns each of the rows once for each image of the probe, and the same changed
// as that image's features changed.
func (p *Probe) moved(now *features.Probe, dim int) (before, after []float32) {
	for i := range p.Images {
		old, new := p.Features[i*dim:(i+1)*dim], now.Features[i*dim:(i+1)*dim]
		own := max(length(old, nil), math.SmallestNonzeroFloat64)
		for row := range slices.Chunk(p.Rows, dim) {
			scale := length(row, nil) / own
			before = append(before, row...)
			for j, v := range row {
				after = append(after, float32(float64(v)+scale*(float64(new[j])-float64(old[j]))))
			}
		}
	}
	return before, after
}

// length returns the length of a − b, or of a if b is nil.
func length(a, b []float32) float64 {
	var sum float64
	for i, v := range a {
		d := float64(v)
		if b != nil {
			d -= float64(b[i])
		}
		sum += d * d
	}
	return math.Sqrt(sum)
}

// spread returns a standard deviation of ascending scores that single ones of them do
// not change: half the distance between the quantiles of a normal distribution that are
// two standard deviations apart. It is 1 where they do not tell any.
func spread(ascending []float64) float64 {
	n := len(ascending)
	if n < 2 {
		return 1
	}
	at := func(share float64) float64 { return ascending[int(math.Round(share*float64(n-1)))] }
	if s := (at(0.8413) - at(0.1587)) / 2; s > 0 && !math.IsInf(s, 1) {
		return s
	}
	return 1
}

// CheckBackbone compares a backbone that is open with the detector's probe. It calls
// opts.Drifted if they differ by more than rounding, and returns an error that wraps
// [features.ErrDrifted] if verdicts could change, unless opts.AllowDriftedFeatures.
// [Detector.OpenBackbone] does it itself.
func (d *Detector) CheckBackbone(ctx context.Context, backbone extractor.Backbone, opts extractor.Options) error {
	drift, err := d.driftOf(ctx, backbone)
	if err != nil {
		return err
	}
	return drift.report(opts)
}

// driftOf is DriftOf what the backbone answers; it is not asked without a probe.
func (d *Detector) driftOf(ctx context.Context, backbone extractor.Backbone) (Drift, error) {
	if d.Probe == nil {
		return Drift{}, nil
	}
	now, err := backbone.Probe(ctx)
	if err != nil {
		return Drift{}, err
	}
	return d.DriftOf(ctx, now)
}

// report is what CheckBackbone says.
func (d Drift) report(opts extractor.Options) error {
	switch {
	case d.Breaks() && !opts.AllowDriftedFeatures:
		return options.Errorf("AllowDriftedFeatures", "%w, when the detector was trained: %v. Processor, device, onnxruntime or the model is another here. Judge where the features were made, or extract and train again here; the option judges all the same", features.ErrDrifted, d)
	case !d.Rounding() && opts.Drifted != nil:
		opts.Drifted("compared with the features that the detector was trained with, " + d.String())
	}
	return nil
}

// tensors are probe.features [P, D], probe.scores and probe.classes [P], and probe.rows
// [n, D]; nothing without a probe.
func (p *Probe) tensors() []safetensors.Tensor {
	if p == nil {
		return nil
	}
	labels := lists.Map(p.Labels, func(label int) int64 { return int64(label) })
	d := len(p.Features) / p.Images
	return []safetensors.Tensor{
		{Name: "probe.features", Shape: []int{p.Images, d}, Data: p.Features},
		{Name: "probe.scores", Shape: []int{p.Images}, Data: p.Scores},
		{Name: "probe.classes", Shape: []int{p.Images}, Data: labels},
		{Name: "probe.rows", Shape: []int{len(p.Rows) / d, d}, Data: append([]float32{}, p.Rows...)},
	}
}

// readProbe reads what tensors wrote.
func (d *Detector) readProbe(r *safetensors.Reader, version int) error {
	p := &Probe{Probe: features.Probe{Version: version}}
	p.Features, _ = safetensors.Values[float32](r, "probe.features")
	p.Scores, _ = safetensors.Values[float64](r, "probe.scores")
	labels, _ := safetensors.Values[int64](r, "probe.classes")
	if p.Rows, _ = safetensors.Values[float32](r, "probe.rows"); r.Err != nil {
		return r.Err
	}
	p.Images = len(p.Scores)
	if err := p.Validate(d.Dim()); err != nil {
		return err
	}
	if len(labels) != p.Images || len(p.Rows)%d.Dim() != 0 || version < 1 {
		return errors.New("its probe has classes or rows that do not fit")
	}
	if err := errors.Join(npy.CheckValues(p.Rows), checkScores(p.Scores)); err != nil {
		return fmt.Errorf("its probe: %w", err)
	}
	for _, label := range labels {
		if label < 0 || label >= int64(len(d.Classes)) {
			return fmt.Errorf("its probe has the class %d of %d", label, len(d.Classes))
		}
		p.Labels = append(p.Labels, int(label))
	}
	d.Probe = p
	return nil
}

// checkScores refuses scores that no detector gives.
func checkScores(scores []float64) error {
	for _, s := range scores {
		if math.IsNaN(s) || math.IsInf(s, 0) {
			return fmt.Errorf("the score %g", s)
		}
	}
	return nil
}
