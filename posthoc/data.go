package posthoc

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"

	"gonum.org/v1/gonum/mat"

	"mlrbfn/internal/moments"
)

// Data is rows that scores are fitted on, read a block at a time, so that they
// may be more than memory holds: features mapped from a file, logits computed
// by a head as they are asked for.
//
// The readers may be called by several goroutines at once; what they return is
// not written to and is not kept, except that KNN, NNGuide and Relation read
// the features again whenever they score.
//
// Class means, covariances and what is made of them are computed once for all
// scores that are fitted on the same Data, or on the same with other logits.
type Data struct {
	N, D     int
	Classes  int                          // C
	Labels   []int64                      // [N], each in [0, C); nil where there are none
	Features func(from, to int) []float32 // rows from … to−1, [·, D]; nil where there are none
	Logits   func(from, to int) []float64 // the same rows' logits, [·, C]; nil where there are none

	like *Data // whose rows these are, with other logits; nil means their own

	mu        sync.Mutex
	thin      map[int]*Data // every so many of them, so far
	computed  [2]statistics // of features as they are, and divided by their lengths
	residuals map[residualKey]*Residual
}

// NewData returns the rows of features [N, D] with their labels [N], which may
// be nil, and without logits.
func NewData(features []float32, d int, labels []int64, classes int) *Data {
	return &Data{
		N: len(features) / d, D: d, Classes: classes, Labels: labels,
		Features: func(from, to int) []float32 { return features[from*d : to*d] },
	}
}

// WithLogits returns the same rows with other logits, which are known to be the
// same.
func (data *Data) WithLogits(logits func(from, to int) []float64) *Data {
	return &Data{
		N: data.N, D: data.D, Classes: data.Classes, Labels: data.Labels,
		Features: data.Features, Logits: logits, like: data.source(),
	}
}

// source is whose rows the data are.
func (data *Data) source() *Data {
	if data.like != nil {
		return data.like
	}
	return data
}

// Matrix returns a reader, for [Data], of the rows of logits [N, C].
func Matrix[T float32 | float64](logits []T, classes int) func(from, to int) []float64 {
	return func(from, to int) []float64 {
		part := make([]float64, (to-from)*classes)
		for i, v := range logits[from*classes : to*classes] {
			part[i] = float64(v)
		}
		return part
	}
}

// every returns the rows 0, step, 2·step … of the data; those of the same rows
// with other logits are the same rows.
func (data *Data) every(step int) *Data {
	if step == 1 {
		return data
	}
	source := data.source()
	source.mu.Lock()
	defer source.mu.Unlock()
	thin := source.thin[step]
	if thin == nil {
		thin = &Data{N: (data.N + step - 1) / step, D: data.D, Classes: data.Classes}
		if data.Features != nil {
			thin.Features = func(from, to int) []float32 { return gather(source.Features, from, to, step) }
		}
		if source.thin == nil {
			source.thin = map[int]*Data{}
		}
		source.thin[step] = thin
	}
	if data.Logits == nil {
		return thin
	}
	return thin.WithLogits(func(from, to int) []float64 { return gather(data.Logits, from, to, step) })
}

func gather[T any](read func(from, to int) []T, from, to, step int) []T {
	var rows []T
	for i := from; i < to; i++ {
		rows = append(rows, read(i*step, i*step+1)...)
	}
	return rows
}

// inMemory returns a copy of the features and, if they are asked for, logits.
func (data *Data) inMemory(logits bool) *Data {
	own := NewData(slices.Clone(data.Features(0, data.N)), data.D, nil, data.Classes)
	if logits {
		own.Logits = Matrix(data.Logits(0, data.N), data.Classes)
	}
	return own
}

// need reports what the data lack of the features, logits and labels that a score
// needs.
func (data *Data) need(n needs) error {
	switch {
	case data == nil || data.N == 0:
		return fmt.Errorf("training rows: %w", ErrMissing)
	case n&features != 0 && data.Features == nil:
		return fmt.Errorf("features of the training rows: %w", ErrMissing)
	case n&logits != 0 && data.Logits == nil:
		return fmt.Errorf("logits of the training rows: %w", ErrMissing)
	case n&labels != 0 && data.Labels == nil:
		return fmt.Errorf("labels of the training rows: %w", ErrMissing)
	}
	if data.Labels != nil {
		if len(data.Labels) != data.N {
			return fmt.Errorf("%d training rows have %d labels", data.N, len(data.Labels))
		}
		if i := slices.IndexFunc(data.Labels, func(y int64) bool { return y < 0 || y >= int64(data.Classes) }); i >= 0 {
			return fmt.Errorf("training row %d has the label %d: there are %d classes", i, data.Labels[i], data.Classes)
		}
	}
	return nil
}

// blocks calls do for consecutive blocks of rows until it fails or the context
// is cancelled.
func (data *Data) blocks(ctx context.Context, do func(from, to int) error) error {
	for from := 0; from < data.N; from += 4 * blockRows {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := do(from, min(from+4*blockRows, data.N)); err != nil {
			return err
		}
	}
	return nil
}

// statistics are what several scores want of the same features.
type statistics struct {
	moments *moments.Moments
	within  *mat.SymDense
	mds     *MDS
	whole   *Gaussian
}

// rows gives the features, divided by their lengths if l2, to package moments.
// Without labels they are all of one class.
func (data *Data) rows(l2 bool) moments.Rows {
	index := make([]int, data.N)
	for i := range index {
		index[i] = i
	}
	r := moments.Rows{D: data.D, Index: index, Classes: 1, Label: func(int) int { return 0 }}
	if data.Labels != nil {
		r.Classes, r.Label = data.Classes, func(row int) int { return int(data.Labels[row]) }
	}
	r.Read = func(dst []float64, row int) {
		widen(dst, data.Features(row, row+1))
		if l2 {
			normaliseRows(dst, data.D)
		}
	}
	return r
}

// quantiles returns the quantiles q, each in [0, 1], of all features, linearly
// interpolated as numpy.percentile does. They are exact: the order of float32
// values is that of their bits, so passes that count the upper half of these and
// the lower halves below an upper one find any rank in fixed memory.
func (data *Data) quantiles(ctx context.Context, q ...float64) ([]float64, error) {
	last := float64(data.N*data.D - 1)
	var ranks []int
	for _, q := range q {
		at := math.Floor(q * last)
		ranks = append(ranks, int(at), int(min(at+1, last)))
	}
	upper, err := data.countKeys(ctx, func(key uint32) (uint32, bool) { return key >> 16, true })
	if err != nil {
		return nil, err
	}
	buckets, within := make([]uint32, len(ranks)), make([]int, len(ranks))
	lower := map[uint32][]int{}
	for i, rank := range ranks {
		buckets[i], within[i] = find(upper, rank)
		b := buckets[i]
		if lower[b] != nil {
			continue
		}
		lower[b], err = data.countKeys(ctx, func(key uint32) (uint32, bool) { return key & 0xffff, key>>16 == b })
		if err != nil {
			return nil, err
		}
	}
	values := make([]float64, len(ranks))
	for i, b := range buckets {
		low, _ := find(lower[b], within[i])
		values[i] = fromKey(b<<16 | low)
	}
	found := make([]float64, len(q))
	for i, q := range q {
		a, b := values[2*i], values[2*i+1]
		found[i] = a + (b-a)*(q*last-math.Floor(q*last))
	}
	return found, nil
}

// countKeys counts a half of a key of each value, ordered as the values are, on
// all cores; half says which, if any.
func (data *Data) countKeys(ctx context.Context, half func(key uint32) (uint32, bool)) ([]int, error) {
	rooms := make(chan []int, runtime.GOMAXPROCS(0))
	for range cap(rooms) {
		rooms <- make([]int, 1<<16)
	}
	err := eachBlock(ctx, data.N, 4*blockRows, func(from, to int) {
		counts := <-rooms
		for _, v := range data.Features(from, to) {
			bits := math.Float32bits(v)
			if at, ok := half(bits ^ (uint32(int32(bits)>>31) | 1<<31)); ok {
				counts[at]++
			}
		}
		rooms <- counts
	})
	all := <-rooms
	for range cap(rooms) - 1 {
		for at, n := range <-rooms {
			all[at] += n
		}
	}
	return all, err
}

func fromKey(key uint32) float64 {
	if key&(1<<31) != 0 {
		return float64(math.Float32frombits(key &^ (1 << 31)))
	}
	return float64(math.Float32frombits(^key))
}

// find returns the bucket that holds the value of a rank, and its rank there.
func find(counts []int, rank int) (bucket uint32, left int) {
	for b, count := range counts {
		if rank < count {
			return uint32(b), rank
		}
		rank -= count
	}
	panic("posthoc: a rank beyond the values")
}
