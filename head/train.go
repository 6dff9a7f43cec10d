package head

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
)

// ErrDiverged is wrapped by the error of a training run whose loss became NaN or
// too large.
var ErrDiverged = errors.New("training diverged")

// TrainOptions says how to train. A zero field takes the paper's value, except
// Seed: 0 is an ordinary seed.
type TrainOptions struct {
	Epochs int // passes over the data; 0 means 500

	// MostSteps bounds the steps: there are fewer epochs, but at least one, where the
	// rows are so many that they would take more. 0 means the network's default, none
	// for the paper's; a negative number means no bound.
	MostSteps int `json:"-"`

	Batch    int     // rows of a step, the first of which also initialise; 0 means 128
	LR       float64 // Adam's learning rate; 0 means 0.001
	Patience int     // epochs without improvement before the rate is halved; 0 means 50
	Schedule Schedule
	Seed     uint64 // of the projections, the centroids and the order of the rows

	// Balance shows all classes equally often: an epoch draws as many rows as
	// there are, cycling through the classes, at random from the rows of each.
	// Without it an epoch shows each row once, as in the paper.
	Balance bool

	// Window is how many rows are shuffled together: 0 means as many as fit into
	// memory, −1 all. Resume replaces it by the window of the state.
	Window int `json:"-"`

	// Progress, if set, is called after each epoch on the training goroutine.
	Progress func(Epoch) `json:"-"`

	// Checkpoint, if set, is called on the training goroutine after each step and
	// each epoch, with the complete epochs. take copies the state, which costs
	// time; call it only when needed. An error ends the run.
	Checkpoint func(epochs int, take func() *State) error `json:"-"`

	// Resume, if set, is the state to continue from, of a run on the same data
	// with the same options. The result is that of an uninterrupted run. Only LR
	// may differ: a run that diverged can continue with a smaller one. The state
	// is not changed.
	Resume *State `json:"-"`
}

// Within returns the options with as many epochs of a number of rows as MostSteps
// allows.
func (o TrainOptions) Within(rows int) TrainOptions {
	if o.MostSteps > 0 {
		o.Epochs = max(1, min(o.Epochs, o.MostSteps/max(1, (rows+o.Batch-1)/o.Batch)))
	}
	return o
}

// Schedule says how the learning rate falls; "" means Plateau.
type Schedule string

const (
	// Plateau halves the rate when the validation loss has not improved for
	// Patience epochs, as the paper does.
	Plateau Schedule = "plateau"
	// Cosine lets the rate fall to 0: LR·(1 + cos(π·done))/2, where done is the
	// share of steps done.
	Cosine Schedule = "cosine"
)

// WithDefaults fills in the zero fields and refuses invalid values.
func (o TrainOptions) WithDefaults() (TrainOptions, error) {
	o.Epochs = cmp.Or(o.Epochs, 500)
	o.Batch = cmp.Or(o.Batch, 128)
	o.LR = cmp.Or(o.LR, 1e-3)
	o.Patience = cmp.Or(o.Patience, 50)
	o.Schedule = cmp.Or(o.Schedule, Plateau)
	switch {
	case o.Schedule != Plateau && o.Schedule != Cosine:
		return o, fmt.Errorf("schedule %q: it is %s or %s", o.Schedule, Plateau, Cosine)
	case o.Epochs < 0 || o.Patience < 0:
		return o, fmt.Errorf("%d epochs with patience %d: neither can be negative", o.Epochs, o.Patience)
	case o.Batch < 2:
		return o, fmt.Errorf("batch %d: at least 2 rows are needed, one half to place the centroids and one for their widths", o.Batch)
	case !(o.LR > 0) || math.IsInf(o.LR, 1):
		return o, fmt.Errorf("learning rate %g: it must be positive and finite", o.LR)
	}
	return o, nil
}

// Epoch holds the results of one pass over the data. Its JSON names are those of
// detector files and checkpoints.
type Epoch struct {
	Epoch       int     `json:"epoch"`        // from 1
	Steps       int     `json:"steps"`        // since the start
	LR          float64 `json:"lr"`           // at its end
	TrainLoss   float64 `json:"train_loss"`   // mean over the rows, each before its step
	ValLoss     float64 `json:"val_loss"`     // after the epoch; the training loss if there are no validation rows
	ValAccuracy float64 `json:"val_accuracy"` // in [0, 1]; 0 if there are no validation rows
}

// random is the generator of a run; its source can be saved.
type random struct {
	*rand.Rand
	source *rand.PCG
}

func newRand(seed uint64) random {
	source := rand.NewPCG(seed, 0x6d6c7262666e)
	return random{rand.New(source), source}
}

// Random is the source of random numbers for a network's initialisation.
type Random interface {
	Float64() float64     // uniform in [0, 1)
	NormFloat64() float64 // standard normal
}

// Trainable is a network that Fit can train. Rows come as x [b, D] with b labels,
// b at most TrainOptions.Batch.
type Trainable interface {
	// Params returns the arrays that training changes, and the arrays of their
	// gradients. Every call returns the same arrays.
	Params() (params, gradients [][]float32)
	// Constants lists the values that Start sets and no step changes.
	Constants() []*float64
	// Draw draws the initial parameters that do not depend on the rows. Fit calls
	// it first.
	Draw(rng Random)
	// Start initialises on the first batch x [b, D], or on all rows. It stops with
	// ctx.
	Start(ctx context.Context, x []float32, b int, train features.Rows, rng Random) error
	// Step returns the mean loss and puts the gradients into their arrays.
	Step(x []float32, labels []int) (loss float64)
	// Logits returns [b, C]; the largest of a row is its predicted class.
	Logits(x []float32, b int) (perClass []float32)
	// Loss returns the mean loss of the rows of the last call of Logits.
	Loss(labels []int) float64
}

// exploded is the largest allowed ratio of an epoch's loss to the loss of the first
// step, or to that of a guess if this is more; a loss of 1 is always allowed. Healthy
// runs stay below 1 times, but for heads that begin as a classifier of few rows: their
// loss begins at next to nothing, and the first steps of Adam can raise it to that of a
// guess before it falls again. Only far too large learning rates reach the bound,
// mostly in the first epoch.
const exploded = 10

// schedule returns the plateau of the epochs so far, and what gives the learning rate.
func (f *fitting) schedule() (*plateau, func() float64) {
	p := newPlateau(f.opts.LR, f.opts.Patience)
	for _, e := range f.epochs {
		p.step(e.ValLoss)
	}
	if f.opts.Schedule != Cosine {
		return p, func() float64 { return p.lr }
	}
	steps := float64(f.opts.Epochs * ((len(f.order) + f.opts.Batch - 1) / f.opts.Batch))
	return p, func() float64 { return f.opts.LR * (1 + math.Cos(math.Pi*float64(f.adam.Steps)/steps)) / 2 }
}

// epoch returns what is to be said of the epoch that has ended.
func (f *fitting) epoch(ctx context.Context, m Trainable, val features.Rows, rate float64, batch []float32, labels []int) (e Epoch, err error) {
	e = Epoch{Epoch: len(f.epochs) + 1, Steps: f.adam.Steps, LR: rate, TrainLoss: f.sum / float64(len(f.order))}
	e.ValLoss, e.ValAccuracy, err = validate(ctx, m, val, batch, labels)
	if len(val.Index) == 0 {
		e.ValLoss = e.TrainLoss
	}
	return e, err
}

// Fit is the training loop of every network; see Train. The options are those
// that WithDefaults returns.
func Fit(ctx context.Context, m Trainable, train, val features.Rows, classes int, opts TrainOptions) ([]Epoch, error) {
	if err := CheckRows(train, val, classes); err != nil {
		return nil, err
	}
	opts = opts.Within(train.Len())
	rng := newRand(opts.Seed)
	m.Draw(rng)
	f := newFitting(m, train, opts, rng)
	if opts.Resume != nil {
		if err := f.restore(opts.Resume, train, classes); err != nil {
			return nil, fmt.Errorf("resume: %w", err)
		}
	}
	good := opts.Resume // the last good state
	var afterEpoch State
	diverged := func(loss float64) error {
		err := fmt.Errorf("%w: the loss was %.4g in epoch %d; try a smaller learning rate, or conditioned features", ErrDiverged, loss, len(f.epochs)+1)
		if good == nil {
			return err
		}
		return &StoppedError{good, err}
	}
	batch := make([]float32, opts.Batch*train.D)
	labels := make([]int, opts.Batch)
	plateau, rate := f.schedule()
	for len(f.epochs) < opts.Epochs {
		if err := ctx.Err(); err != nil {
			return f.epochs, f.stopped(err)
		}
		if at := f.at(); at < len(f.order) {
			if at == 0 {
				f.reorder()
			}
			f.fetch(at)
			rows := f.order[at:min(at+opts.Batch, len(f.order))]
			if err := train.Gather(batch, labels, rows); err != nil {
				return f.epochs, f.stopped(err)
			}
			if f.adam.Steps == 0 {
				if err := m.Start(ctx, batch, len(rows), train, rng); err != nil {
					return f.epochs, err
				}
			}
			loss := m.Step(batch, labels[:len(rows)])
			if notFinite(loss) {
				return f.epochs, diverged(loss)
			}
			if f.adam.Steps == 0 {
				f.first = loss
			}
			f.sum += loss * float64(len(rows))
			f.adam.Step(rate())
			if err := f.offer(); err != nil {
				return f.epochs, err
			}
			continue
		}
		e, err := f.epoch(ctx, m, val, rate(), batch, labels)
		if err != nil {
			return f.epochs, f.stopped(err)
		}
		if e.TrainLoss > max(exploded*max(f.first, math.Log(float64(classes))), 1) {
			return f.epochs, diverged(e.TrainLoss)
		}
		if notFinite(e.ValLoss) {
			return f.epochs, diverged(e.ValLoss)
		}
		plateau.step(e.ValLoss)
		f.epochs = append(f.epochs, e)
		if opts.Progress != nil {
			opts.Progress(e)
		}
		if err := f.offer(); err != nil {
			return f.epochs, err
		}
		good = f.copyTo(&afterEpoch)
	}
	return f.epochs, nil
}

// validate returns the mean loss and the accuracy on the rows of val, with batch
// and labels as buffers. Both are 0 if there are no rows.
func validate(ctx context.Context, m Trainable, val features.Rows, batch []float32, labels []int) (loss, accuracy float64, err error) {
	room := len(labels)
	for from := 0; from < len(val.Index); from += room {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		rows := val.Index[from:min(from+room, len(val.Index))]
		if err := val.Gather(batch, labels, rows); err != nil {
			return 0, 0, err
		}
		out := m.Logits(batch, len(rows))
		loss += m.Loss(labels[:len(rows)]) * float64(len(rows))
		classes := len(out) / len(rows)
		for i, own := range labels[:len(rows)] {
			if linalg.ArgMax(out[i*classes:(i+1)*classes]) == own {
				accuracy++
			}
		}
	}
	n := float64(max(len(val.Index), 1))
	return loss / n, accuracy / n, nil
}

// CheckRows checks the rows to train and to validate on.
func CheckRows(train, val features.Rows, classes int) error {
	if err := errors.Join(train.Check("training", classes), val.Check("validation", classes)); err != nil {
		return err
	}
	if len(train.Index) < 2 {
		return fmt.Errorf("%d labelled training rows: at least 2 are needed", len(train.Index))
	}
	if len(val.Index) > 0 && val.D != train.D {
		return fmt.Errorf("validation rows of %d features and training rows of %d", val.D, train.D)
	}
	return nil
}

// plateau halves the learning rate when the loss has not improved by a relative
// 1e-4 for more than patience epochs, as torch's ReduceLROnPlateau with mode min
// and factor 0.5. NaN is not an improvement.
type plateau struct {
	lr       float64
	patience int
	best     float64 // lowest loss so far; +Inf before the first
	bad      int     // epochs since then
}

func newPlateau(lr float64, patience int) *plateau {
	return &plateau{lr: lr, patience: patience, best: math.Inf(1)}
}

func (p *plateau) step(loss float64) {
	const factor, threshold, smallest = 0.5, 1e-4, 1e-8
	if loss < p.best*(1-threshold) {
		p.best, p.bad = loss, 0
	} else {
		p.bad++
	}
	if p.bad > p.patience {
		p.bad = 0
		if p.lr-p.lr*factor > smallest {
			p.lr *= factor
		}
	}
}

// adam is the optimiser of Kingma and Ba as torch.optim.Adam computes it, with
// β₁ = 0.9, β₂ = 0.999, ε = 1e-8 and no weight decay:
//
//	m = β₁m + (1−β₁)g,  v = β₂v + (1−β₂)g²
//	p = p − lr/(1−β₁ᵗ) · m / (√v/√(1−β₂ᵗ) + ε)
type adam[T kernels.Real] struct {
	Params    [][]T // the arrays that training changes
	gradients [][]T // of each array; every step overwrites them
	M, V      [][]T // the moments of each
	Steps     int   // so far
}

// newAdam returns an optimiser that has taken no step yet.
func newAdam[T kernels.Real](params, gradients [][]T) *adam[T] {
	a := &adam[T]{Params: params, gradients: gradients}
	for _, p := range params {
		a.M = append(a.M, make([]T, len(p)))
		a.V = append(a.V, make([]T, len(p)))
	}
	return a
}

// Step changes the parameters by their gradients with the learning rate lr.
func (a *adam[T]) Step(lr float64) {
	const beta1, beta2 = 0.9, 0.999
	a.Steps++
	size := T(lr / (1 - math.Pow(beta1, float64(a.Steps))))
	scale := T(1 / math.Sqrt(1-math.Pow(beta2, float64(a.Steps))))
	vectors := kernels.VectorsOf[T]()
	for i, p := range a.Params {
		vectors.Adam(p, a.gradients[i], a.M[i], a.V[i], size, scale)
	}
}
