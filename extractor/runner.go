package extractor

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/x448/float16"
	ort "github.com/yalue/onnxruntime_go"

	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// A Runner holds the tensors of one worker: it runs batches of images through
// its model's session. One goroutine uses it at a time; different runners of
// one model run concurrently.
type Runner struct {
	model    *Model
	batch    int
	input    *buffer
	outputs  []*buffer
	bindings []binding // of n images at n−1, made when first needed
	features []float32
	maps     []*PatchMap   // of the images of the last run; nil without patches
	patches  [][][]float32 // likewise, those that a model is to be fitted on
	stuck    bool          // onnxruntime still uses the tensors
	lasted   time.Duration // see took
}

// binding is the tensors over a runner's buffers for one number of images.
type binding struct{ inputs, outputs []ort.Value }

// NewRunner makes a runner for up to batch images a run; a graph whose batch
// size is fixed has that instead, and its runs are filled up with blanks. A
// graph that cannot be trusted with batches has 1.
func (m *Model) NewRunner(batch int) (*Runner, error) {
	if batch < 1 {
		return nil, fmt.Errorf("a batch of %d images; it must have at least 1", batch)
	}
	r, err := m.runnerOf(m.Batch(batch), maxBatch)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", m.File, err)
	}
	return r, nil
}

// runnerOf makes a runner whose batches are so large, unless its tensors take
// more bytes than limit.
func (m *Model) runnerOf(batch int, limit int64) (*Runner, error) {
	const bound = 16 // values that take as much memory as its binding
	row := bound + m.Dim() + elements(m.inputRow())
	for _, out := range m.outputs {
		row += elements(out.row)
	}
	if err := checkBatch(batch, row, limit); err != nil {
		return nil, err
	}
	r := &Runner{
		model:    m,
		batch:    batch,
		input:    newBuffer(m.input.Type, m.inputRow(), batch),
		bindings: make([]binding, batch),
		features: make([]float32, batch*m.Dim()),
		maps:     make([]*PatchMap, batch),
		patches:  make([][][]float32, batch),
	}
	for _, out := range m.outputs {
		r.outputs = append(r.outputs, newBuffer(out.Type, out.row, batch))
	}
	return r, nil
}

// keptRunners are those that an extraction is done with, for the next one: a
// program that follows its input has many, of few images each.
type keptRunners struct {
	sync.Mutex
	idle  []*Runner
	stuck bool // a run of the session does not end
}

func (k *keptRunners) isStuck() bool {
	k.Lock()
	defer k.Unlock()
	return k.stuck
}

// keptRunner is a runner that goes there when it is closed.
type keptRunner struct {
	*Runner
	to *keptRunners
}

// take returns one for batches of this size, or nil.
func (k *keptRunners) take(batch int) *Runner {
	k.Lock()
	defer k.Unlock()
	at := slices.IndexFunc(k.idle, func(r *Runner) bool { return r.batch == batch })
	if at < 0 {
		return nil
	}
	r := k.idle[at]
	k.idle = slices.Delete(k.idle, at, at+1)
	return r
}

// Close keeps the runner, unless there are as many already as will be wanted.
func (r keptRunner) Close() error {
	r.to.Lock()
	defer r.to.Unlock()
	if r.stuck || len(r.to.idle) >= runtime.GOMAXPROCS(0) {
		return r.Runner.Close()
	}
	r.to.idle = append(r.to.idle, r.Runner)
	return nil
}

// close frees all.
func (k *keptRunners) close() error {
	k.Lock()
	defer k.Unlock()
	var err error
	for _, r := range k.idle {
		err = errors.Join(err, r.Close())
	}
	k.idle = nil
	return err
}

// Batch is the most images that a run can have.
func (r *Runner) Batch() int { return r.batch }

// Input is where image i's tensor goes before a run: 3·H·W floats in the order
// of [Model.Layout].
func (r *Runner) Input(i int) []float32 { return r.input.floats(i) }

// Features are the features of image i of the last run, valid until the next.
func (r *Runner) Features(i int) []float32 {
	dim := r.model.Dim()
	return r.features[i*dim : (i+1)*dim : (i+1)*dim]
}

// took is how long the last run computed.
func (r *Runner) took() time.Duration { return r.lasted }

// described returns the map of image i of the last run, and the patches that a model is to
// be fitted on, both its own.
func (r *Runner) described(i int) (*PatchMap, [][]float32) { return r.maps[i], r.patches[i] }

// Logits are the logits of image i of the last run, valid until the next, or
// nil where the model has none.
func (r *Runner) Logits(i int) []float32 {
	if r.model.logitsAt == 0 {
		return nil
	}
	return r.outputs[r.model.logitsAt].floats(i)
}

// Run runs the first n images. Cancelling the context stops the run and
// returns the context's error. A run that takes too long is stopped, and its error
// wraps [ErrRunTimeout]; if onnxruntime does not stop, the runner cannot be used any
// more. Rows may hold infinities and NaNs.
func (r *Runner) Run(ctx context.Context, n int) error {
	if n < 1 || n > r.batch {
		return fmt.Errorf("a run of %d images; this runner takes 1 to %d", n, r.batch)
	}
	if r.stuck {
		return fmt.Errorf("model %s: %w", r.model.File, errStuck)
	}
	rows := r.model.rows(n)
	// What an earlier run left in the surplus rows must not matter, not even
	// to a graph that scales its quantisation by the whole batch.
	clear(r.input.data[n*r.input.size : rows*r.input.size])
	b, err := r.bind(rows)
	if err != nil {
		return err
	}
	r.input.encode(rows)
	limit := time.Duration(rows) * r.model.runTimeout
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if r.lasted, err = r.model.run(timed, b); err != nil {
		r.stuck = errors.Is(err, errStuck)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if timed.Err() != nil {
			return fmt.Errorf("model %s: %w", r.model.File, options.Errorf("RunTimeout", "%w: more than %v: %w", ErrRunTimeout, limit, err))
		}
		if rows > 1 && r.model.input.batch < 0 {
			return fmt.Errorf("model %s: %w", r.model.File, options.Errorf("Batch", "%w; it must be 1 if the model can take only one image at a time", err))
		}
		return fmt.Errorf("model %s: %w", r.model.File, err)
	}
	for _, out := range r.outputs {
		out.decode(n)
	}
	for i := range n {
		row, d := r.Features(i), r.model.pool.dim
		r.model.pool.apply(row[:d], r.outputs[0].floats(i))
		row = row[d:]
		outs := r.outputs[len(r.outputs)-len(r.model.layers):]
		r.patches[i] = nil
		for k, out := range outs {
			switch l := r.model.layers[k]; {
			case l.pooled:
				row = row[copy(row, out.floats(i)):]
			case l.patches == nil:
				l.pool.apply(row[:l.pool.dim], out.floats(i))
				row = row[l.pool.dim:]
			case l.patches.PatchNode == nil:
				r.patches[i] = append(r.patches[i], slices.Clone(l.patches.rows(out.floats(i))))
			}
		}
		r.maps[i] = describe(row, r.model.layers, outs, i)
	}
	return nil
}

// run is one run of the session, ended early when ctx is, and how long it computed. A run
// that does not end is left behind, with an error that wraps errStuck: its tensors must stay.
func (m *Model) run(ctx context.Context, b binding) (took time.Duration, err error) {
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	// Termination sticks to the options, so every run has its own.
	options, err := ort.NewRunOptions()
	if err != nil {
		return 0, err
	}
	session := m.session
	type result struct {
		took time.Duration
		err  error
	}
	run := parallel.Start(func() result {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		start := busy()
		err := session.RunWithOptions(b.inputs, b.outputs, options)
		return result{busy() - start, err}
	})
	select {
	case <-run.Done():
		ran := run.Wait()
		if ran.err != nil && refused.MatchString(ran.err.Error()) {
			ran.err = fmt.Errorf("%w: %w", ErrRunMemory, ran.err)
		}
		return ran.took, cmp.Or(ran.err, options.Destroy())
	case <-ctx.Done():
	}
	// It cannot fail, and if it did the run would merely go on to its end.
	_ = options.Terminate()
	select {
	case <-run.Done():
		ran := run.Wait()
		return ran.took, cmp.Or(ran.err, options.Destroy())
	case <-time.After(grace):
		m.kept.Lock()
		defer m.kept.Unlock()
		m.kept.stuck = true
		return 0, errStuck
	}
}

// bind returns the tensors for runs of n images.
func (r *Runner) bind(n int) (binding, error) {
	b := &r.bindings[n-1]
	if b.inputs != nil {
		return *b, nil
	}
	input, err := r.input.value(n)
	if err != nil {
		return *b, err
	}
	outputs := make([]ort.Value, len(r.outputs))
	for i, out := range r.outputs {
		if outputs[i], err = out.value(n); err != nil {
			return *b, errors.Join(err, binding{[]ort.Value{input}, outputs[:i]}.destroy())
		}
	}
	*b = binding{[]ort.Value{input}, outputs}
	return *b, nil
}

func (b binding) destroy() error {
	var err error
	for _, v := range append(b.inputs, b.outputs...) {
		err = errors.Join(err, v.Destroy())
	}
	return err
}

// Close frees the tensors, unless onnxruntime still uses them.
func (r *Runner) Close() error {
	if r.stuck {
		return nil
	}
	var err error
	for _, b := range r.bindings {
		err = errors.Join(err, b.destroy())
	}
	r.bindings = nil
	return err
}

// A buffer is the memory of a tensor of up to n rows, always readable as
// float32. Of a float16 tensor raw holds what onnxruntime sees.
type buffer struct {
	row  []int64 // shape of a row
	size int     // its number of elements
	data []float32
	raw  []byte
}

// elements returns the number of values of a row, or a number above all limits
// where there are too many to count.
func elements(row []int64) int {
	const tooMany = 1 << 48
	n := int64(1)
	for _, d := range row {
		if d > tooMany/max(1, n) {
			return tooMany
		}
		n *= d
	}
	return int(n)
}

// What the tensors of one worker may take, in bytes: in all, and where it is the
// graph that says how many images and values a run has.
const (
	maxBatch = 8 << 30
	maxRun   = 1 << 30
)

// checkBatch refuses a batch of so many images, of so many values each, that there
// would hardly be memory for one worker's.
func checkBatch(batch, values int, limit int64) error {
	if bytes := 4 * int64(values); int64(batch) > limit/bytes {
		return fmt.Errorf("%w: a batch of %d image(s) of %d values, and only %d fit into %d GiB", onnx.ErrTooLarge, batch, values, limit/bytes, limit>>30)
	}
	return nil
}

func newBuffer(elementType string, row []int64, n int) *buffer {
	b := &buffer{row: row, size: elements(row)}
	b.data = make([]float32, n*b.size)
	if elementType == "float16" {
		b.raw = make([]byte, 2*len(b.data))
	}
	return b
}

// floats returns row i.
func (b *buffer) floats(i int) []float32 {
	return b.data[i*b.size : (i+1)*b.size : (i+1)*b.size]
}

// value makes a tensor over the first n rows.
func (b *buffer) value(n int) (ort.Value, error) {
	shape := append(ort.Shape{int64(n)}, b.row...)
	if b.raw != nil {
		// The wrapper has no float16 tensors of its own.
		return ort.NewCustomDataTensor(shape, b.raw[:2*n*b.size], ort.TensorElementDataTypeFloat16)
	}
	return ort.NewTensor(shape, b.data)
}

// encode writes the first n rows where onnxruntime reads them.
func (b *buffer) encode(n int) {
	if b.raw == nil {
		return
	}
	for i, v := range b.data[:n*b.size] {
		binary.NativeEndian.PutUint16(b.raw[2*i:], float16.Fromfloat32(v).Bits())
	}
}

// decode reads the first n rows from where onnxruntime wrote them.
func (b *buffer) decode(n int) {
	if b.raw == nil {
		return
	}
	for i := range b.data[:n*b.size] {
		b.data[i] = float16.Frombits(binary.NativeEndian.Uint16(b.raw[2*i:])).Float32()
	}
}
