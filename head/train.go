package head

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"mlrbfn/internal/spill"
)

// ErrDiverged is wrapped by the error of a training run whose loss stopped
// being a number or grew past all bounds.
var ErrDiverged = errors.New("training diverged")

// Data is labelled rows to train on or to validate with.
type Data struct {
	X      []float32 // [N, D] row-major; read only, so it may be a memory map
	D      int       // features of a row
	Labels []int64   // [N], the class of each row
	Rows   []int     // the rows to use, each with a label in [0, C); nil means none

	// Pages is what X is the rows of, where these may be in a file because they do
	// not fit into memory; nil means that they do.
	Pages *spill.Matrix
}

// TrainOptions says how to train. A zero field takes the paper's value, except
// Seed, where 0 is a seed like any other.
type TrainOptions struct {
	Epochs   int     // passes over the data; 0 means 500
	Batch    int     // rows of a step, the first of which also initialise; 0 means 128
	LR       float64 // Adam's learning rate; 0 means 0.001
	Patience int     // epochs without improvement before the rate is halved; 0 means 50
	Schedule Schedule
	Seed     uint64 // of the projections, the centroids and the order of the rows

	// Balance shows every class equally often: an epoch draws as many rows as
	// there are, each of a class in turn, at random among the class's rows.
	// Without it an epoch shows each row once, as in the paper.
	Balance bool

	// Window is how many rows are shuffled together: 0 means as many as there is
	// room for, −1 all. A state that is resumed has its own.
	Window int `json:"-"`

	// Progress, where set, is called after each epoch on the training
	// goroutine.
	Progress func(Epoch) `json:"-"`

	// Checkpoint, where set, is called on the training goroutine after each
	// step and each epoch, with the epochs that are complete. take copies the
	// state, which is what costs; how often is the caller's choice. An error
	// ends the run.
	Checkpoint func(epochs int, take func() *State) error `json:"-"`

	// Resume, where set, is a state of a run on the same data with the same
	// options, which goes on from there and ends as it would have done. LR
	// alone may differ: a state that diverged can go on with a smaller one.
	// The state is not changed.
	Resume *State `json:"-"`
}

// Schedule says how the learning rate falls; "" means Plateau.
type Schedule string

const (
	// Plateau halves the rate when the validation loss has not improved for
	// Patience epochs, as the paper does.
	Plateau Schedule = "plateau"
	// Cosine lets it fall to 0 with the share of steps done,
	// LR·(1 + cos(π·done))/2.
	Cosine Schedule = "cosine"
)

// WithDefaults fills in the zero fields and refuses what cannot be.
func (o TrainOptions) WithDefaults() (TrainOptions, error) {
	fill(&o.Epochs, 500)
	fill(&o.Batch, 128)
	fill(&o.LR, 1e-3)
	fill(&o.Patience, 50)
	if o.Schedule == "" {
		o.Schedule = Plateau
	}
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

// Epoch is what one pass over the data came to.
type Epoch struct {
	Epoch       int     `json:"epoch"`        // from 1
	Steps       int     `json:"steps"`        // since the start
	LR          float64 `json:"lr"`           // at its end
	TrainLoss   float64 `json:"train_loss"`   // mean over the rows, each as its step saw it
	ValLoss     float64 `json:"val_loss"`     // after the epoch; the training loss where there are no validation rows
	ValAccuracy float64 `json:"val_accuracy"` // in [0, 1]; 0 where there are none
}

// Train trains an MLRBFN on train for the given number of classes (paper,
// algorithm 1): first-batch initialisation, then Adam on mini-batches of
// shuffled rows, its learning rate halved when the loss on val stops to
// improve; without rows in val the training loss steers instead. It computes in
// float32 on the calling goroutine, and the same seed on the same machine gives
// the same head.
//
// Where the training rows do not fit into memory (Data.Pages), an epoch brings
// blocks of consecutive rows, of 256 KiB, into random order, and shuffles as many
// rows at a time as there is room for: State.Window. While these are trained on
// the next are read.
//
// The returned epochs are all that were completed. A run that ends early, with
// ctx.Err() when ctx is cancelled or with ErrDiverged when the loss stops being
// a number or an epoch's is ten times that of the first step, gives a *StoppedError
// from the first step on.
func Train(ctx context.Context, cfg Config, train, val Data, classes int, opts TrainOptions) (*MLRBFN, []Epoch, error) {
	p, err := Prepare(ctx, cfg, train, val, classes, nil)
	if err != nil {
		return nil, nil, err
	}
	return p.Train(ctx, opts)
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

// trainable is what fit asks of a head. Rows come as x [b, D] with b labels, b
// at most the batch that the head has room for.
type trainable interface {
	params() []param[float32]
	constants() []*float64 // what start sets and no step changes
	// start initialises on the first batch x [b, D], or on all rows; it may
	// take long and stops with ctx.
	start(ctx context.Context, x []float32, b int, train Data, rng draws) error
	step(x []float32, labels []int) (loss float64)  // leaves the gradients in params
	logits(x []float32, b int) (perClass []float32) // [b, C], largest = the class
	loss(labels []int) float64                      // of the rows that logits was last asked for
}

// trainer is an MLRBFN in training.
type trainer struct {
	*network[float32]
	head *MLRBFN
	val  Data // validation rows of an open head, reduced
}

// start initialises in float64: k-means and the widths are found once, and
// what float32 loses in a distance ends up in an exponent.
func (t *trainer) start(ctx context.Context, x []float32, b int, train Data, rng draws) error {
	wide := networkOf[float64](t.head, b)
	if t.head.Open {
		if err := wide.startOpen(ctx, train, t.val, t.head.Classes(), rng); err != nil {
			return err
		}
	} else {
		rows := make([]float64, b*t.head.Dim())
		convert(rows, x[:len(rows)])
		if err := wide.initialise(ctx, rows, b, rng); err != nil {
			return err
		}
	}
	wide.copyTo(t.head)
	t.copyFrom(t.head)
	return nil
}

func (t *trainer) constants() []*float64 {
	var all []*float64
	for _, l := range t.layers {
		all = append(all, &l.initBeta)
	}
	return all
}

func (t *trainer) logits(x []float32, b int) []float32 {
	t.refresh()
	t.forward(x, b)
	return t.output(b)
}

func (t *trainer) loss(labels []int) float64 {
	return logBCE(t.last().weights[:t.last().n*len(labels)], labels, nil)
}

// step computes the loss on labelled rows x [b, d], a mean, and all gradients.
func (net *network[T]) step(x []T, labels []int) float64 {
	b := len(labels)
	net.refresh()
	net.forward(x, b)
	last := net.last()
	n := last.n * b
	loss := logBCE(last.weights[:n], labels, last.gWeights)
	if net.sumLoss {
		for i := range last.gWeights[:n] {
			last.gWeights[i] *= T(n)
		}
	}
	net.backward(b)
	return loss
}

// exploded is how many times the loss of the first step that of an epoch may
// be, if it is above 1. Healthy runs stay below that loss; only rates that are
// too large by far come to a multiple of it, mostly in the first epoch.
const exploded = 10

// fit is the training loop of every head.
func fit(ctx context.Context, m trainable, train, val Data, classes int, opts TrainOptions, rng random) ([]Epoch, error) {
	if err := checkBoth(train, val, classes); err != nil {
		return nil, err
	}
	f := newFitting(m, train, opts, rng)
	if opts.Resume != nil {
		if err := f.restore(opts.Resume, train, classes); err != nil {
			return nil, fmt.Errorf("resume: %w", err)
		}
	}
	good := opts.Resume // what a run that diverges goes back to
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
	plateau := newPlateau(opts.LR, opts.Patience)
	for _, e := range f.epochs {
		plateau.step(e.ValLoss)
	}
	rate := func() float64 { return plateau.lr }
	if opts.Schedule == Cosine {
		steps := float64(opts.Epochs * ((len(f.order) + opts.Batch - 1) / opts.Batch))
		rate = func() float64 { return opts.LR * (1 + math.Cos(math.Pi*float64(f.adam.steps)/steps)) / 2 }
	}
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
			if err := train.gather(batch, labels, rows); err != nil {
				return f.epochs, f.stopped(err)
			}
			if f.adam.steps == 0 {
				if err := m.start(ctx, batch, len(rows), train, rng); err != nil {
					return f.epochs, err
				}
			}
			loss := m.step(batch, labels[:len(rows)])
			if notNumber(loss) {
				return f.epochs, diverged(loss)
			}
			if f.adam.steps == 0 {
				f.first = loss
			}
			f.sum += loss * float64(len(rows))
			f.adam.step(rate())
			if err := f.offer(); err != nil {
				return f.epochs, err
			}
			continue
		}
		e := Epoch{Epoch: len(f.epochs) + 1, Steps: f.adam.steps, LR: rate(), TrainLoss: f.sum / float64(len(f.order))}
		var err error
		if e.ValLoss, e.ValAccuracy, err = validate(ctx, m, val, batch, labels); err != nil {
			return f.epochs, f.stopped(err)
		}
		if len(val.Rows) == 0 {
			e.ValLoss = e.TrainLoss
		}
		if e.TrainLoss > max(exploded*f.first, 1) {
			return f.epochs, diverged(e.TrainLoss)
		}
		if notNumber(e.ValLoss) {
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

func notNumber(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) }

// validate returns the mean loss and the accuracy on the rows of val, using
// batch and labels as room; both 0 where there are no rows.
func validate(ctx context.Context, m trainable, val Data, batch []float32, labels []int) (loss, accuracy float64, err error) {
	room := len(labels)
	for from := 0; from < len(val.Rows); from += room {
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
		rows := val.Rows[from:min(from+room, len(val.Rows))]
		if err := val.gather(batch, labels, rows); err != nil {
			return 0, 0, err
		}
		out := m.logits(batch, len(rows))
		loss += m.loss(labels[:len(rows)]) * float64(len(rows))
		classes := len(out) / len(rows)
		for i, own := range labels[:len(rows)] {
			if argmax(out[i*classes:(i+1)*classes]) == own {
				accuracy++
			}
		}
	}
	n := float64(max(len(val.Rows), 1))
	return loss / n, accuracy / n, nil
}

// gather copies rows and their labels to the beginning of x and labels.
func (d Data) gather(x []float32, labels []int, rows []int) error {
	paged := d.Pages.Window() > 0
	for i, r := range rows {
		row := x[i*d.D : (i+1)*d.D]
		if !paged {
			copy(row, d.X[r*d.D:(r+1)*d.D])
		} else if err := d.Pages.Read(row, r); err != nil {
			return err
		}
		labels[i] = int(d.Labels[r])
	}
	return nil
}

// checkBoth checks the rows to train and to validate on.
func checkBoth(train, val Data, classes int) error {
	if err := errors.Join(train.check("training", classes), val.check("validation", classes)); err != nil {
		return err
	}
	if len(train.Rows) < 2 {
		return fmt.Errorf("%d labelled training rows: at least 2 are needed", len(train.Rows))
	}
	if len(val.Rows) > 0 && val.D != train.D {
		return fmt.Errorf("validation rows of %d features and training rows of %d", val.D, train.D)
	}
	return nil
}

// check makes sure that gather and the losses stay inside their arrays.
func (d Data) check(what string, classes int) error {
	if len(d.Rows) == 0 {
		return nil
	}
	if d.D < 1 || len(d.X)%d.D != 0 || len(d.X)/d.D != len(d.Labels) {
		return fmt.Errorf("%s data: %d values and %d labels do not make rows of %d features", what, len(d.X), len(d.Labels), d.D)
	}
	for _, r := range d.Rows {
		if r < 0 || r >= len(d.Labels) {
			return fmt.Errorf("%s data: there is no row %d among %d", what, r, len(d.Labels))
		}
		if y := d.Labels[r]; y < 0 || y >= int64(classes) {
			return fmt.Errorf("%s data: row %d has label %d outside the %d classes", what, r, y, classes)
		}
	}
	return nil
}
