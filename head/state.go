package head

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
)

// State is a training run between two steps. With the same data and options it
// is enough to continue with bit-identical results. Its JSON is that of checkpoints,
// which have the arrays beside it.
type State struct {
	Params    [][]float32 `json:"-"`          // the arrays that training changes; of the layers of radial basis functions in turn the centroids, β and the projections
	M, V      [][]float32 `json:"-"`          // Adam's moments of each
	Constants []float64   `json:"constants"`  // what initialisation set and no step changes: β_init of each layer
	Order     []int       `json:"-"`          // the order of the rows in the current epoch, or in the last
	Random    []byte      `json:"-"`          // state of the random generator
	Window    int         `json:"window"`     // rows that are shuffled together; 0 means all. A continued run keeps it
	Steps     int         `json:"steps"`      // since the start, at least 1
	FirstLoss float64     `json:"first_loss"` // of the first step
	LossSum   float64     `json:"loss_sum"`   // over the processed rows of the current epoch
	Epochs    []Epoch     `json:"epochs"`     // that are complete; they also tell the learning rate
}

// StoppedError is the error of a run that ended early and can be continued.
type StoppedError struct {
	State *State // as it was when ctx was cancelled; after the last good epoch, or as resumed, when the run diverged
	Err   error
}

// Error returns the text of Err.
func (e *StoppedError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *StoppedError) Unwrap() error { return e.Err }

// fitting is a run of fit: State, with the arrays where the head computes.
type fitting struct {
	m     Trainable
	adam  *adam[float32]
	opts  TrainOptions
	order []int
	windows
	classes [][]int // rows of each class; nil without Balance
	rng     random
	first   float64 // loss of the first step
	sum     float64 // of the losses of the epoch's rows so far
	epochs  []Epoch
	take    func() *State // allocated once, as every step passes it on
}

func newFitting(m Trainable, train features.Rows, opts TrainOptions, rng random) *fitting {
	f := &fitting{m: m, adam: newAdam(m.Params()), opts: opts, order: slices.Clone(train.Index), rng: rng}
	f.windows = newWindows(train, opts.Batch)
	if opts.Window != 0 {
		f.window = max(0, opts.Window)
	}
	f.take = func() *State { return f.copyTo(new(State)) }
	if opts.Balance {
		f.classes = train.ByClass()
	}
	return f
}

// at returns how many rows of the current epoch are done: all of them until it is
// validated, then none.
func (f *fitting) at() int {
	steps := f.adam.Steps
	if n := len(f.epochs); n > 0 {
		steps -= f.epochs[n-1].Steps
	}
	return min(steps*f.opts.Batch, len(f.order))
}

// reorder begins an epoch.
func (f *fitting) reorder() {
	f.sum = 0
	for i := range f.order {
		if f.classes != nil {
			rows := f.classes[i%len(f.classes)]
			f.order[i] = rows[f.rng.IntN(len(rows))]
		}
	}
	f.shuffle(f.order, f.rng)
}

// fetch reads ahead the rows that the current epoch needs next.
func (f *fitting) fetch(at int) { f.windows.fetch(f.order, at, f.opts.Batch) }

// offer calls Checkpoint, if there is one.
func (f *fitting) offer() error {
	if f.opts.Checkpoint == nil {
		return nil
	}
	return f.opts.Checkpoint(len(f.epochs), f.take)
}

// stopped returns the error of a run that ends here with err.
func (f *fitting) stopped(err error) error {
	if f.adam.Steps == 0 {
		return err
	}
	return &StoppedError{f.take(), err}
}

// copyTo fills s and returns it. It reuses the arrays of s if they are large
// enough.
func (f *fitting) copyTo(s *State) *State {
	n := len(f.adam.Params)
	s.Params, s.M, s.V = slices.Grow(s.Params, n)[:n], slices.Grow(s.M, n)[:n], slices.Grow(s.V, n)[:n]
	for i, p := range f.adam.Params {
		s.Params[i] = append(s.Params[i][:0], p...)
		s.M[i] = append(s.M[i][:0], f.adam.M[i]...)
		s.V[i] = append(s.V[i][:0], f.adam.V[i]...)
	}
	s.Constants = s.Constants[:0]
	for _, c := range f.m.Constants() {
		s.Constants = append(s.Constants, *c)
	}
	s.Order = append(s.Order[:0], f.order...)
	s.Random, _ = f.rng.source.AppendBinary(s.Random[:0]) // cannot fail
	s.Window, s.Steps, s.FirstLoss, s.LossSum, s.Epochs = f.window, f.adam.Steps, f.first, f.sum, f.epochs
	return s
}

// restore is the inverse of copyTo. It refuses a state that does not fit the run.
func (f *fitting) restore(s *State, train features.Rows, classes int) error {
	train.Index = s.Order
	if err := train.Check("resumed", classes); err != nil {
		return err
	}
	constants, least := f.m.Constants(), 1
	if n := len(s.Epochs); n > 0 {
		least = s.Epochs[n-1].Steps
	}
	if len(s.Order) != len(f.order) || len(s.Constants) != len(constants) || s.Steps < least || s.Window < 0 {
		return fmt.Errorf("a state of %d rows and %d constants after %d steps does not fit a run of %d and %d", len(s.Order), len(s.Constants), s.Steps, len(f.order), len(constants))
	}
	var values, m, v [][]float32
	for i, p := range f.adam.Params {
		values, m, v = append(values, p), append(m, f.adam.M[i]), append(v, f.adam.V[i])
	}
	for _, pair := range []struct{ to, from [][]float32 }{{values, s.Params}, {m, s.M}, {v, s.V}} {
		if !slices.EqualFunc(pair.to, pair.from, func(a, b []float32) bool { return len(a) == len(b) }) {
			return errors.New("the state is of a head of another shape")
		}
		for i, from := range pair.from {
			copy(pair.to[i], from)
		}
	}
	for i, c := range constants {
		*c = s.Constants[i]
	}
	if err := f.rng.source.UnmarshalBinary(s.Random); err != nil {
		return err
	}
	copy(f.order, s.Order)
	f.window = s.Window
	f.adam.Steps, f.first, f.sum, f.epochs = s.Steps, s.FirstLoss, s.LossSum, slices.Clone(s.Epochs)
	return nil
}

// windows orders rows that do not fit into memory: blocks of consecutive rows
// come in random order, and the rows of a window of many blocks are shuffled.
// While one window is read, the next is fetched block by block.
type windows struct {
	data   features.Rows
	window int // rows; 0 means that all rows are one window, which fits
	block  int // rows

	current int   // the window being read; −1 for none
	next    []int // the blocks of the one after it
	asked   int   // how many of these were requested
}

// blockBytes is large enough for a disk to read at full speed, and small enough
// for a window to mix rows from many places.
const blockBytes = 256 << 10

// Window returns how many rows are shuffled together if they do not fit into
// memory, and 0 if they do.
func Window(data features.Rows, batch int) int { return newWindows(data, batch).window }

func newWindows(data features.Rows, batch int) windows {
	w := windows{data: data, block: max(1, blockBytes/(4*data.D)), current: -1}
	if n := data.Window(); 0 < n && n < data.Len() {
		w.window = max(1, n/batch) * batch
	}
	return w
}

// shuffle orders the rows for an epoch.
func (w *windows) shuffle(rows []int, rng random) {
	window := len(rows)
	if w.window > 0 {
		window = w.window
		rank := rng.Perm(slices.Max(rows)/w.block + 1)
		slices.SortFunc(rows, func(a, b int) int { return cmp.Or(rank[a/w.block]-rank[b/w.block], a-b) })
		w.current = -1
	}
	for part := range slices.Chunk(rows, window) {
		rng.Shuffle(len(part), func(i, j int) { part[i], part[j] = part[j], part[i] })
	}
}

// fetch requests blocks of the next window, in proportion to the rows of this
// window that are done after the batch at.
func (w *windows) fetch(rows []int, at, batch int) {
	if w.window == 0 {
		return
	}
	if current := at / w.window; current != w.current {
		if current == 0 || w.current < 0 { // no fetch requested it
			w.need(w.blocks(rows, current))
		}
		w.current, w.next, w.asked = current, w.blocks(rows, current+1), 0
	}
	until := min((at%w.window+batch)*len(w.next)/w.window, len(w.next))
	w.need(w.next[w.asked:until])
	w.asked = until
}

func (w *windows) need(blocks []int) {
	for _, b := range blocks {
		w.data.Prefetch(b*w.block, (b+1)*w.block)
	}
}

// blocks lists the blocks of a window's rows, ascending.
func (w *windows) blocks(rows []int, window int) []int {
	from := min(window*w.window, len(rows))
	var all []int
	for _, r := range rows[from:min(from+w.window, len(rows))] {
		all = append(all, r/w.block)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
