package posthoc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"gonum.org/v1/gonum/mat"
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

// statistics are computed from features once, for several scores.
type statistics struct {
	moments *linalg.Moments
	within  *mat.SymDense
	mds     *MDS
	whole   *Gaussian
}

// rows returns the features, divided by their lengths if l2, as package linalg reads them.
// Without labels all rows are in one class.
func (data *Data) rows(l2 bool) linalg.Rows {
	index := make([]int, data.N)
	for i := range index {
		index[i] = i
	}
	r := linalg.Rows{D: data.D, Index: index, Classes: 1, Label: func(int) int { return 0 }}
	if data.Labels != nil {
		r.Classes, r.Label = data.Classes, func(row int) int { return int(data.Labels[row]) }
	}
	r.Read = func(dst []float64, row int) {
		kernels.Convert(dst, data.Features(row, row+1))
		if l2 {
			linalg.Normalise(dst)
		}
	}
	return r
}

// of returns the statistics of the features, divided by their lengths if l2. The
// caller holds the lock of the data.
func (data *Data) of(l2 bool) *statistics {
	if l2 {
		return &data.computed[1]
	}
	return &data.computed[0]
}

// means returns the means of the features and of their classes.
func (data *Data) means(ctx context.Context) (*linalg.Moments, error) {
	data = data.source()
	data.mu.Lock()
	defer data.mu.Unlock()
	return data.meansLocked(ctx, false)
}

func (data *Data) meansLocked(ctx context.Context, l2 bool) (*linalg.Moments, error) {
	s := data.of(l2)
	if s.moments == nil {
		m, err := linalg.Means(ctx, data.rows(l2))
		if err != nil {
			return nil, err
		}
		s.moments = m
	}
	return s.moments, nil
}

// covariance returns the covariance within the classes. The caller may change it, and holds
// the lock of the data.
func (data *Data) covariance(ctx context.Context, l2 bool) (*mat.SymDense, *linalg.Moments, error) {
	m, err := data.meansLocked(ctx, l2)
	if err != nil {
		return nil, nil, err
	}
	s := data.of(l2)
	if s.within == nil {
		if s.within, err = m.Within(ctx, data.rows(l2)); err != nil {
			return nil, nil, err
		}
	}
	sigma := mat.NewSymDense(data.D, nil)
	sigma.CopySym(s.within)
	return sigma, m, nil
}

// total returns the covariance of all rows about their mean, which is also in the
// moments. The caller may change it.
func (data *Data) total(ctx context.Context, l2 bool) (*mat.SymDense, *linalg.Moments, error) {
	data = data.source()
	data.mu.Lock()
	defer data.mu.Unlock()
	return data.totalLocked(ctx, l2)
}

func (data *Data) totalLocked(ctx context.Context, l2 bool) (*mat.SymDense, *linalg.Moments, error) {
	sigma, m, err := data.covariance(ctx, l2)
	if err == nil {
		sigma, err = m.AddBetween(ctx, sigma)
	}
	return sigma, m, err
}

func (data *Data) mds(ctx context.Context, l2 bool) (*MDS, error) {
	s := data.of(l2)
	if s.mds != nil {
		return s.mds, nil
	}
	sigma, m, err := data.covariance(ctx, l2)
	if err != nil {
		return nil, err
	}
	s.mds, err = newMDS(ctx, l2, m, sigma)
	return s.mds, err
}

func (data *Data) whole(ctx context.Context, l2 bool) (*Gaussian, error) {
	s := data.of(l2)
	if s.whole != nil {
		return s.whole, nil
	}
	sigma, m, err := data.totalLocked(ctx, l2)
	if err != nil {
		return nil, err
	}
	s.whole, err = newGaussian(ctx, m.Mean, sigma)
	return s.whole, err
}

// mean returns the mean of the features that the head reads.
func (data *Data) mean(ctx context.Context, head *Linear) ([]float64, error) {
	if err := data.fits(head); err != nil {
		return nil, err
	}
	m, err := data.means(ctx)
	if err != nil {
		return nil, err
	}
	return m.Mean, nil
}

// fits returns an error unless the head reads these features.
func (data *Data) fits(head *Linear) error {
	if err := data.need(featureRows); err != nil {
		return err
	}
	if err := head.need(); err != nil {
		return err
	}
	if data.D != head.In {
		return fmt.Errorf("the linear head reads %d features, training rows have %d", head.In, data.D)
	}
	return nil
}

// principalAxes returns the eigenvectors [R, D] of the largest eigenvalues, as few as
// have a share of their sum, but at least one and no more than most, and these
// eigenvalues.
func principalAxes(ctx context.Context, sigma *mat.SymDense, share float64, most int) (axes, values []float64, err error) {
	all, vectors, err := eigen(ctx, sigma)
	if err != nil {
		return nil, nil, err
	}
	whole := sum(all)
	if !(whole > 0) {
		return nil, nil, errors.New("the directions of the training features do not vary")
	}
	for k := len(all) - 1; k >= 0 && len(values) < max(most, 1) && sum(values) < share*whole; k-- {
		values = append(values, all[k])
		axes = append(axes, vectors.RawRowView(k)...)
	}
	return axes, values, nil
}

// varies reports whether the variance of a feature over n rows is more than
// rounding, as scikit-learn's StandardScaler has it.
func varies(variance, mean float64, n int) bool {
	rounding := float64(n) * 0x1p-52
	return variance > rounding*variance+rounding*mean*rounding*mean
}

// smallest is the share of the largest eigenvalue up to which others are noise.
func smallest(d int) float64 { return float64(d) * 0x1p-52 }

// eigen returns eigenvalues, ascending, and eigenvectors, in rows.
func eigen(ctx context.Context, sigma *mat.SymDense) (values []float64, vectors *mat.Dense, err error) {
	failed, stopped := await(ctx, func() (err error) {
		values, vectors, err = linalg.Eigen(sigma)
		return err
	})
	switch {
	case stopped != nil:
		return nil, nil, stopped
	case failed != nil:
		return nil, nil, fmt.Errorf("the features' covariance: %w", failed)
	}
	return values, vectors, nil
}

// await returns the error of do, or that of the context as soon as it is cancelled:
// a factorisation takes up to minutes and cannot be cancelled.
func await[T any](ctx context.Context, do func() T) (answer T, err error) {
	task := parallel.Start(do)
	select {
	case <-ctx.Done():
		return answer, ctx.Err()
	case <-task.Done():
		return task.Wait(), nil
	}
}
