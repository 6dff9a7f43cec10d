package posthoc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
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

// eachLogits scores each row by its logits alone. classes is how many there
// must be, 0 any number.
func eachLogits(ctx context.Context, dst []float64, b Batch, classes int, score func(row []float64) float64) error {
	classes, err := b.classes(len(dst), classes)
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
