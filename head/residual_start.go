package head

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/mat"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// residualMostRows is the largest number of rows that the width, or the two means and
// standard deviations, are fitted on.
const residualMostRows = 10000

const (
	startRows   = 2000 // rows that the hidden layers start from
	startPasses = 20   // of k-means over them
	startReach  = 0.25 // β⁺ of a hidden layer times the distance d of rbf.InitialBeta
	startMost   = 4    // the largest β of a hidden layer: copies of few rows would make it too narrow
	mostMoved   = 3    // see moveTo
	narrow      = 1e4  // β of a class without training rows: too narrow for any row
)

// start initialises the network with the closed form: Gaussians at the class
// means with one width. The projections of the hidden layers are 0, so these have
// no effect yet. Their centroids come from k-means on one half of up to 2,000 rows
// and their widths from the other. The last layer's width is the one of a grid for
// which softmax(l) has the least cross-entropy on val, if it has rows: the
// training rows are too near to the means. A class without training rows gets a
// centroid too narrow for any row. The data are rows of reduce.
//
// With balance the width of a class of n rows is multiplied by n/(n + 1). Its mean
// is as uncertain as a row of it divided by n, which adds to the distances of its own
// rows: without the factor a class of few rows loses to the large ones.
//
// From, unless nil, is the classifier to begin as, in place of the one with the
// class means.
func (net *residualNetwork[T]) start(ctx context.Context, train, val features.Rows, classes int, balance bool, from *Linear, rng Random) error {
	last := net.Last()
	e := last.D
	rows := features.Sample(train.Index, startRows, rng.Float64)
	u, half := make([]T, len(rows)*e), len(rows)/2
	for i, r := range rows {
		kernels.Convert(u[i*e:], train.Row(r)[:e])
	}
	for _, l := range net.Hidden() {
		if err := plusPlus(ctx, l.Centroids, e, u[:half*e], net.K, rng); err != nil {
			return err
		}
		if err := webScale(ctx, l.Centroids, e, u[:half*e], net.K, startPasses); err != nil {
			return err
		}
		beta, err := initialBeta(ctx, l.Centroids, e, u[half*e:], net.K, startReach)
		if err != nil {
			return err
		}
		l.SetBeta(min(beta, startMost))
		clear(l.Projections)
	}
	counts, part := make([]T, classes), make([]T, len(train.Index))
	for i, r := range train.Index {
		counts[train.Labels[r]]++
		part[i] = 1 / counts[train.Labels[r]]
	}
	err := eachRow(ctx, train, e, func(i, from, to int) {
		r := train.Index[i]
		mean := last.Centroids[int(train.Labels[r])*e:]
		for j, v := range train.Row(r)[from:to] {
			mean[from+j] += (T(v) - mean[from+j]) * part[i]
		}
	})
	if err != nil {
		return err
	}
	if from != nil {
		moveTo(from, last.Centroids, counts)
	}
	unseen := func(row int) bool { return counts[val.Labels[row]] == 0 }
	if val.Index = slices.DeleteFunc(slices.Clone(val.Index), unseen); len(val.Index) == 0 {
		val = train
		val.Index = rows
	}
	width, err := firstWidth(ctx, last.Centroids, counts, val)
	if err != nil {
		return err
	}
	last.SetBeta(math.Log(math.Expm1(width)))
	for c, n := range counts {
		switch {
		case n == 0:
			last.Beta[c] = narrow
		case balance:
			last.Beta[c] = T(math.Log(math.Expm1(width * float64(n/(n+1)))))
		}
	}
	net.Refresh()
	return nil
}

// moveTo moves centroids [C, e], which are the class means, to where a layer with
// one width b for all is the classifier: −b‖u − w_c‖² = weights_c·u + bias_c, up to
// what is the same for all classes. With a_c the weights minus their mean,
//
//	w_c = s·a_c + v,  b = 1/(2s),  a_c·v = −bias_c − s/2·‖a_c‖² + constant
//
// where the least squares between s·a_c and the class means choose s, so that b means
// what it means with class means, and v is the shortest solution. C − 1 independent
// weights always have one. A class without rows is left out. Nothing is moved if the
// weights do not point to the class means at all, or if v is more than mostMoved
// times the longest s·a_c: classes that cannot be told apart differ in their biases
// only, which far centroids would have to express.
func moveTo[T kernels.Real](l *Linear, centroids, counts []T) {
	e, k := len(centroids)/len(counts), len(l.Weights)/len(l.Bias)
	var classes []int
	for c, n := range counts {
		if n > 0 {
			classes = append(classes, c)
		}
	}
	n := len(classes)
	if n < 2 || k == 0 {
		return
	}
	a, means := mat.NewDense(n, k, nil), mat.NewDense(n, k, nil)
	for i, c := range classes {
		a.SetRow(i, l.Weights[c*k:(c+1)*k])
		for j := range k {
			means.Set(i, j, float64(centroids[c*e+j]))
		}
	}
	for j := range k {
		column := mat.Col(nil, j, a)
		floats.AddConst(-floats.Sum(column)/float64(n), column)
		a.SetCol(j, column)
	}
	s := mat.Dot(flat(a), flat(means)) / mat.Dot(flat(a), flat(a)) // a is centred
	if !(s > 0) || math.IsInf(s, 1) {
		return
	}
	right := make([]float64, n)
	for i, c := range classes {
		row := a.RawRowView(i)
		right[i] = -l.Bias[c] - s/2*floats.Dot(row, row)
	}
	floats.AddConst(-floats.Sum(right)/float64(n), right)
	v, found := linalg.Shortest(a, right, 1e-9)
	if !found {
		return
	}
	longest := 0.
	for i := range n {
		longest = max(longest, s*floats.Norm(a.RawRowView(i), 2))
	}
	if !(floats.Norm(v, 2) <= mostMoved*longest) {
		return
	}
	for i, c := range classes {
		to := centroids[c*e : (c+1)*e]
		clear(to)
		for j, w := range a.RawRowView(i) {
			to[j] = T(s*w + v[j])
		}
	}
}

func flat(m *mat.Dense) mat.Vector {
	raw := m.RawMatrix().Data
	return mat.NewVecDense(len(raw), raw)
}

// firstWidth returns the width of a grid from 0.0005 to 0.125 with the least
// cross-entropy of softmax(−width·d), over the classes that have counts, on up
// to mostRows rows of such classes. The bound matters: rows that are classified
// without an error (the images that a backbone was trained on) would make the
// width infinite.
func firstWidth[T kernels.Real](ctx context.Context, centroids, counts []T, data features.Rows) (float64, error) {
	data.Index = features.Spread(data.Index, residualMostRows)
	rows, classes := data.Index, len(counts)
	e := len(centroids) / classes
	dist, labels, sq := make([]float64, len(rows)*classes), make([]int, len(rows)), make([]T, classes)
	for i, r := range rows {
		labels[i] = int(data.Labels[r])
	}
	vectors := newArithmetic[T]()
	vectors.SumSquares(sq, centroids)
	err := parallel.Ranges(ctx, len(rows), BatchRows, func() func(from, to int) error {
		kernel := newArithmetic[T]()
		x, xsq, d := make([]T, BatchRows*e), make([]T, BatchRows), make([]T, BatchRows*classes)
		return func(from, to int) error {
			b := to - from
			for i, r := range rows[from:to] {
				kernels.Convert(x[i*e:(i+1)*e], data.Row(r)[:e])
			}
			kernel.SumSquares(xsq[:b], x[:b*e])
			kernel.NT(b, classes, e, -2, x[:b*e], centroids, 0, d)
			kernel.SquaredDistances(d[:b*classes], xsq[:b], sq)
			for i, v := range d[:b*classes] {
				if dist[from*classes+i] = float64(v); counts[i%classes] == 0 {
					dist[from*classes+i] = math.Inf(1)
				}
			}
			return nil
		}
	})
	if err != nil {
		return 0, err
	}
	const steps = 61
	var widths, losses [steps]float64
	err = parallel.Ranges(ctx, steps, 1, func() func(from, to int) error {
		l := make([]float64, classes)
		return func(step, _ int) error {
			widths[step] = 0.0005 * math.Pow(250, float64(step)/(steps-1))
			for i := range labels {
				for c := range l {
					l[c] = -widths[step] * dist[i*classes+c]
				}
				losses[step] += crossEntropy(l, labels[i:i+1], classes, nil)
			}
			return ctx.Err()
		}
	})
	if err != nil {
		return 0, err
	}
	best, least := 0.0, math.Inf(1)
	for step, loss := range losses {
		if loss < least {
			best, least = widths[step], loss
		}
	}
	if best == 0 {
		return 0, fmt.Errorf("%w: the distances of the rows are not finite", ErrDiverged)
	}
	return best, nil
}

// ClosedForm returns the network with one layer before its first training step:
// Gaussians at the class means, with one width, and the score. It needs no training
// and its scores are nearly those of a trained network, so it shows how a network
// trained on other rows would score. The rows are conditioned. from is
// Config.Start.
func ClosedForm(ctx context.Context, train, val features.Rows, classes int, from *Linear) (_ *ResidualNetwork, err error) {
	made, err := Residual{Layers: 1, Start: from}.Prepare(ctx, train, val, classes, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, made.Close()) }()
	p := made.(*residualPrepared)
	n := residualNewNetwork(p.cfg, p.density.D, classes)
	n.Density = p.density
	t := &residualTrainer{residualNetwork: residualCompute[float32](n, BatchRows), model: n, val: p.val, from: from}
	if err := t.Start(ctx, nil, BatchRows, p.train, rand.New(rand.NewPCG(0, 0))); err != nil {
		return nil, err
	}
	n.Score, err = n.fitScore(ctx, p.given)
	return n, err
}
