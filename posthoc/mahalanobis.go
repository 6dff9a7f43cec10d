package posthoc

import (
	"context"

	"mlrbfn/internal/products"
)

// MDS is the Mahalanobis distance score: −min_c (f−μ_c)ᵀ Σ⁺ (f−μ_c) with the
// means μ_c of the classes and the one covariance Σ = 1/N Σ_i (f_i−μ_y)(f_i−μ_y)ᵀ
// within them. Reads features. On features that are divided by their lengths,
// when fitting and when scoring, it is MDS++.
//
// Σ⁺ is the symmetric pseudo-inverse: directions in which no training features
// differ within a class do not count. Classes without training rows are left
// out.
//
// Source: Lee et al., 2018 (OpenOOD: MDSPostprocessor); ++: Mueller and Hein,
// 2025, Mahalanobis++.
type MDS struct {
	L2     bool      // divide each row by its length first; zeros stay zeros
	Within *Gaussian // the covariance, and the mean of all rows
	Means  []float64 `cols:"Within"` // [classes with rows, R], W(μ_c − μ)
}

// FitMDS fits MDS, or MDS++ if l2.
func FitMDS(ctx context.Context, data *Data, l2 bool) (*MDS, error) {
	if err := data.need(true, false, true); err != nil {
		return nil, err
	}
	data = data.source()
	data.mu.Lock()
	defer data.mu.Unlock()
	return data.mds(ctx, l2)
}

// RMDS is the relative Mahalanobis distance score: −min_c [d_c(f) − d_0(f)],
// with the distances d_c of [MDS] and the distance d_0 by the mean and the
// covariance (over N) of all training features. Reads features.
//
// Source: Ren et al., 2021 (OpenOOD: RMDSPostprocessor); ++: as for MDS.
type RMDS struct {
	MDS   *MDS
	Whole *Gaussian // of all rows, whatever their class
}

// FitRMDS fits RMDS, or RMDS++ if l2.
func FitRMDS(ctx context.Context, data *Data, l2 bool) (*RMDS, error) {
	if err := data.need(true, false, true); err != nil {
		return nil, err
	}
	data = data.source()
	data.mu.Lock()
	defer data.mu.Unlock()
	within, err := data.mds(ctx, l2)
	if err != nil {
		return nil, err
	}
	whole, err := data.whole(ctx, l2)
	if err != nil {
		return nil, err
	}
	return &RMDS{within, whole}, nil
}

// Score implements [Score].
func (s *MDS) Score(ctx context.Context, dst []float64, b Batch) error {
	return eachFeatures(ctx, dst, b, len(s.Within.Mean), s.L2, func(scores, x []float64, _ int) { s.score(scores, x) })
}

func (s *MDS) score(scores, x []float64) {
	r := s.Within.rank()
	z, done := scratch(len(scores) * r)
	defer done()
	s.Within.apply(z, x)
	classes := len(s.Means) / r
	inner := make([]float64, len(scores)*classes)
	products.NT(len(scores), classes, r, z, s.Means, inner)
	half := make([]float64, classes) // ½‖m_c‖²
	for c := range half {
		half[c] = dot(s.Means[c*r:(c+1)*r], s.Means[c*r:(c+1)*r]) / 2
	}
	for i := range scores {
		row := inner[i*classes : (i+1)*classes]
		for c := range row {
			row[c] -= half[c]
		}
		// ‖z−m‖² = ‖z‖² − 2(⟨z,m⟩ − ½‖m‖²) says which mean is the nearest; the
		// distance to it is taken without cancellation.
		c := argmax(row)
		to := distance(z[i*r:(i+1)*r], s.Means[c*r:(c+1)*r])
		scores[i] = -to * to
	}
}

// Score implements [Score].
func (s *RMDS) Score(ctx context.Context, dst []float64, b Batch) error {
	return s.relative(ctx, dst, b, nil)
}

// relative is Score, given what MDS scores unless that is nil.
func (s *RMDS) relative(ctx context.Context, dst []float64, b Batch, within []float64) error {
	return eachFeatures(ctx, dst, b, len(s.Whole.Mean), s.MDS.L2, func(scores, x []float64, at int) {
		if within != nil {
			copy(scores, within[at:])
		} else {
			s.MDS.score(scores, x)
		}
		r := s.Whole.rank()
		z, done := scratch(len(scores) * r)
		defer done()
		s.Whole.apply(z, x)
		for i := range scores {
			scores[i] += dot(z[i*r:(i+1)*r], z[i*r:(i+1)*r])
		}
	})
}
