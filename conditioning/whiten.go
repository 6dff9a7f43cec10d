package conditioning

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
	"gonum.org/v1/gonum/lapack/lapack64"
	"gonum.org/v1/gonum/mat"

	"mlrbfn/internal/moments"
)

// Shrinkages are what whitening chooses from.
var Shrinkages = []float64{0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10}

// mostRows is how many rows are enough to choose by.
const mostRows = 1000

// chooseShrinkage returns the s of Shrinkages under which the validation rows
// are most likely, as of Gaussians at the class means with the covariance
// Σ_s = Σ + s·t·I within the classes:
//
//	L(s) = −½ log|Σ_s| − ½ mean_i (x_i−μ_{y_i})ᵀ Σ_s⁻¹ (x_i−μ_{y_i})
//
// Accuracy could not choose: a backbone that was itself trained on the training
// images knows all of them.
func chooseShrinkage(ctx context.Context, train, validation Data, l2 bool) (float64, error) {
	if len(validation.Rows) == 0 {
		// In the order of the classes, so that each gives its share.
		rows := slices.Clone(train.Rows)
		slices.SortStableFunc(rows, func(a, b int) int { return cmp.Compare(train.Labels[a], train.Labels[b]) })
		validation = train
		validation.Rows = nil
		var rest []int
		for i, r := range rows {
			if i%10 == 9 {
				validation.Rows = append(validation.Rows, r)
			} else {
				rest = append(rest, r)
			}
		}
		train.Rows = rest
	}
	rows := train.moments(l2)
	m, err := moments.Means(ctx, rows)
	if err != nil {
		return 0, err
	}
	sigma, err := m.Within(ctx, rows)
	if err != nil {
		return 0, err
	}
	centred, n := centred(validation, l2, m)
	if n == 0 { // fewer than ten rows: too few to tell
		return slices.Max(Shrinkages), nil
	}
	best, most := 0.0, math.Inf(-1)
	for _, s := range Shrinkages {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		factor, err := shrunk(sigma, s)
		if err != nil {
			return 0, err
		}
		// yᵀ = vᵀ L⁻ᵀ, so that ‖y‖² is the Mahalanobis distance.
		var lower mat.TriDense
		factor.LTo(&lower)
		y := blas64.General{Rows: n, Cols: train.D, Stride: train.D, Data: slices.Clone(centred)}
		blas64.Trsm(blas.Right, blas.Trans, 1, lower.RawTriangular(), y)
		var sum float64
		for _, v := range y.Data {
			sum += v * v
		}
		if l := -(factor.LogDet() + sum/float64(n)) / 2; l > most {
			best, most = s, l
		}
	}
	if best == 0 {
		return 0, errors.New("no shrinkage fits the features: their spread is beyond float64")
	}
	return best, nil
}

// centred returns up to mostRows of the rows, minus the means of their classes
// [n, D], and n.
func centred(data Data, l2 bool, m *moments.Moments) ([]float64, int) {
	rows := data.moments(l2)
	step := max(1, (len(data.Rows)+mostRows-1)/mostRows)
	var out []float64
	row := make([]float64, data.D)
	n := 0
	for i := 0; i < len(data.Rows); i += step {
		at := data.Rows[i]
		c := data.Labels[at]
		if m.Counts[c] == 0 {
			continue
		}
		rows.Read(row, at)
		for j, mu := range m.Means[c] {
			row[j] -= mu
		}
		out = append(out, row...)
		n++
	}
	return out, n
}

// whiten takes W = L⁻ᵀ Q from Σ + s·t·I = L Lᵀ: all W with the same W Wᵀ give
// the same distances, and this one is cheap to find. The rotation Q begins with
// the principal axes of the whitened class means.
func (c *Conditioning) whiten(ctx context.Context, rows moments.Rows, m *moments.Moments) error {
	sigma, err := m.Within(ctx, rows)
	if err != nil {
		return err
	}
	factor, err := shrunk(sigma, c.Shrinkage)
	if err != nil {
		return err
	}
	var lower mat.TriDense
	factor.LTo(&lower)
	w := mat.NewDense(rows.D, rows.D, nil)
	for j := range rows.D {
		w.Set(j, j, 1)
	}
	blas64.Trsm(blas.Left, blas.Trans, 1, lower.RawTriangular(), w.RawMatrix()) // L⁻ᵀ

	// The class means as columns, each as much as it has rows.
	means := mat.NewDense(rows.D, rows.Classes, nil)
	for class, mean := range m.Means {
		share := math.Sqrt(float64(m.Counts[class]) / float64(m.N))
		for j, v := range mean {
			means.Set(j, class, share*(v-m.Mean[j]))
		}
	}
	blas64.Trsm(blas.Left, blas.NoTrans, 1, lower.RawTriangular(), means.RawMatrix())
	var svd mat.SVD
	if !svd.Factorize(means, mat.SVDThin) {
		return errors.New("the axes of the class means could not be found")
	}
	var axes mat.Dense
	svd.UTo(&axes)
	rotate(w, &axes)
	c.Matrix = make([]float32, rows.D*rows.D)
	copyTo(c.Matrix, w.RawMatrix().Data)
	return c.Validate()
}

// rotate multiplies w [D, D] by an orthogonal matrix that begins with the
// columns of axes [D, e], but for their signs.
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

// shrunk factorises Σ + s·(tr Σ/D)·I.
func shrunk(sigma *mat.SymDense, s float64) (*mat.Cholesky, error) {
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
	var factor mat.Cholesky
	if !factor.Factorize(ridged) {
		return nil, fmt.Errorf("the features' covariance is singular at shrinkage %g: take more", s)
	}
	return &factor, nil
}
