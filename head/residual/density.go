package head

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"mlrbfn/internal/spill"
)

// This file holds what an open head does otherwise than the paper's: a density
// before the layers, residual hidden layers on the first features alone, a last
// layer that shares out one certainty, and its start.

// Density is what an open head knows of where the training rows lie. With
// m(z) = min_c ‖z−μ_c‖² over the class means it begins the depression with
//
//	log dep₀ = −log(1 + exp(4·(m − r)/(r − r₅₀)))
//
// which is all but 0 for most training rows, log ½ at the radius r, and falls
// in proportion to −m from there on, in whatever direction.
type Density struct {
	D      int       // length of a conditioned row
	Means  []float32 // [K, D], of the classes with training rows
	Middle float64   // r₅₀, the 0.5 quantile of m on the validation rows
	Radius float64   // r, the 0.99 quantile
}

// fitDensity finds the density of conditioned rows. Without validation rows the
// training rows stand in.
func fitDensity(ctx context.Context, train, val Data, classes int) (*Density, error) {
	d, counts := train.D, make([]int, classes)
	means := make([]float64, classes*d)
	for _, r := range train.Rows {
		counts[train.Labels[r]]++
	}
	err := eachRow(ctx, train, d, func(i, from, to int) {
		r := train.Rows[i]
		mean := means[int(train.Labels[r])*d:]
		for j := from; j < to; j++ {
			mean[j] += float64(train.X[r*d+j])
		}
	})
	if err != nil {
		return nil, err
	}
	density := &Density{D: d}
	for c, n := range counts {
		if n == 0 {
			continue
		}
		for _, v := range means[c*d : (c+1)*d] {
			density.Means = append(density.Means, float32(v/float64(n)))
		}
	}
	if len(val.Rows) == 0 {
		val = train
	}
	distances, err := density.distances(ctx, val)
	if err != nil {
		return nil, err
	}
	density.Middle, density.Radius = quantile(distances, 0.5), quantile(distances, 0.99)
	return density, nil
}

func (d *Density) valid() bool {
	return d.D > 0 && len(d.Means) > 0 && len(d.Means)%d.D == 0 && !slices.ContainsFunc(d.Means, notFinite) &&
		0 <= d.Middle && d.Middle <= d.Radius && !math.IsInf(d.Radius, 1)
}

// Reach returns what log dep₀ divides by: r − r₅₀, kept from 0.
func (d *Density) Reach() float64 {
	// Rows that are all their class's mean leave no scale but rounding's.
	return max(d.Radius-d.Middle, 1e-6*(1+d.Radius))
}

// logDep returns log dep₀ for the distance m.
func (d *Density) logDep(m float64) float64 {
	t := 4 * (m - d.Radius) / d.Reach()
	return -(max(t, 0) + math.Log1p(math.Exp(-math.Abs(t))))
}

// measure is a Density with room to compute in. It serves one goroutine.
type measure struct {
	arithmetic[float64]
	d         int
	means, sq []float64
	dist, xsq []float64
}

func (d *Density) measure() *measure {
	k := len(d.Means) / d.D
	m := &measure{arithmetic: arithmeticOf[float64](), d: d.D, means: make([]float64, len(d.Means)), sq: make([]float64, k)}
	m.dist, m.xsq = make([]float64, predictBatch*k), make([]float64, predictBatch)
	convert(m.means, d.Means)
	m.SumSquares(m.sq, m.means)
	return m
}

// distances fills dst [b] with m of the rows z [b, D], b at most predictBatch.
func (m *measure) distances(dst, z []float64, b int) {
	k := len(m.sq)
	m.SumSquares(m.xsq[:b], z[:b*m.d])
	m.NT(b, k, m.d, -2, z[:b*m.d], m.means, 0, m.dist)
	m.SquaredDistances(m.dist[:b*k], m.xsq[:b], m.sq)
	for i := range b {
		dst[i] = slices.Min(m.dist[i*k : (i+1)*k])
	}
}

// eachRow calls do for the columns from … to−1 of each row data.Rows[i] in turn,
// the first e columns being shared out over all cores: sums over rows do not
// depend on how many there are.
func eachRow(ctx context.Context, data Data, e int, do func(i, from, to int)) error {
	const columns = 64
	return share(ctx, e, columns, func() func(from, to int) error {
		return func(from, to int) error {
			for i := range data.Rows {
				if i%1024 == 0 && ctx.Err() != nil {
					return ctx.Err()
				}
				do(i, from, to)
			}
			return nil
		}
	})
}

// measureAll calls what worker makes, once for each core, with m of blocks of the
// rows of data, conditioned, the first being data.Rows[at].
func (d *Density) measureAll(ctx context.Context, data Data, worker func() func(at int, m []float64) error) error {
	return share(ctx, len(data.Rows), predictBatch, func() func(from, to int) error {
		do, m, distances := worker(), d.measure(), make([]float64, predictBatch)
		z := make([]float64, predictBatch*data.D)
		return func(from, to int) error {
			for i, r := range data.Rows[from:to] {
				convert(z[i*data.D:], data.X[r*data.D:(r+1)*data.D])
			}
			m.distances(distances, z, to-from)
			return do(from, distances[:to-from])
		}
	})
}

// distances returns m of the rows of data, conditioned.
func (d *Density) distances(ctx context.Context, data Data) ([]float64, error) {
	out := make([]float64, len(data.Rows))
	err := d.measureAll(ctx, data, func() func(at int, m []float64) error {
		return func(at int, m []float64) error {
			copy(out[at:], m)
			return nil
		}
	})
	return out, err
}

// reduce turns conditioned rows into what an open head's layers read: the first
// e features, and log dep₀ [n, e+1], kept in space.
func (d *Density) reduce(ctx context.Context, data Data, e int, space *spill.Space) (Data, error) {
	n := len(data.Rows)
	out := Data{D: e + 1, Labels: make([]int64, n), Rows: make([]int, n)}
	for i, r := range data.Rows {
		out.Labels[i], out.Rows[i] = data.Labels[r], i
	}
	var err error
	if out.Pages, err = space.Matrix(n, out.D); err != nil {
		return out, err
	}
	err = d.measureAll(ctx, data, func() func(at int, m []float64) error {
		rows := make([]float32, 0, predictBatch*out.D)
		return func(at int, m []float64) error {
			rows = rows[:0]
			for i, r := range data.Rows[at : at+len(m)] {
				rows = append(append(rows, data.X[r*data.D:r*data.D+e]...), float32(d.logDep(m[i])))
			}
			return out.Pages.Write(at, rows)
		}
	})
	if err == nil {
		err = out.Pages.Done()
	}
	if err != nil {
		return out, errors.Join(err, out.Pages.Close())
	}
	out.X = out.Pages.X
	return out, nil
}

// open is the room of an open head beyond that of its layers.
type open[T real] struct {
	rows   []T // [B, E], the first features
	dep    []T // [B], log dep₀
	logits []T // [C, B], l_c
	norm   []T // [B], log Σ_c e^{l_c}
	share  []T // [C, B], softmax(l)
	l      []T // [B, C], the transpose of logits
	zero   []T // [B]
}

func openOf[T real](e, classes, batch int) *open[T] {
	vector := func(n int) []T { return make([]T, n) }
	return &open[T]{
		rows: vector(batch * e), dep: vector(batch), norm: vector(batch), zero: vector(batch),
		logits: vector(classes * batch), share: vector(classes * batch), l: vector(batch * classes),
	}
}

// forwardOpen is forward for an open head. It reads rows x [b, E+1] as reduce
// makes them. The hidden layers are the paper's, but add to what they read; the
// last is
//
//	l_c = −β⁺_c ‖u−c_c‖²,  log φ_c = l_c − log Σ_j e^{l_j} + min(log dep + log rec, 0)
//
// where the cap is log dep₀ itself if there are no hidden layers.
func (net *network[T]) forwardOpen(x []T, b int) {
	o, last := net.open, net.last()
	e := last.d
	for i := range b {
		row := x[i*(e+1) : (i+1)*(e+1)]
		copy(o.rows[i*e:], row[:e])
		o.dep[i] = row[e]
	}
	u, rows, logDep := net.in[:e*b], o.rows, o.dep
	net.Transpose(u, rows, b, e)
	hidden := net.layers[:len(net.layers)-1]
	for _, l := range hidden {
		net.forwardLayer(l, u, rows, logDep, b)
		u, rows, logDep = l.out[:e*b], nil, l.logDep
	}
	last.in, last.rowsIn = u, rows
	net.distances(last, b)
	if len(hidden) > 0 {
		net.caps(last, logDep, b)
	} else {
		copy(last.limit[:b], logDep)
	}
	size := last.n * b
	net.LogPhi(o.logits[:size], last.dist[:size], last.width, o.zero[:b])
	net.Softmax(o.share[:size], o.norm[:b], o.logits[:size])
	for i, norm := range o.norm[:b] {
		last.limit[i] -= norm
	}
	net.LogPhi(last.weights[:size], last.dist[:size], last.width, last.limit[:b])
}

// outputLogits returns the l [b, C] of the last forward pass. It is the
// network's own until the next call.
func (net *network[T]) outputLogits(b int) []T {
	return net.perRow(net.open.l, net.open.logits, b)
}

// backwardOpen is backward for an open head.
func (net *network[T]) backwardOpen(b int) {
	o, last := net.open, net.last()
	hidden := net.layers[:len(net.layers)-1]
	gIn, gCap := net.gInput, o.norm[:b] // beside −log Σ e^l there is the cap in log φ
	if len(hidden) > 0 {
		l := hidden[len(hidden)-1]
		gIn, gCap = l.gOut, l.gLogDep[:b]
	}
	net.SoftmaxBackward(last.gWeights[:last.n*b], gCap, o.share)
	net.Multiply(gCap, last.passed)
	net.backwardLayer(last, gIn, nil, b)
	for at := len(hidden) - 1; at >= 0; at-- {
		l := hidden[at]
		gIn, gLogDep := net.gInput, []T(nil)
		if at > 0 {
			gIn, gLogDep = hidden[at-1].gOut, hidden[at-1].gLogDep
		}
		net.backwardLayer(l, gIn, gLogDep, b)
		if gIn != nil { // past the layer
			net.Add(gIn[:l.d*b], l.gOut)
		}
	}
}

const (
	openRows   = 2000 // rows that the hidden layers start from
	openPasses = 20   // of k-means over them
	openReach  = 0.25 // β⁺ of a hidden layer times the distance d of initialBeta
	openMost   = 4    // β of a hidden layer: copies of few rows would make it so narrow that a step leads out of it
	openNarrow = 1e4  // β of a class without training rows: too narrow for any row
)

// startOpen initialises an open head as the closed form that it departs from:
// Gaussians at the class means with one width. The hidden layers' projections
// are 0, so that these change nothing yet. Their centroids come from k-means on
// one half of up to 2,000 rows and their widths from the other. The last
// layer's width is the one of a grid under which softmax(l) has the least
// cross-entropy on val, where there are rows: the training rows' distances are
// too small. A class without training rows gets no row. The data are as reduce
// makes them.
func (net *network[T]) startOpen(ctx context.Context, train, val Data, classes int, rng draws) error {
	last := net.last()
	e := last.d
	rows := sample(train.Rows, openRows, rng)
	u, half := make([]T, len(rows)*e), len(rows)/2
	for i, r := range rows {
		convert(u[i*e:], train.X[r*train.D:r*train.D+e])
	}
	for _, l := range net.layers[:len(net.layers)-1] {
		if err := plusPlus(ctx, l.centroids, e, u[:half*e], net.k, rng); err != nil {
			return err
		}
		if err := webScale(ctx, l.centroids, e, u[:half*e], net.k, openPasses); err != nil {
			return err
		}
		beta, err := initialBeta(ctx, l.centroids, e, u[half*e:], net.k, openReach)
		if err != nil {
			return err
		}
		l.setBeta(min(beta, openMost))
		clear(l.projections)
	}
	counts, part := make([]T, classes), make([]T, len(train.Rows))
	for i, r := range train.Rows {
		counts[train.Labels[r]]++
		part[i] = 1 / counts[train.Labels[r]]
	}
	err := eachRow(ctx, train, e, func(i, from, to int) {
		r := train.Rows[i]
		mean := last.centroids[int(train.Labels[r])*e:]
		for j, v := range train.X[r*train.D+from : r*train.D+to] {
			mean[from+j] += (T(v) - mean[from+j]) * part[i]
		}
	})
	if err != nil {
		return err
	}
	unseen := func(row int) bool { return counts[val.Labels[row]] == 0 }
	if val.Rows = slices.DeleteFunc(slices.Clone(val.Rows), unseen); len(val.Rows) == 0 {
		val = train
		val.Rows = rows
	}
	width, err := firstWidth(ctx, last.centroids, counts, val)
	if err != nil {
		return err
	}
	last.setBeta(math.Log(math.Expm1(width)))
	for c, n := range counts {
		if n == 0 {
			last.beta[c] = openNarrow
		}
	}
	net.refresh()
	return nil
}

// firstWidth returns the width of a grid from 0.0005 to 0.125 with the least
// cross-entropy of softmax(−width·d), over the classes that have counts, on up
// to mostRows rows of such classes. Without a bound, rows that are told apart
// without an error (the images that a backbone was trained on) would make it
// infinite.
func firstWidth[T real](ctx context.Context, centroids, counts []T, data Data) (float64, error) {
	data.Rows = spread(data.Rows)
	rows, classes := data.Rows, len(counts)
	e := len(centroids) / classes
	dist, labels, sq := make([]float64, len(rows)*classes), make([]int, len(rows)), make([]T, classes)
	for i, r := range rows {
		labels[i] = int(data.Labels[r])
	}
	vectors := arithmeticOf[T]()
	vectors.SumSquares(sq, centroids)
	err := share(ctx, len(rows), predictBatch, func() func(from, to int) error {
		kernel := arithmeticOf[T]()
		x, xsq, d := make([]T, predictBatch*e), make([]T, predictBatch), make([]T, predictBatch*classes)
		return func(from, to int) error {
			b := to - from
			for i, r := range rows[from:to] {
				convert(x[i*e:(i+1)*e], data.X[r*data.D:r*data.D+e])
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
	err = share(ctx, steps, 1, func() func(from, to int) error {
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
		return 0, fmt.Errorf("%w: the distances of the rows are no numbers", ErrDiverged)
	}
	return best, nil
}

// mostRows is how many rows are enough for one width, or two means and
// deviations.
const mostRows = 10000

// spread returns up to mostRows of the rows, evenly spaced: rows often come
// class by class.
func spread(rows []int) []int {
	if len(rows) <= mostRows {
		return rows
	}
	out := make([]int, mostRows)
	for i := range out {
		out[i] = rows[i*len(rows)/mostRows]
	}
	return out
}

// sample draws up to n of the rows, without repetition.
func sample(rows []int, n int, rng draws) []int {
	rows = slices.Clone(rows)
	n = min(n, len(rows))
	for i := range n {
		j := i + int(rng.Float64()*float64(len(rows)-i))
		rows[i], rows[j] = rows[j], rows[i]
	}
	return rows[:n]
}
