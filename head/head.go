package head

import (
	"context"
	"errors"
	"fmt"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// Config says which network to train, and its shape. [Paper] and
// [Residual] implement it; zero fields take their defaults.
type Config interface {
	// WithDefaults fills in the zero fields and refuses invalid values.
	WithDefaults() (Config, error)
	// Settings describe the network.
	Settings() Settings
	// TrainOptions fills in the zero fields with the network's defaults and
	// refuses invalid values.
	TrainOptions(TrainOptions) (TrainOptions, error)
	// Conditioning returns the network's default.
	Conditioning() ConditioningOptions
	// Prepare makes rows ready to train networks on. The prepared rows are
	// stored in space; nil means in memory.
	Prepare(ctx context.Context, train, val features.Rows, classes int, space *features.Space) (Prepared, error)
}

// Prepared holds rows to train networks of one kind on, one per seed, so that
// shared work is done once. Any number of goroutines may train on it.
type Prepared interface {
	// Train trains a head as the function Train does.
	Train(ctx context.Context, opts TrainOptions) (*Head, []Epoch, error)
	// Window returns how many rows are shuffled together, 0 if all are.
	Window(batch int) int
	// Close frees the prepared rows. Call it after all training has ended.
	Close() error
}

// Settings describe a network of either kind, for files and for export. A field
// that does not apply to a network has the paper's value.
type Settings struct {
	Layers     int // the last one included
	Centroids  int // of a config, as is the next; 0 for a trained network
	Projection int
	Norm       float64
	Recovery   float64
	Residual   bool // the residual network; else the paper's, whose settings follow

	NoDepression, NoRatio, NoProjections bool
	SumLoss                              bool // of a config
}

// Network is a trained network. It does not change, so any number of goroutines
// may use it. [PaperNetwork] (paper_network.go) and
// [ResidualNetwork] (residual_network.go) implement it.
type Network interface {
	Settings() Settings
	Dim() int     // values of a row that it reads
	Classes() int // C
	Width() int   // values that its last layer reads
	// HasScore reports whether the network computes a score of its own. Several
	// such networks are combined by the mean of their scores. The score of other
	// networks is the logarithm of the largest confidence.
	HasScore() bool
	// Validate checks that the arrays fit together and that all numbers are
	// finite. Call it first on a network from a file.
	Validate() error
	NewEvaluator() Evaluator
}

// BatchRows is how many rows an Evaluator takes at most: enough for the matrix
// products, few enough to stay in the cache.
const BatchRows = 64

// Evaluator computes a network's outputs in float64, without allocating. It
// serves one goroutine.
type Evaluator interface {
	// Predict fills the arrays of o for the rows z [b, d]; b is at most BatchRows. All but
	// LogConfidences may be nil; the terms need Scores, and a network with a score.
	Predict(o Outputs, z []float64)
	// Represent fills dst [b, Width] with the inputs of the last layer for the
	// rows z [b, d].
	Represent(dst []float32, z []float64)
}

// Outputs are a head's outputs for n rows.
type Outputs struct {
	LogConfidences []float64 // log φ [n, C]
	Scores         []float64 // [n]; higher is more in-distribution

	// The terms of the score: how near a row is to the nearest class, and how
	// clearly it is of one class. Both [n]; nil if the network has no terms.
	Nearness, Decision []float64
}

// Head is a trained network and the conditioning of its features, as a detector
// file holds it. Any number of goroutines may use it.
type Head struct {
	Network Network

	// Conditioning is applied to features before the first layer; nil means none.
	// Train does not set it: a caller who trained on conditioned features does.
	Conditioning *Conditioning
}

// Train trains a network on train for the given number of classes (paper,
// algorithm 1): initialisation, then Adam on mini-batches of shuffled rows, with
// a learning rate that falls as opts.Schedule says. Without rows in val, the
// training loss replaces the validation loss. It computes in float32 on the
// calling goroutine. The same seed on the same machine gives the same head.
//
// If the training rows do not fit into memory, an epoch visits blocks of 256 KiB
// of consecutive rows in random order, and shuffles the State.Window rows that fit
// into memory at a time. The next window is read during training.
//
// The returned epochs are those that were completed. A run ends early with
// ctx.Err() when ctx is cancelled, or with ErrDiverged when the loss becomes NaN
// or the loss of an epoch is ten times that of the first step. After the first
// step the error is a *StoppedError.
func Train(ctx context.Context, cfg Config, train, val features.Rows, classes int, opts TrainOptions) (_ *Head, _ []Epoch, err error) {
	p, err := cfg.Prepare(ctx, train, val, classes, nil)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	return p.Train(ctx, opts)
}

// Dim returns the number of features that the head reads.
func (h *Head) Dim() int {
	if h.Conditioning != nil {
		return h.Conditioning.In()
	}
	return h.Network.Dim()
}

// Classes returns C, the number of classes.
func (h *Head) Classes() int { return h.Network.Classes() }

// Width returns R, the number of values that the last layer reads.
func (h *Head) Width() int { return h.Network.Width() }

// Validate checks that the parts of a head from a file fit together and that
// all numbers are finite.
func (h *Head) Validate() error {
	if err := h.Network.Validate(); err != nil {
		return err
	}
	if c := h.Conditioning; c != nil {
		if err := c.Validate(); err != nil {
			return err
		}
		if c.Out() != h.Network.Dim() {
			return fmt.Errorf("the layers read %d values where the conditioning gives %d", h.Network.Dim(), c.Out())
		}
	}
	return nil
}

// Predictor computes a head's outputs in float64, without allocating. It
// serves one goroutine.
type Predictor struct {
	evaluator  Evaluator
	d, classes int
	condition  *Conditioning
	raw        []float64 // a batch of features before conditioning; nil without one
	z          []float64 // a batch after it
	width      int       // of a row of z
}

// NewPredictor returns a Predictor for one goroutine.
func (h *Head) NewPredictor() *Predictor {
	p := &Predictor{
		evaluator: h.Network.NewEvaluator(), d: h.Dim(), classes: h.Classes(),
		condition: h.Conditioning, width: h.Network.Dim(),
	}
	p.z = make([]float64, BatchRows*p.width)
	if p.condition != nil {
		p.raw = make([]float64, BatchRows*p.d)
	}
	return p
}

// read converts and conditions a batch of rows for the network.
func (p *Predictor) read(x []float32) []float64 {
	z := p.z[:len(x)/p.d*p.width]
	if p.condition == nil {
		kernels.Convert(z, x)
	} else {
		kernels.Convert(p.raw, x)
		p.condition.Apply(z, p.raw[:len(x)])
	}
	return z
}

// Predict fills the arrays of o for the rows x [n, d]: with log φ_c, with the head score,
// which is max_c log φ_c or the network's own, and with its terms. All but LogConfidences may be
// nil; terms need scores, and a head that HasTerms. It panics if the lengths do not fit.
func (p *Predictor) Predict(o Outputs, x []float32) {
	n := len(x) / p.d
	if len(x) != n*p.d || len(o.LogConfidences) != n*p.classes || o.Scores != nil && len(o.Scores) != n || len(o.Nearness) != len(o.Decision) {
		panic("head: Predict: the lengths of the rows or of the results do not fit the head")
	}
	for from := 0; from < n; from += BatchRows {
		to := min(from+BatchRows, n)
		p.evaluator.Predict(o.Part(from, to, p.classes), p.read(x[from*p.d:to*p.d]))
	}
}

// HasTerms reports whether the head's score has two terms, as the residual network's has.
func (h *Head) HasTerms() bool { return h.Network.HasScore() }

// Room allocates arrays for the head's outputs for n rows.
func (h *Head) Room(n int) Outputs {
	o := Outputs{LogConfidences: make([]float64, n*h.Classes()), Scores: make([]float64, n)}
	if h.HasTerms() {
		o.Nearness, o.Decision = make([]float64, n), make([]float64, n)
	}
	return o
}

// Part returns the outputs for the rows from … to−1, in the same arrays.
func (o Outputs) Part(from, to, classes int) Outputs {
	part := Outputs{LogConfidences: o.LogConfidences[from*classes : to*classes]}
	if o.Scores != nil {
		part.Scores = o.Scores[from:to]
	}
	if o.Nearness != nil {
		part.Nearness, part.Decision = o.Nearness[from:to], o.Decision[from:to]
	}
	return part
}

// Outputs returns all outputs of the head for the rows x [n, d]. It computes on all
// cores.
func (h *Head) Outputs(x []float32) Outputs {
	d, classes := h.Dim(), h.Classes()
	n := len(x) / d
	o := h.Room(n)
	// Whole batches each, so that results do not depend on the number of workers.
	_ = parallel.Ranges(context.Background(), n, BatchRows, func() func(from, to int) error { // which cannot fail
		p := h.NewPredictor()
		return func(from, to int) error {
			p.Predict(o.Part(from, to, classes), x[from*d:to*d])
			return nil
		}
	})
	return o
}

// Representations returns the inputs of the last layer [n, R], R = Width, for
// the rows x [n, d].
func (h *Head) Representations(x []float32) []float32 {
	d, width := h.Dim(), h.Width()
	p := h.NewPredictor()
	out := make([]float32, len(x)/d*width)
	for to := out; len(x) > 0; {
		b := min(BatchRows, len(x)/d)
		p.evaluator.Represent(to[:b*width], p.read(x[:b*d]))
		x, to = x[b*d:], to[b*width:]
	}
	return out
}
