package posthoc

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Data holds the rows that scores are fitted on. Rows are read a block at a time,
// so that there may be more than memory holds: features may be mapped from a file,
// and logits computed by a head when they are read.
//
// Several goroutines may call the readers at once. Callers neither change the
// results nor hold on to them. KNN, NNGuide and Relation read the features again
// whenever they score.
//
// Class means, covariances and their factors are computed once for all scores that
// are fitted on the same Data, or on the same rows with other logits. SHE's patterns are
// computed once for the same Data.
type Data struct {
	N, D     int
	Classes  int                          // C
	Labels   []int64                      // [N], each in [0, C); nil where there are none
	Features func(from, to int) []float32 // rows from … to−1, [·, D]; nil where there are none
	Logits   func(from, to int) []float64 // the same rows' logits, [·, C]; nil where there are none

	like *Data // the Data that these rows were taken from, with other logits; may be nil

	ofSHE    sync.Mutex
	patterns []float64 // of these rows' logits, once a SHE asks for them

	mu        sync.Mutex
	thin      map[int]*Data // every n-th row, by n
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

// WithLogits returns the same rows with other logits. Scores of both share what
// depends on the features alone.
func (data *Data) WithLogits(logits func(from, to int) []float64) *Data {
	return &Data{
		N: data.N, D: data.D, Classes: data.Classes, Labels: data.Labels,
		Features: data.Features, Logits: logits, like: data.source(),
	}
}

// source returns the Data that the rows were taken from.
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

// every returns the rows 0, step, 2·step … of the data. Data of the same rows with
// other logits give the same rows again.
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

// need returns an error if the data lack features, logits or labels that a score
// needs.
func (data *Data) need(n needs) error {
	switch {
	case data == nil || data.N == 0:
		return fmt.Errorf("training rows: %w", ErrMissing)
	case n&featureRows != 0 && data.Features == nil:
		return fmt.Errorf("features of the training rows: %w", ErrMissing)
	case n&logitRows != 0 && data.Logits == nil:
		return fmt.Errorf("logits of the training rows: %w", ErrMissing)
	case n&labelRows != 0 && data.Labels == nil:
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
