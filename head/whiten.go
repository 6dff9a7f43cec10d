package head

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/lapack/lapack64"
	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
)

// Shrinkages are the values that whitening chooses from.
var Shrinkages = []float64{0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10}

// mostTrain and mostRows are the largest numbers of rows used for the choice.
const (
	mostTrain = 10000
	mostRows  = 1000
)

// classGaussians are Gaussians at the class means with the covariance
// Σ_s = Σ + s·t·I within the classes, and validation rows to try them on.
type classGaussians struct {
	d      int
	means  []float64 // [C, D]
	sigma  *mat.SymDense
	x      []float64 // [n, D], validation rows
	labels []int     // [n]
}

// gaussians fits classGaussians to up to mostTrain of the training rows. If there are no
// validation rows, every tenth training row replaces them.
func gaussians(ctx context.Context, train, validation features.Rows, classes int, l2 bool) (*classGaussians, error) {
	if len(validation.Index) == 0 {
		// In the order of the classes, so that all are represented.
		rows := slices.Clone(train.Index)
		slices.SortStableFunc(rows, func(a, b int) int { return cmp.Compare(train.Labels[a], train.Labels[b]) })
		validation = train
		validation.Index = nil
		var rest []int
		for i, r := range rows {
			if i%10 == 9 {
				validation.Index = append(validation.Index, r)
			} else {
				rest = append(rest, r)
			}
		}
		train.Index = rest
	}
	train.Index = features.Every(train.Index, mostTrain)
	rows := momentRows(train, classes, l2)
	m, err := linalg.Means(ctx, rows)
	if err != nil {
		return nil, err
	}
	g := &classGaussians{d: train.D}
	if g.sigma, err = m.Within(ctx, rows); err != nil {
		return nil, err
	}
	for c, mean := range m.Means {
		if m.Counts[c] == 0 {
			mean = slices.Repeat([]float64{math.Inf(1)}, train.D) // never the nearest
		}
		g.means = append(g.means, mean...)
	}
	rows = momentRows(validation, classes, l2)
	row := make([]float64, validation.D)
	for _, at := range features.Every(validation.Index, mostRows) {
		if c := int(validation.Labels[at]); m.Counts[c] > 0 {
			rows.Read(row, at)
			g.x, g.labels = append(g.x, row...), append(g.labels, c)
		}
	}
	return g, nil
}

// whitened returns L⁻¹x of rows x [n, D], for Σ_s = L Lᵀ.
func whitened(lower *mat.TriDense, x []float64) []float64 {
	d, _ := lower.Dims()
	y := blas64.General{Rows: len(x) / d, Cols: d, Stride: d, Data: x}
	if y.Rows > 0 {
		blas64.Trsm(blas.Right, blas.Trans, 1, lower.RawTriangular(), y)
	}
	return y.Data
}

// shrinkage returns the s of Shrinkages with the largest likelihood of the
// validation rows:
//
//	L(s) = −½ log|Σ_s| − ½ mean_i (x_i−μ_{y_i})ᵀ Σ_s⁻¹ (x_i−μ_{y_i})
//
// Accuracy cannot be used: a backbone that was trained on the same images
// classifies all of them correctly.
func (g *classGaussians) shrinkage(ctx context.Context) (float64, error) {
	n := len(g.labels)
	if n == 0 { // fewer than ten rows: too few to choose by
		return slices.Max(Shrinkages), nil
	}
	centred := slices.Clone(g.x)
	for i, c := range g.labels {
		for j := range g.d {
			centred[i*g.d+j] -= g.means[c*g.d+j]
		}
	}
	best, most := 0.0, math.Inf(-1)
	for _, s := range Shrinkages {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		lower, err := shrunk(g.sigma, s)
		if err != nil {
			return 0, err
		}
		var sum, logDet float64
		for _, v := range whitened(lower, slices.Clone(centred)) {
			sum += v * v
		}
		for j := range g.d {
			logDet += 2 * math.Log(lower.At(j, j))
		}
		if l := -(logDet + sum/float64(n)) / 2; l > most {
			best, most = s, l
		}
	}
	if best == 0 {
		return 0, errors.New("no shrinkage fits the features: their spread is beyond float64")
	}
	return best, nil
}

// wrong counts the validation rows whose nearest mean is that of another class.
func (g *classGaussians) wrong(s float64) (rows int, err error) {
	lower, err := shrunk(g.sigma, s)
	if err != nil {
		return 0, err
	}
	means, x := whitened(lower, slices.Clone(g.means)), whitened(lower, slices.Clone(g.x))
	for i, own := range g.labels {
		best, least := -1, math.Inf(1)
		for c := range len(means) / g.d {
			var sum float64
			for j, v := range x[i*g.d : (i+1)*g.d] {
				sum += (v - means[c*g.d+j]) * (v - means[c*g.d+j])
			}
			if sum < least {
				best, least = c, sum
			}
		}
		if best != own {
			rows++
		}
	}
	return rows, nil
}

// fewFeatures is the number of features below which Auto does not use L2. L2
// removes one dimension, the length, which may separate OOD images.
const fewFeatures = 32

// centred tells whether the mean of rows is zero but for a hundredth of their mean square,
// as no backbone's features are by themselves. Up to mostTrain rows are looked at.
func centred(data features.Rows) bool {
	mean, square := make([]float64, data.D), 0.0
	rows := features.Every(data.Index, mostTrain)
	for _, r := range rows {
		for j, v := range data.Row(r) {
			mean[j] += float64(v)
			square += float64(v) * float64(v)
		}
	}
	n := float64(len(rows))
	return floats.Dot(mean, mean)/n < 0.01*square
}

// choose returns the options that Auto means. rows returns the rows to try
// with and without L2, and whether they must still be divided by their lengths.
func choose(ctx context.Context, rows func(l2 bool) (train, validation features.Rows, divide bool), classes int, o ConditioningOptions) (ConditioningOptions, error) {
	train, _, divide := rows(true)
	few := divide && train.D < fewFeatures
	var s [2]float64
	var wrong [2]int
	for i, l2 := range []bool{true, false} {
		if few && l2 {
			continue
		}
		train, validation, divide := rows(l2)
		g, err := gaussians(ctx, train, validation, classes, divide)
		if err != nil {
			return o, err
		}
		if !(mat.Trace(g.sigma) > 0) {
			o.Kind, o.L2 = None, !few
			return o, nil
		}
		if few {
			o.Kind, o.L2 = Whiten, false
			return o, nil
		}
		if s[i] = o.Shrinkage; s[i] == 0 {
			if s[i], err = g.shrinkage(ctx); err != nil {
				return o, err
			}
		}
		if wrong[i], err = g.wrong(s[i]); err != nil {
			return o, err
		}
	}
	o.Kind, o.L2, o.Shrinkage = Whiten, true, s[0]
	if cost := float64(wrong[0] - wrong[1]); cost > 2*math.Sqrt(float64(wrong[0]+wrong[1])) {
		o.L2, o.Shrinkage = false, s[1]
	}
	return o, nil
}

// whiten computes W = L⁻ᵀ Q from Σ + s·t·I = L Lᵀ. All W with the same W Wᵀ give
// the same distances, and this one is cheap. The rotation Q begins with the
// principal axes of the whitened class means.
func (c *Conditioning) whiten(ctx context.Context, rows linalg.Rows, m *linalg.Moments) error {
	sigma, err := m.Within(ctx, rows)
	if err != nil {
		return err
	}
	lower, err := shrunk(sigma, c.Shrinkage)
	if err != nil {
		return err
	}
	w := mat.NewDense(rows.D, rows.D, nil)
	for j := range rows.D {
		w.Set(j, j, 1)
	}
	const block = 160 // columns of L⁻ᵀ at a time, which are zero below
	for from := 0; from < rows.D; from += block {
		to := min(from+block, rows.D)
		reached := lower.SliceTri(0, to).(*mat.TriDense)
		blas64.Trsm(blas.Left, blas.Trans, 1, reached.RawTriangular(), w.Slice(0, to, from, to).(*mat.Dense).RawMatrix())
	}

	// The class means as columns, weighted by their numbers of rows.
	means := mat.NewDense(rows.D, rows.Classes, nil)
	for class, mean := range m.Means {
		share := math.Sqrt(float64(m.Counts[class]) / float64(m.N))
		for j, v := range mean {
			means.Set(j, class, share*(v-m.Mean[j]))
		}
	}
	blas64.Trsm(blas.Left, blas.NoTrans, 1, lower.RawTriangular(), means.RawMatrix())
	axes, found := linalg.Axes(means)
	if !found {
		return errors.New("the axes of the class means could not be found")
	}
	rotate(w, axes)
	c.Matrix = make([]float32, rows.D*rows.D)
	kernels.Convert(c.Matrix, w.RawMatrix().Data)
	return c.Validate()
}

// rotate multiplies w [D, D] by an orthogonal matrix that begins with the columns
// of axes [D, e], up to their signs.
func rotate(w, axes *mat.Dense) {
	a := axes.RawMatrix()
	tau := make([]float64, min(a.Rows, a.Cols))
	work := make([]float64, 1)
	lapack64.Geqrf(a, tau, work, -1)
	work = make([]float64, int(work[0]))
	lapack64.Geqrf(a, tau, work, len(work))
	lapack64.Ormqr(blas.Right, blas.NoTrans, a, tau, w.RawMatrix(), work[:1], -1)
	work = make([]float64, int(work[0]))
	lapack64.Ormqr(blas.Right, blas.NoTrans, a, tau, w.RawMatrix(), work, len(work))
}

// Turn rotates the map, so that the K linear functions w [K, D] of the rows that it
// reads, divided by their lengths with L2, depend on its first K coordinates alone.
// The coordinates that were the first K before come next, as far as they differ.
// Distances remain. It must come before the first use of the map. It returns the functions' weights [K, K] of these coordinates:
// a function is w·x = a·z + w·μ. The map must be square; K is at most D.
func (c *Conditioning) Turn(w []float64) (a []float64, err error) {
	d := c.In()
	k := len(w) / d
	if len(c.Matrix) != d*d || k > d {
		return nil, fmt.Errorf("a map [%d, %d] cannot be turned to %d functions", d, c.Out(), k)
	}
	kernels.UseBLAS()
	m := mat.NewDense(d, d, nil)
	kernels.Convert(m.RawMatrix().Data, c.Matrix)
	// The inverse of m, times wᵀ, has the weights of z as it is. [mat.LU] would also estimate
	// the condition number, which takes as long as the factors.
	factors, pivots := mat.DenseCopyOf(m), make([]int, d)
	if !lapack64.Getrf(factors.RawMatrix(), pivots) {
		return nil, errors.New("turn the conditioning: its map is singular")
	}
	inverse := mat.DenseCopyOf(mat.NewDense(k, d, w).T())
	lapack64.Getrs(blas.NoTrans, factors.RawMatrix(), inverse.RawMatrix(), pivots)
	before := min(k, d-k)
	axes := mat.NewDense(d, k+before, nil)
	axes.Slice(0, d, 0, k).(*mat.Dense).Copy(inverse)
	for j := range before {
		axes.Set(j, k+j, 1)
	}
	rotate(m, axes) // leaves R of axes = QR in their upper triangle
	for i := range k {
		for j := range k {
			if j <= i {
				a = append(a, axes.At(j, i))
			} else {
				a = append(a, 0)
			}
		}
	}
	kernels.Convert(c.Matrix, m.RawMatrix().Data)
	return a, c.Validate()
}

// shrunk returns L of Σ + s·(tr Σ/D)·I = L Lᵀ. [mat.Cholesky] would also estimate the
// condition number, which takes several times as long as L.
func shrunk(sigma *mat.SymDense, s float64) (*mat.TriDense, error) {
	kernels.UseBLAS()
	d := sigma.SymmetricDim()
	mean := mat.Trace(sigma) / float64(d)
	if !(mean > 0) {
		return nil, errors.New("the features of each class are all the same: there is nothing to whiten")
	}
	ridged := mat.NewSymDense(d, nil)
	ridged.CopySym(sigma)
	for j := range d {
		ridged.SetSym(j, j, sigma.At(j, j)+s*mean)
	}
	upper, ok := lapack64.Potrf(ridged.RawSymmetric())
	if !ok {
		return nil, fmt.Errorf("the features' covariance is singular at shrinkage %g: choose a larger one", s)
	}
	lower := mat.NewTriDense(d, mat.Lower, nil)
	lower.Copy(mat.NewTriDense(d, mat.Upper, upper.Data).TTri())
	return lower, nil
}
