package posthoc

import (
	"context"
	"fmt"

	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
)

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

// means returns the means of the features, divided by their lengths if l2, and
// of their classes.
func (data *Data) means(ctx context.Context, l2 bool) (*linalg.Moments, error) {
	data = data.source()
	data.mu.Lock()
	defer data.mu.Unlock()
	return data.meansLocked(ctx, l2)
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

// covariance returns the covariance within the classes. The caller may change it.
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
// moments. The caller may change it, and holds the lock of the data.
func (data *Data) total(ctx context.Context, l2 bool) (*mat.SymDense, *linalg.Moments, error) {
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
	sigma, m, err := data.total(ctx, l2)
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
	m, err := data.means(ctx, false)
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
