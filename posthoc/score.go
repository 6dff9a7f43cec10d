package posthoc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// Scorer is a fitted score. It does not change, so any number of goroutines may use
// it. A single image is a batch of one row.
type Scorer interface {
	// Score puts the score of each row of b into dst [n]; higher is more
	// in-distribution. It returns an error if the context is cancelled, if the
	// batch lacks what the score reads (the error wraps ErrMissing), and if its
	// rows have another length than those that the score was fitted on.
	Score(ctx context.Context, dst []float64, b Batch) error
}

// Batch holds n rows to score. The type of a score documents which of the arrays it
// reads; the other may be nil.
type Batch struct {
	Features []float32 // [n, D]
	Logits   []float64 // [n, C], of any head; an MLRBFN's log-confidences too
}

// ScoreAll puts each score of its batch into its dst [n]. All batches have the same
// features. Shared work is done once. Each result is bit-identical to that of the
// score alone, in any order of the scores.
func ScoreAll(ctx context.Context, dst [][]float64, scores []Scorer, batches []Batch) error {
	t := together{begun: map[any]work{}}
	for i, s := range scores {
		shared, ok := s.(sharer)
		if !ok {
			if err := s.Score(ctx, dst[i], batches[i]); err != nil {
				return err
			}
			continue
		}
		if t.n = len(dst[i]); t.features == nil {
			t.features = batches[i].Features
		}
		if err := shared.join(&t, dst[i], batches[i]); err != nil {
			return err
		}
	}
	for _, w := range t.works {
		if err := w.run(ctx, t.n, Batch{Features: t.features}); err != nil {
			return err
		}
	}
	return nil
}

// ErrMissing means that a score cannot be fitted or computed because the features,
// logits, labels or weights of a linear head that it needs are missing.
var ErrMissing = errors.New("missing")

// dim checks that there are n rows of d features.
func (b Batch) dim(n, d int) error {
	switch {
	case n > 0 && len(b.Features) == 0:
		return fmt.Errorf("features of %d rows to score: %w", n, ErrMissing)
	case len(b.Features) != n*d:
		return fmt.Errorf("%d rows to score have %d features: the score was fitted on rows of %d", n, len(b.Features), d)
	}
	return nil
}

// classes checks that there are n rows of logits, and of want classes unless
// that is 0, and returns how many classes there are.
func (b Batch) classes(n, want int) (int, error) {
	switch {
	case n == 0:
		return want, nil
	case len(b.Logits) == 0:
		return 0, fmt.Errorf("logits of %d rows to score: %w", n, ErrMissing)
	case len(b.Logits)%n != 0:
		return 0, fmt.Errorf("%d rows to score have %d logits, which is not a multiple", n, len(b.Logits))
	case want != 0 && len(b.Logits) != n*want:
		return 0, fmt.Errorf("rows to score have %d logits each: the score was fitted on %d classes", len(b.Logits)/n, want)
	}
	return len(b.Logits) / n, nil
}

// eachLogits scores each row by its logits alone.
func eachLogits(ctx context.Context, dst []float64, b Batch, score func(row []float64) float64) error {
	classes, err := b.classes(len(dst), 0)
	if err != nil {
		return err
	}
	return parallel.Blocks(ctx, len(dst), 4*blockRows, func(from, to int) {
		for i := from; i < to; i++ {
			dst[i] = score(b.Logits[i*classes : (i+1)*classes])
		}
	})
}

// eachFeatures calls score for blocks of rows of b, on all cores: x [n, d] is the
// rows in float64, which score may change, scores [n] takes their scores, and at is
// the batch's row with which the block begins.
func eachFeatures(ctx context.Context, dst []float64, b Batch, d int, l2 bool, score func(scores, x []float64, at int)) error {
	if err := b.dim(len(dst), d); err != nil {
		return err
	}
	return parallel.Blocks(ctx, len(dst), blockRows, func(from, to int) {
		x, done := scratch((to - from) * d)
		defer done()
		kernels.Convert(x, b.Features[from*d:to*d])
		if l2 {
			normaliseRows(x, d)
		}
		score(dst[from:to], x, from)
	})
}

// blockRows is how many rows a goroutine scores at once.
const blockRows = 256

// scratches are buffers to reuse.
var scratches = sync.Pool{New: func() any { return new([]float64) }}

// scratch returns a buffer of n numbers of any values. done gives it back.
func scratch(n int) (x []float64, done func()) {
	room := scratches.Get().(*[]float64)
	*room = slices.Grow((*room)[:0], n)[:n]
	return *room, func() { scratches.Put(room) }
}

// sharer is a score that shares work with others.
type sharer interface {
	// join adds the score to a work, which it gets from workOn. The work puts the
	// scores of b into dst.
	join(t *together, dst []float64, b Batch) error
}

// work computes several scores that share a computation.
type work interface {
	// run computes the scores of the n rows of b, which has no logits.
	run(ctx context.Context, n int, b Batch) error
}

// together is the works of scores that are computed at the same time.
type together struct {
	begun    map[any]work
	works    []work // in the order in which they were begun
	n        int    // rows
	features []float32
}

// workOn returns the work of type W that has the key, a new one for the first
// score that asks for it.
func workOn[W any, P interface {
	*W
	work
}](t *together, key any) P {
	key = [2]any{P(nil), key}
	if w, ok := t.begun[key]; ok {
		return w.(P)
	}
	w := P(new(W))
	t.begun[key], t.works = w, append(t.works, w) // a key with NaN is never found again
	return w
}

// alone is the method Score of a sharer.
func alone(ctx context.Context, s interface {
	Scorer
	sharer
}, dst []float64, b Batch) error {
	return ScoreAll(ctx, [][]float64{dst}, []Scorer{s}, []Batch{b})
}

// normaliseRows divides each row by its length; a row of zeros stays one.
func normaliseRows(x []float64, d int) {
	for row := range slices.Chunk(x, d) {
		linalg.Normalise(row)
	}
}

// subtract subtracts the mean [D] from each of the rows x [·, D].
func subtract(x, mean []float64) {
	for row := range slices.Chunk(x, len(mean)) {
		for j, mu := range mean {
			row[j] -= mu
		}
	}
}

// norm returns ‖x‖₂. Squares of float32 values neither overflow nor underflow in
// float64.
func norm[T kernels.Real](x []T) float64 {
	return math.Sqrt(kernels.Dot(x, x))
}

func l1(x []float64) float64 {
	var sum float64
	for _, v := range x {
		sum += math.Abs(v)
	}
	return sum
}

func dot(a, b []float64) float64 {
	var sum float64
	for i, v := range a {
		sum += v * b[i]
	}
	return sum
}

func sum(x []float64) float64 {
	var sum float64
	for _, v := range x {
		sum += v
	}
	return sum
}

func add(sum []float64, row []float32) {
	for j, v := range row {
		sum[j] += float64(v)
	}
}

func distance(a, b []float64) float64 {
	var sum float64
	for i, v := range a {
		sum += (v - b[i]) * (v - b[i])
	}
	return math.Sqrt(sum)
}

// squaredDistance returns ‖a − b‖².
func squaredDistance(a, b []float64) float64 {
	var sums [4]float64 // several sums, for speed
	for len(a) >= 4 && len(b) >= 4 {
		v, w, x, y := a[0]-b[0], a[1]-b[1], a[2]-b[2], a[3]-b[3]
		sums[0] += v * v
		sums[1] += w * w
		sums[2] += x * x
		sums[3] += y * y
		a, b = a[4:], b[4:]
	}
	for i, v := range a {
		sums[0] += (v - b[i]) * (v - b[i])
	}
	return sums[0] + sums[1] + sums[2] + sums[3]
}

// over returns a/b, and 0 where b is 0.
func over(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func finite(v float64) bool { return v-v == 0 }

// right is the transpose of a matrix, packed for products when it is first used. A
// large matrix whose numbers float32 holds is packed as such, because products with
// few rows take the time of reading it.
type right struct {
	once   sync.Once
	matrix interface{ NN(m int, a, c []float64) }
}

// large is how many numbers of a head float32 is to hold, so that it is read fast.
const large = 1 << 18

// pack packs b [n,k] for times, which needs it no longer. Later calls do nothing.
func (r *right) pack(n, k int, b []float64) {
	r.once.Do(func() {
		if n*k < large || slices.ContainsFunc(b, func(v float64) bool { return float64(float32(v)) != v }) {
			r.matrix = kernels.NewRightTransposed(n, k, b)
			return
		}
		turned := make([]float32, n*k)
		for i := range n {
			for j, v := range b[i*k : (i+1)*k] {
				turned[j*n+i] = float32(v)
			}
		}
		r.matrix = kernels.NewRight(n, k, turned)
	})
}

// times puts A·Bᵀ [·, n] into c, for A [·, k] and B [n, k]. B must be the same in
// every call; after pack it is not read.
func (r *right) times(n, k int, a, b, c []float64) {
	if n == 0 {
		return
	}
	r.pack(n, k, b)
	r.matrix.NN(len(a)/k, a, c)
}

// logSumExp returns log Σ exp(x/t), and the index of the largest term. It is −Inf if
// all x are.
func logSumExp(x []float64, t float64) (sum float64, top int) {
	top = linalg.ArgMax(x)
	if math.IsInf(x[top], 0) {
		return x[top], top
	}
	for _, v := range x {
		sum += math.Exp((v - x[top]) / t)
	}
	return x[top]/t + math.Log(sum), top
}

// possible returns z, or zeros for logits that are all −Inf: no class is likelier
// than another.
func possible(z []float64) []float64 {
	if math.IsInf(z[linalg.ArgMax(z)], -1) {
		return make([]float64, len(z))
	}
	return z
}

// softmaxAll returns the softmax of rows of logits, computed on all cores.
func softmaxAll(ctx context.Context, logits []float64, classes int) ([]float64, error) {
	p := make([]float64, len(logits))
	err := parallel.Blocks(ctx, len(p)/classes, blockRows, func(from, to int) {
		copy(p[from*classes:], softmaxRows(logits[from*classes:to*classes], classes))
	})
	return p, err
}

// softmaxRows returns the softmax of rows of logits.
func softmaxRows(logits []float64, classes int) []float64 {
	p := make([]float64, 0, len(logits))
	for z := range slices.Chunk(logits, classes) {
		z = possible(z)
		sum, _ := logSumExp(z, 1)
		for _, v := range z {
			p = append(p, math.Exp(v-sum))
		}
	}
	return p
}
