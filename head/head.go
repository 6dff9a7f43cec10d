package head

import (
	"context"
	"errors"
	"fmt"
	"math"

	"mlrbfn/conditioning"
	"mlrbfn/dataset"
	"mlrbfn/head/internal/numeric"
	"mlrbfn/internal/parallel"
)

// Config says which network to train, and its shape. Those of mlrbfn/head/paper
// and mlrbfn/head/residual implement it; their zero values have defaults for
// everything.
type Config interface {
	// WithDefaults fills in the zero fields and refuses what cannot be.
	WithDefaults() (Config, error)
	// Settings describe the network.
	Settings() Settings
	// TrainOptions fills in the zero fields with what suits the network, and
	// refuses what cannot be.
	TrainOptions(TrainOptions) (TrainOptions, error)
	// Conditioning is what suits the network.
	Conditioning() conditioning.Options
	// Prepare makes rows ready to train networks on. What it makes of them is
	// kept in space; nil means in memory.
	Prepare(ctx context.Context, train, val dataset.Rows, classes int, space *dataset.Space) (Prepared, error)
}

// Prepared is rows to train networks of one kind on, one per seed: what these
// have in common is computed once. Any number of goroutines may train on it.
type Prepared interface {
	// Train trains a head as the function Train does.
	Train(ctx context.Context, opts TrainOptions) (*Head, []Epoch, error)
	// Window returns how many rows are shuffled together, 0 where all are.
	Window(batch int) int
	// Close frees what Prepare made, when no head is in training any more.
	Close() error
}

// Settings describe a network of either kind, in one form for files and for
// export. Fields that a network does not have are as if it had the paper's.
type Settings struct {
	Layers     int // the last one included
	Centroids  int // of a config, as is the next; 0 for a trained network
	Projection int
	Norm       float64
	Recovery   float64
	Open       bool // the residual network; else the paper's, which the rest is of

	NoDepression, NoRatio, NoProjections bool
	SumLoss                              bool // of a config
}

// Network is a trained network. It does not change once made, so any number of
// goroutines may use it. Those of mlrbfn/head/paper and mlrbfn/head/residual
// implement it.
type Network interface {
	Settings() Settings
	Dim() int     // values of a row that it reads
	Classes() int // C
	Width() int   // values that its last layer reads
	// HasScore tells whether the network's score is a number of its own. The
	// score of several such networks is the mean of theirs. Otherwise it is the
	// logarithm of the largest confidence.
	HasScore() bool
	// Validate reports whether the arrays fit together and all numbers are
	// finite. Every other method relies on it for a network that comes from a
	// file.
	Validate() error
	NewEvaluator() Evaluator
}

// BatchRows is how many rows an Evaluator takes at most: enough for the matrix
// products, few enough to stay in the cache.
const BatchRows = 64

// Evaluator computes a network's outputs in float64, without allocating. It
// serves one goroutine.
type Evaluator interface {
	// Outputs fills logConfidences [b, C] and, unless nil, scores [b] for the
	// rows z [b, d]; b is at most BatchRows.
	Outputs(logConfidences, scores, z []float64)
	// Represent fills dst [b, Width] with what the last layer reads of the rows
	// z [b, d].
	Represent(dst []float32, z []float64)
}

// Head is a trained network with what is done to features before it: what
// training gives and a detector file holds. Any number of goroutines may use it.
type Head struct {
	Network Network

	// Conditioning is what is done to features before the first layer; nil means
	// nothing. Train leaves it to the caller, who has trained on conditioned
	// features, to set.
	Conditioning *conditioning.Conditioning
}

// Train trains a network on train for the given number of classes (paper,
// algorithm 1): initialisation, then Adam on mini-batches of shuffled rows, with
// a learning rate that falls as opts.Schedule says. Without rows in val the
// training loss steers instead of theirs. It computes in float32 on the calling
// goroutine, and the same seed on the same machine gives the same head.
//
// Where the training rows do not fit into memory, an epoch brings blocks of
// consecutive rows, of 256 KiB, into random order, and shuffles as many rows at a
// time as there is memory for: State.Window. While these are trained on the next
// are read.
//
// The returned epochs are all that were completed. A run that ends early, with
// ctx.Err() when ctx is cancelled or with ErrDiverged when the loss becomes NaN
// or an epoch's is ten times that of the first step, gives a *StoppedError from
// the first step on.
func Train(ctx context.Context, cfg Config, train, val dataset.Rows, classes int, opts TrainOptions) (_ *Head, _ []Epoch, err error) {
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

// Validate reports whether the parts of a head that comes from a file fit
// together and all numbers are finite.
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
	condition  *conditioning.Conditioning
	raw        []float64 // a batch of features before conditioning; nil without one
	z          []float64 // a batch after it
	width      int       // of a row of z
}

// NewPredictor returns a Predictor of its own for the calling goroutine.
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

// read returns a batch of rows as the network reads it.
func (p *Predictor) read(x []float32) []float64 {
	z := p.z[:len(x)/p.d*p.width]
	if p.condition == nil {
		numeric.Convert(z, x)
	} else {
		numeric.Convert(p.raw, x)
		p.condition.Apply(z, p.raw[:len(x)])
	}
	return z
}

// Outputs fills logConfidences [n, C] with log φ_c and scores [n], unless nil,
// with how in-distribution each of the rows x [n, d] is, higher being more so:
// max_c log φ_c, or the network's own score. It panics where the lengths do not
// fit.
func (p *Predictor) Outputs(logConfidences, scores []float64, x []float32) {
	n := len(x) / p.d
	if len(x) != n*p.d || len(logConfidences) != n*p.classes || scores != nil && len(scores) != n {
		panic("head: Outputs: the rows and what to fill do not fit the head")
	}
	for len(x) > 0 {
		b := min(BatchRows, len(x)/p.d)
		var batchScores []float64
		if scores != nil {
			batchScores, scores = scores[:b], scores[b:]
		}
		p.evaluator.Outputs(logConfidences[:b*p.classes], batchScores, p.read(x[:b*p.d]))
		x, logConfidences = x[b*p.d:], logConfidences[b*p.classes:]
	}
}

// LogConfidences returns log φ [n, C] for the rows x [n, d]: the logarithm of
// the confidence, in [0, 1], that a row is of class c. It computes on all cores.
func (h *Head) LogConfidences(x []float32) []float64 {
	logConfidences, _ := h.Outputs(x)
	return logConfidences
}

// Outputs returns log φ [n, C] and the scores [n] of the rows x [n, d]; see
// [Predictor.Outputs]. It computes on all cores.
func (h *Head) Outputs(x []float32) (logConfidences, scores []float64) {
	d, classes := h.Dim(), h.Classes()
	n := len(x) / d
	logConfidences, scores = make([]float64, n*classes), make([]float64, n)
	// Whole batches each, so that any number of workers gives the same bits.
	_ = parallel.Ranges(context.Background(), n, BatchRows, func() func(from, to int) error { // which cannot fail
		p := h.NewPredictor()
		return func(from, to int) error {
			p.Outputs(logConfidences[from*classes:to*classes], scores[from:to], x[from*d:to*d])
			return nil
		}
	})
	return logConfidences, scores
}

// Representations returns what the last layer reads of the rows x [n, d],
// [n, R] with R = Width.
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

func notNumber(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }
