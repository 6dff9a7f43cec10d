package posthoc

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/mathext/prng"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
)

var _ = declare[CoP]("CoP", method{
	name:  "cop",
	words: Words{"features outside of the space that the training images span", "features in the space that the training images span", "with features more outside of the space that the training images span"},
	reads: featureRows, needs: featureRows, memory: residualMemory,
	fit: func(ctx context.Context, in Input) (Scorer, error) { return FitCoP(ctx, in.Train, 0) },
})

var _ = declare[CoRP]("CoRP", method{
	name:  "corp",
	words: Words{"features outside of the space that the training images span", "features in the space that the training images span", "with features more outside of the space that the training images span"},
	reads: featureRows, needs: featureRows,
	memory: func(d, _ float64) float64 { return randomFeatures * (6*randomFeatures + 2*d) },
	fit:    func(ctx context.Context, in Input) (Scorer, error) { return FitCoRP(ctx, in.Train, 0, 0, 0) },
})

func (s *CoP) fields(f *fields) {
	f.vector("mean", &s.Mean, -1)
	f.matrix("axes", &s.Axes, -1, len(s.Mean))
}

func (s *CoRP) fields(f *fields) {
	f.vector("phases", &s.Phases, -1)
	f.int("d", &s.D)
	f.matrix("frequencies", &s.Frequencies, len(s.Phases), s.D)
	if f.find != nil {
		s.PCA = &CoP{}
	}
	f.within("pca", s.PCA.fields)
	f.refuse(len(s.PCA.Mean) != len(s.Phases), "pca.mean", "it has %d values for %d random features", len(s.PCA.Mean), len(s.Phases))
}

// CoP is kernel PCA with the cosine kernel: the distance of a feature's direction
// from the principal space of those of the training rows,
//
//	−‖(I − PᵀP)(f/‖f‖ − μ)‖
//
// with the mean μ of the training rows f/‖f‖, and the rows of P their principal axes,
// the fewest that have a share of the variance, but never all. Reads features. The
// direction of features of zeros is 0.
//
// Source: Fang et al., 2024 (github.com/fanghenshaometeor/ood-kernel-pca:
// CoP_CoRP_c10.py).
type CoP struct {
	Mean []float64 // [D], μ
	Axes []float64 // [R, D], P

	packed right
}

// FitCoP fits CoP with the fewest axes that have at least a share of the variance;
// 0 means 0.85.
func FitCoP(ctx context.Context, data *Data, share float64) (*CoP, error) {
	if err := data.need(featureRows); err != nil {
		return nil, err
	}
	sigma, m, err := data.total(ctx, true)
	if err != nil {
		return nil, err
	}
	return newCoP(ctx, m.Mean, sigma, cmp.Or(share, 0.85))
}

// newCoP finds the principal axes of a covariance that have a share of the variance.
func newCoP(ctx context.Context, mean []float64, sigma *mat.SymDense, share float64) (*CoP, error) {
	axes, _, err := principalAxes(ctx, sigma, share, len(mean)-1)
	return &CoP{Mean: mean, Axes: axes}, err
}

// score puts −‖(I − PᵀP)(x − μ)‖ into scores, and changes the rows x.
func (s *CoP) score(scores, x []float64) {
	d := len(s.Mean)
	subtract(x, s.Mean)
	axes := len(s.Axes) / d
	along, done := scratch(len(scores) * axes)
	defer done()
	s.packed.times(axes, d, x, s.Axes, along)
	inside, done := scratch(len(x))
	defer done()
	linalg.NN(len(scores), d, axes, along, s.Axes, inside)
	for i := range scores {
		scores[i] = -distance(x[i*d:(i+1)*d], inside[i*d:(i+1)*d])
	}
}

// Score implements [Scorer].
func (s *CoP) Score(ctx context.Context, dst []float64, b Batch) error {
	return eachFeatures(ctx, dst, b, len(s.Mean), true, func(scores, x []float64, _ int) { s.score(scores, x) })
}

// CoRP is kernel PCA with a Gaussian kernel of the features' directions, as M random
// Fourier features approximate it:
//
//	−‖(I − PᵀP)(φ − μ)‖, φ = √(2/M)·cos(W f/‖f‖ + u)
//
// with W of normal numbers times √(2γ), u of uniform ones from 0 to 2π, and the mean
// μ and the principal axes P of φ as [CoP] has them of f/‖f‖. Reads features.
//
// W and u are NumPy's for the seed 0, as in the authors' code, so that the same
// training rows always give the same scores.
//
// Source: Fang et al., 2024 (github.com/fanghenshaometeor/ood-kernel-pca:
// CoP_CoRP_c10.py, with its settings for CIFAR-10 and a ResNet-18).
type CoRP struct {
	D           int
	Frequencies []float64 // [M, D], W
	Phases      []float64 // [M], u
	PCA         *CoP      // of φ

	packed right
}

// randomFeatures is M by default.
const randomFeatures = 2048

// FitCoRP fits CoRP with m random features for a kernel of the width gamma, and the
// fewest axes that have at least a share of the variance. 0 means 2,048, 2 and 0.8.
// Fitting takes six matrices of m×m float64, whatever the number of rows.
func FitCoRP(ctx context.Context, data *Data, m int, gamma, share float64) (*CoRP, error) {
	if err := data.need(featureRows); err != nil {
		return nil, err
	}
	if m < 0 || gamma < 0 {
		return nil, fmt.Errorf("%d random features of a kernel of width %g: neither can be negative", m, gamma)
	}
	m = cmp.Or(m, randomFeatures)
	s := &CoRP{D: data.D}
	s.Frequencies, s.Phases = fourier(m, data.D, cmp.Or(gamma, 2))
	share = cmp.Or(share, 0.8)
	var err error
	if data.N < m {
		s.PCA, err = s.ofRows(ctx, data, share)
	} else {
		s.PCA, err = s.ofCovariance(ctx, data, share)
	}
	return s, err
}

// ofCovariance finds the principal axes from the covariance of φ [M, M].
func (s *CoRP) ofCovariance(ctx context.Context, data *Data, share float64) (*CoP, error) {
	kernels.UseBLAS()
	m := len(s.Phases)
	mean, squares := make([]float64, m), make([]float64, m*m)
	phi := make([]float64, 4*blockRows*m)
	err := data.blocks(ctx, func(from, to int) error {
		phi := phi[:(to-from)*m]
		if err := s.mapRows(ctx, phi, data, from, to); err != nil {
			return err
		}
		addRows(mean, phi)
		blas64.Syrk(blas.Trans, 1, blas64.General{Rows: to - from, Cols: m, Stride: m, Data: phi},
			1, blas64.Symmetric{N: m, Stride: m, Data: squares, Uplo: blas.Upper})
		return nil
	})
	if err != nil {
		return nil, err
	}
	n := float64(data.N)
	for j := range mean {
		mean[j] /= n
	}
	sigma := mat.NewSymDense(m, squares)
	for i := range m {
		for j := i; j < m; j++ {
			sigma.SetSym(i, j, sigma.At(i, j)/n-mean[i]*mean[j])
		}
	}
	return newCoP(ctx, mean, sigma, share)
}

// ofRows finds the same axes from the products of the rows of φ with each other
// [N, N], which are fewer where there are fewer rows than random features.
func (s *CoRP) ofRows(ctx context.Context, data *Data, share float64) (*CoP, error) {
	n, m := data.N, len(s.Phases)
	phi, mean := make([]float64, n*m), make([]float64, m)
	if err := s.mapRows(ctx, phi, data, 0, n); err != nil {
		return nil, err
	}
	addRows(mean, phi)
	for j := range mean {
		mean[j] /= float64(n)
	}
	subtract(phi, mean)
	products := make([]float64, n*n)
	linalg.NT(n, n, m, phi, phi, products)
	weights, values, err := principalAxes(ctx, mat.NewSymDense(n, products), share, n-1)
	if err != nil {
		return nil, err
	}
	axes := make([]float64, len(values)*m)
	linalg.NN(len(values), m, n, weights, phi, axes)
	for i, length := range values {
		for j := range m {
			axes[i*m+j] /= math.Sqrt(length)
		}
	}
	return &CoP{Mean: mean, Axes: axes}, nil
}

// mapRows puts φ of some training rows into phi.
func (s *CoRP) mapRows(ctx context.Context, phi []float64, data *Data, from, to int) error {
	m := len(s.Phases)
	return eachFeatures(ctx, make([]float64, to-from), Batch{Features: data.Features(from, to)}, s.D, true,
		func(scores, x []float64, at int) { s.features(phi[at*m:(at+len(scores))*m], x) })
}

// addRows adds the rows of x to a sum.
func addRows(sum, x []float64) {
	for row := range slices.Chunk(x, len(sum)) {
		for j, v := range row {
			sum[j] += v
		}
	}
}

// fourier returns W [m, d] and u [m]: numpy.random.normal(size=(m, d))·√(2γ) and
// 2π·numpy.random.rand(m) after numpy.random.seed(0).
func fourier(m, d int, gamma float64) (frequencies, phases []float64) {
	source := prng.NewMT19937()
	source.Seed(0)
	uniform := func() float64 {
		high, low := source.Uint32()>>5, source.Uint32()>>6
		return (float64(high)*(1<<26) + float64(low)) / (1 << 53)
	}
	frequencies = make([]float64, 0, m*d+1)
	for len(frequencies) < m*d { // Marsaglia's polar method gives two at a time
		x, y := 2*uniform()-1, 2*uniform()-1
		square := x*x + y*y
		if square >= 1 || square == 0 {
			continue
		}
		f := math.Sqrt(2*gamma) * math.Sqrt(-2*math.Log(square)/square)
		frequencies = append(frequencies, f*y, f*x)
	}
	phases = make([]float64, m)
	for i := range phases {
		phases[i] = 2 * math.Pi * uniform()
	}
	return frequencies[:m*d], phases
}

// features puts φ of the rows x, which have the length 1, into phi [n, M].
func (s *CoRP) features(phi, x []float64) {
	m := len(s.Phases)
	s.packed.times(m, s.D, x, s.Frequencies, phi)
	factor := math.Sqrt(2 / float64(m))
	for row := range slices.Chunk(phi, m) {
		for j, u := range s.Phases {
			row[j] = factor * math.Cos(row[j]+u)
		}
	}
}

// Score implements [Scorer].
func (s *CoRP) Score(ctx context.Context, dst []float64, b Batch) error {
	return eachFeatures(ctx, dst, b, s.D, true, func(scores, x []float64, _ int) {
		phi, done := scratch(len(scores) * len(s.Phases))
		defer done()
		s.features(phi, x)
		s.PCA.score(scores, phi)
	})
}

func (s *CoP) graph(g *graph) onnx.Value { return s.graphOf(g, g.unit(g.Features)) }

// graphOf adds −‖(I − PᵀP)(x − μ)‖.
func (s *CoP) graphOf(g *graph, x onnx.Value) onnx.Value {
	x = g.centred(x, s.Mean)
	axes := g.Transposed(s.Axes, len(s.Mean))
	inside := g.Op("MatMul", g.Op("MatMul", x, axes), g.Op("Transpose", axes))
	return g.Neg(g.Length(g.Op("Sub", x, inside)))
}

func (s *CoRP) graph(g *graph) onnx.Value {
	phases := g.Op("Add", g.Times(g.unit(g.Features), s.Frequencies, s.D), g.Vector(s.Phases))
	phi := g.Op("Mul", g.Op("Cos", phases), g.Number(math.Sqrt(2/float64(len(s.Phases)))))
	return s.PCA.graphOf(g, phi)
}
