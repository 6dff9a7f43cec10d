package posthoc

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

var (
	_ = declare[MDS]("MDS", mahalanobis("mds", 5, nearClass, FitMDS, false), mahalanobis("mds++", 5, nearClass, FitMDS, true),
		method{
			name:  "mds++k",
			words: Words{"far from every kind of image in the classes", "near to a kind of image in a class", "farther from every kind of image in the classes"},
			reads: featureRows, needs: featureRows | labelRows,
			memory: func(d, c float64) float64 { return 5*d*d + 15*c*d },
			fit:    func(ctx context.Context, in Input) (Scorer, error) { return FitModes(ctx, in.Train) },
		})
	_ = declare[RMDS]("RMDS", mahalanobis("rmds", 6, likeOne, FitRMDS, false), mahalanobis("rmds++", 6, likeOne, FitRMDS, true))
)

var (
	nearClass = Words{"far from every class", "near to a class", "farther from every class"}
	likeOne   = Words{"no more like one class than like all together", "more like one class than like all together", "less like one class, beside all together,"}
)

// mahalanobis is a method that needs so many matrices [D, D].
func mahalanobis[S Scorer](name string, squares float64, words Words, fit func(context.Context, *Data, bool) (S, error), l2 bool) method {
	return method{
		name: name, reads: featureRows, needs: featureRows | labelRows, words: words, group: fmt.Sprint("mahalanobis, of unit rows: ", l2),
		memory: func(d, c float64) float64 { return squares*d*d + 3*c*d },
		fit:    func(ctx context.Context, in Input) (Scorer, error) { return fit(ctx, in.Train, l2) },
	}
}
func (s *MDS) fields(f *fields) {
	f.bool("l2", &s.L2)
	f.gaussian("within", &s.Within, -1)
	f.matrix("means", &s.Means, -1, s.Within.rank())
}

func (s *RMDS) fields(f *fields) {
	if f.find != nil {
		s.MDS = &MDS{}
	}
	f.within("mds", s.MDS.fields)
	f.gaussian("whole", &s.Whole, len(s.MDS.Within.Mean))
}

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
	Means  []float64 // [classes with rows, R], W(μ_c − μ)

	packed right
	once   sync.Once
	half   []float64 // ½‖m_c‖² of the means m_c
}

// FitMDS fits MDS, or MDS++ if l2.
func FitMDS(ctx context.Context, data *Data, l2 bool) (*MDS, error) {
	if err := data.need(featureRows | labelRows); err != nil {
		return nil, err
	}
	data = data.source()
	data.mu.Lock()
	defer data.mu.Unlock()
	return data.mds(ctx, l2)
}

// FitLayer fits MDS++ with a covariance that is shrunk: to each of its eigenvalues their mean
// is added, since values within a network vary in few directions and rows may be few.
func FitLayer(ctx context.Context, data *Data) (*MDS, error) {
	if err := data.need(featureRows | labelRows); err != nil {
		return nil, err
	}
	data = data.source()
	data.mu.Lock()
	defer data.mu.Unlock()
	sigma, m, err := data.covariance(ctx, true)
	if err != nil {
		return nil, err
	}
	mean := sigma.Trace() / float64(data.D)
	for j := range data.D {
		sigma.SetSym(j, j, sigma.At(j, j)+mean)
	}
	return newMDS(ctx, true, m, sigma)
}

// newMDS returns the MDS of the means of classes, or of parts of them, and the
// covariance within these.
func newMDS(ctx context.Context, l2 bool, m *linalg.Moments, sigma *mat.SymDense) (*MDS, error) {
	within, err := newGaussian(ctx, m.Mean, sigma)
	if err != nil {
		return nil, err
	}
	var means []float64
	for c, mean := range m.Means {
		if m.Counts[c] > 0 {
			means = append(means, mean...)
		}
	}
	s := &MDS{L2: l2, Within: within, Means: make([]float64, len(means)/len(m.Mean)*within.rank())}
	within.apply(s.Means, means)
	return s, nil
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
	if err := data.need(featureRows | labelRows); err != nil {
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

// Score implements [Scorer].
func (s *MDS) Score(ctx context.Context, dst []float64, b Batch) error {
	return alone(ctx, s, dst, b)
}

func (s *MDS) join(t *together, dst []float64, _ Batch) error {
	workOn[distances](t, s).join(s, dst, nil)
	return nil
}

// Score implements [Scorer].
func (s *RMDS) Score(ctx context.Context, dst []float64, b Batch) error {
	return alone(ctx, s, dst, b)
}

func (s *RMDS) join(t *together, dst []float64, _ Batch) error {
	workOn[distances](t, s.MDS).join(s.MDS, dst, s.Whole)
	return nil
}

// distances computes an MDS and the RMDS that are based on it.
type distances struct {
	mds   *MDS
	dst   [][]float64
	whole []*Gaussian // of RMDS, nil for the MDS itself
}

func (w *distances) join(mds *MDS, dst []float64, whole *Gaussian) {
	w.mds, w.dst, w.whole = mds, append(w.dst, dst), append(w.whole, whole)
}

func (w *distances) run(ctx context.Context, n int, b Batch) error {
	d := len(w.mds.Within.Mean)
	return eachFeatures(ctx, w.dst[0][:n], b, d, w.mds.L2, func(scores, x []float64, at int) {
		w.mds.score(scores, x)
		within := scores
		if len(w.dst) > 1 { // they are needed again
			copied, done := scratch(len(scores))
			defer done()
			within = copied
			copy(within, scores)
		}
		for i, whole := range w.whole {
			scores := w.dst[i][at : at+len(scores)]
			copy(scores, within)
			if whole == nil {
				continue
			}
			r := whole.rank()
			z, done := scratch(len(scores) * r)
			whole.apply(z, x)
			for i := range scores {
				scores[i] += dot(z[i*r:(i+1)*r], z[i*r:(i+1)*r])
			}
			done()
		}
	})
}

func (s *MDS) score(scores, x []float64) {
	r := s.Within.rank()
	z, done := scratch(len(scores) * r)
	defer done()
	s.Within.apply(z, x)
	classes := len(s.Means) / r
	inner, done := scratch(len(scores) * classes)
	defer done()
	s.packed.times(classes, r, z, s.Means, inner)
	half := s.halves()
	for i := range scores {
		row := inner[i*classes : (i+1)*classes]
		for c := range row {
			row[c] -= half[c]
		}
		// ‖z−m‖² = ‖z‖² − 2(⟨z,m⟩ − ½‖m‖²) says which mean is the nearest; the
		// distance to it is taken without cancellation.
		c := linalg.ArgMax(row)
		to := distance(z[i*r:(i+1)*r], s.Means[c*r:(c+1)*r])
		scores[i] = -to * to
	}
}

// halves returns ½‖m_c‖² of the means.
func (s *MDS) halves() []float64 {
	s.once.Do(func() {
		for m := range slices.Chunk(s.Means, s.Within.rank()) {
			s.half = append(s.half, dot(m, m)/2)
		}
	})
	return s.half
}

func (s *MDS) graph(g *graph) onnx.Value {
	x := s.rows(g)
	z := s.Within.graph(g, x)
	r := s.Within.rank()
	classes := len(s.Means) / r
	nearest := g.ArgMax(g.Op("Sub", g.Times(z, s.Means, r), g.Vector(s.halves())))
	off := g.Op("Sub", z, g.Take(g.Doubles(s.Means, classes, r), nearest))
	return g.Neg(g.Dot(off, off))
}

// rows adds what is whitened.
func (s *MDS) rows(g *graph) onnx.Value {
	if s.L2 {
		return g.unit(g.Features)
	}
	return g.Features
}

func (s *RMDS) graph(g *graph) onnx.Value {
	within := s.MDS.graph(g)
	z := s.Whole.graph(g, s.MDS.rows(g))
	return g.Op("Add", within, g.Dot(z, z))
}
