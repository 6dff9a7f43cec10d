// Package rbf computes layers of radial basis functions, forwards and
// backwards. How layers make a network is for the networks to say.
package rbf

import (
	"math"

	"mlrbfn/head"
	"mlrbfn/head/internal/numeric"
)

// Layer is one RBF layer: its parameters, their gradients and, for up to a
// batch of B rows, everything that the backward pass needs again. A hidden
// layer has o > 0 projections per centroid, or gives its n_c as they are (o = n
// and no projections); the last layer has o = 0. The slices are taken once, so
// that a step allocates nothing.
//
// What the batch fills lies with a column for each of its rows, [n, b], so that
// the kernels' vectors run along the batch, full whatever n is. The first layer
// reads the batch as it comes, row by row, and so do norms that are no products
// with the input of every layer: rowsIn and rowsOut are those transposes.
type Layer[T numeric.Real] struct {
	D, N, O int

	Centroids, GCentroids     []T // [n, d]
	Beta, GBeta               []T // [n], before softplus
	Projections, GProjections []T // [n, o]; empty without
	InitBeta                  float64

	// Per centroid, from the parameters as they are in this step.
	Width    []T // β⁺ = softplus(β)
	slope    []T // ∂β⁺/∂β = sigmoid(β)
	logRatio []T // log(β⁺/β⁺_init); 0 without the ratio and in the last layer
	inverse  []T // ∂ logRatio/∂β⁺ = 1/β⁺, or 0 like it
	sq       []T // ‖c‖², for k = 2

	// Per row of the batch.
	In, RowsIn     []T // [d, B] and [B, d], the layer's input (not owned); for k = 2 one may be nil, else in
	xsq            []T // [B], ‖x‖², for k = 2
	Dist           []T // [n, B], ‖x−c‖_k^k
	Weights        []T // [n, B], n_c; in the last layer log φ_c
	GWeights       []T // [n, B], gradient by n_c, in the last layer by log φ_c, in whose place it is; then that by the distances
	Out, rowsOut   []T // [o, B] and [B, o]; without projections out is the weights
	GOut           []T // [o, B]; likewise
	gLimit         []T // [B], gradient by limit
	sumByX, sumByC []T // [B] and [n], Σ_c and Σ_b of the gradient by the distances, for k = 2

	Limit   []T     // [B], cap = min(log dep + log rec, 0) of the layer before
	LogDep  []T     // [B], log dep after this layer
	GLogDep []T     // [B], gradient by it
	Passed  []T     // [B], ∂ cap / ∂ log dep: 1 below the cap, 0 above
	largest []int32 // [B], the centroid that gave the depression
}

// newLayer makes a layer with room for batches of up to b rows.
func newLayer[T numeric.Real](d, n, o, b int, projects bool) *Layer[T] {
	vector := func(n int) []T { return make([]T, n) }
	l := &Layer[T]{
		D: d, N: n, O: o,
		Centroids: vector(n * d), GCentroids: vector(n * d),
		Beta: vector(n), GBeta: vector(n),
		Width: vector(n), slope: vector(n), logRatio: vector(n), inverse: vector(n), sq: vector(n), sumByC: vector(n),
		xsq: vector(b), Dist: vector(n * b), Weights: vector(n * b),
		rowsOut: vector(b * o), gLimit: vector(b), sumByX: vector(b),
		Limit: vector(b), LogDep: vector(b), GLogDep: vector(b), Passed: vector(b), largest: make([]int32, b),
	}
	if l.last() {
		l.GWeights = l.Weights // nothing reads log φ after the loss
	} else {
		l.GWeights = vector(n * b)
	}
	if projects {
		l.Projections, l.GProjections = vector(n*o), vector(n*o)
		l.Out, l.GOut = vector(o*b), vector(o*b)
	} else {
		l.Out, l.GOut = l.Weights, l.GWeights
	}
	return l
}

func (l *Layer[T]) last() bool { return l.O == 0 }

func (l *Layer[T]) projects() bool { return len(l.Projections) > 0 }

// Network is layers with room to compute in. It serves one goroutine.
type Network[T numeric.Real] struct {
	numeric.Arithmetic[T]
	Layers  []*Layer[T]
	K       Norm
	SumLoss bool // gradients of the sum over the entries, not of their mean
	In      []T  // [d, B], room for the transpose of the rows
	GInput  []T  // [d, B], gradient by the input; nil where nobody asks for it

	depress bool
	ratio   bool // of β⁺ in the hidden layers
	logRec  T
	phi     []T // [B, C], the transpose of log φ
	gRowsIn []T // [B, d], gradient by a layer's input, for k = 1
}

// New copies layers, which compute as the settings say, into a network with room
// for batches of up to batch rows.
func New[T numeric.Real](s head.Settings, layers []head.Layer, batch int) *Network[T] {
	net := &Network[T]{
		Arithmetic: numeric.New[T](), K: Norm(s.Norm), SumLoss: s.SumLoss,
		depress: !s.NoDepression, ratio: !s.NoDepression && !s.NoRatio,
		logRec: T(math.Log(s.Recovery)),
	}
	for _, from := range layers {
		net.Layers = append(net.Layers, newLayer[T](from.In, from.N, from.Out, batch, len(from.Projections) > 0))
		if net.K == 1 && len(net.gRowsIn) < batch*from.In {
			net.gRowsIn = make([]T, batch*from.In)
		}
	}
	net.In, net.phi = make([]T, layers[0].In*batch), make([]T, batch*net.Last().N)
	net.CopyFrom(layers)
	return net
}

// Last returns the last layer.
func (net *Network[T]) Last() *Layer[T] { return net.Layers[len(net.Layers)-1] }

// Hidden returns the layers before the last.
func (net *Network[T]) Hidden() []*Layer[T] { return net.Layers[:len(net.Layers)-1] }

// CopyFrom takes the parameters of layers of the same shape.
func (net *Network[T]) CopyFrom(layers []head.Layer) {
	for i, l := range net.Layers {
		from := &layers[i]
		numeric.Convert(l.Centroids, from.Centroids)
		numeric.Convert(l.Beta, from.Beta)
		numeric.Convert(l.Projections, from.Projections)
		l.InitBeta = float64(from.InitBeta)
	}
	net.Refresh()
}

// CopyTo copies the network's parameters into layers of the same shape.
func (net *Network[T]) CopyTo(layers []head.Layer) {
	for i, l := range net.Layers {
		to := &layers[i]
		numeric.Convert(to.Centroids, l.Centroids)
		numeric.Convert(to.Beta, l.Beta)
		numeric.Convert(to.Projections, l.Projections)
		to.InitBeta = float32(l.InitBeta)
	}
}

// Params lists all arrays that training changes, in the order of the layers, and
// their gradients.
func (net *Network[T]) Params() (params, gradients [][]T) {
	for _, l := range net.Layers {
		params, gradients = append(params, l.Centroids, l.Beta), append(gradients, l.GCentroids, l.GBeta)
		if l.projects() {
			params, gradients = append(params, l.Projections), append(gradients, l.GProjections)
		}
	}
	return params, gradients
}

// Constants lists what initialisation sets and no step changes: β of each layer
// before training.
func (net *Network[T]) Constants() []*float64 {
	var all []*float64
	for _, l := range net.Layers {
		all = append(all, &l.InitBeta)
	}
	return all
}

// Loss returns the mean loss of the rows of the last forward pass.
func (net *Network[T]) Loss(labels []int) float64 {
	return numeric.LogBCE(net.Last().Weights[:net.Last().N*len(labels)], labels, nil)
}

// LossGradient is Loss, and puts the gradient by log φ into the last layer.
func (net *Network[T]) LossGradient(labels []int) float64 {
	last := net.Last()
	n := last.N * len(labels)
	loss := numeric.LogBCE(last.Weights[:n], labels, last.GWeights)
	if net.SumLoss {
		for i := range last.GWeights[:n] {
			last.GWeights[i] *= T(n)
		}
	}
	return loss
}

// Refresh computes what depends on the parameters alone.
func (net *Network[T]) Refresh() {
	for _, l := range net.Layers {
		net.RefreshLayer(l)
	}
}

// RefreshLayer is Refresh for one layer.
func (net *Network[T]) RefreshLayer(l *Layer[T]) {
	net.Softplus(l.Width, l.Beta)
	net.Sigmoid(l.slope, l.Beta)
	if net.ratio && !l.last() {
		init := T(numeric.Softplus(l.InitBeta))
		for c, w := range l.Width {
			l.logRatio[c] = w / init
			l.inverse[c] = 1 / w
		}
		net.Log(l.logRatio, l.logRatio)
	}
	if net.K == 2 {
		net.SumSquares(l.sq, l.Centroids)
	}
}

// Rows returns the outputs of a layer row by row, [b, o].
func (net *Network[T]) Rows(l *Layer[T], b int) []T {
	net.Transpose(l.rowsOut, l.Out, l.O, b)
	return l.rowsOut[:b*l.O]
}

// Inputs returns what a layer last read, row by row, [b, d].
func (net *Network[T]) Inputs(l *Layer[T], b int) []T {
	if l.RowsIn != nil {
		return l.RowsIn[:b*l.D]
	}
	rows := make([]T, b*l.D)
	net.Transpose(rows, l.In, l.D, b)
	return rows
}

// Output returns the log φ [b, C] of the last forward pass. It is the network's
// own until the next call.
func (net *Network[T]) Output(b int) []T {
	return net.PerRow(net.phi, net.Last().Weights, b)
}

// PerRow sets dst [b, C] to the transpose of what the last layer has [C, b].
func (net *Network[T]) PerRow(dst, src []T, b int) []T {
	n := net.Last().N
	net.Transpose(dst, src, n, b)
	return dst[:b*n]
}

// Weigh computes, in log space,
//
//	log n_c = log(β⁺_c/β⁺_init) − β⁺_c d_c + cap,  cap = min(log dep + log rec, 0)
//
// and from it dep' = max_c n_c; in the last layer log φ_c is log n_c without the
// ratio. in is [d, b] and rows [b, d], of which either may be nil for k = 2, and
// logDep [b].
func (net *Network[T]) Weigh(l *Layer[T], in, rows, logDep []T, b int) {
	l.In, l.RowsIn = in, rows
	net.Measure(l, b)
	net.Caps(l, logDep, b)
	dist, weights, limit := l.Dist[:l.N*b], l.Weights[:l.N*b], l.Limit[:b]
	if l.last() {
		net.LogPhi(weights, dist, l.Width, limit)
		return
	}
	net.Activate(weights, l.LogDep[:b], l.largest[:b], dist, l.logRatio, l.Width, limit)
}

// Project computes φ' = Σ_c a_c n_c + keep·φ' from what Weigh has left; nothing
// where the layer has no projections.
func (net *Network[T]) Project(l *Layer[T], keep T, b int) {
	if l.projects() {
		net.TN(l.O, b, l.N, 1, l.Projections, l.Weights[:l.N*b], keep, l.Out)
	}
}

// Caps fills l.Limit with min(log dep + log rec, 0) and l.Passed with its slope.
func (net *Network[T]) Caps(l *Layer[T], logDep []T, b int) {
	if net.depress {
		for i, d := range logDep[:b] {
			l.Limit[i], l.Passed[i] = capped(d+net.logRec, l.tie())
		}
	}
}

// Measure fills l.Dist with ‖x−c‖_k^k, for k = 2 as ‖c‖² − 2c·x + ‖x‖².
func (net *Network[T]) Measure(l *Layer[T], b int) {
	switch net.K {
	case 1:
		net.Distances(l.N, b, l.D, l.Centroids, l.RowsIn, l.Dist)
	case 2:
		if l.In == nil {
			net.SumSquares(l.xsq[:b], l.RowsIn[:l.D*b])
			net.NT(l.N, b, l.D, -2, l.Centroids, l.RowsIn, 0, l.Dist)
		} else {
			net.SumSquaresOfColumns(l.xsq[:b], l.In[:l.D*b])
			net.NN(l.N, b, l.D, -2, l.Centroids, l.In, 0, l.Dist)
		}
		net.SquaredDistances(l.Dist[:l.N*b], l.sq, l.xsq[:b])
	default:
		for i := range b {
			row := l.RowsIn[i*l.D : (i+1)*l.D]
			for c := range l.N {
				l.Dist[c*b+i] = Distance(net.K, row, l.Centroids[c*l.D:(c+1)*l.D])
			}
		}
	}
}

// tie is how near to 0 log dep + log rec is taken for 0. The paper's code
// compares dep·rec with 1 in the hidden layers, where 1/1.1·1.1 is a tie, and
// the logarithms in the last, where it is not.
func (l *Layer[T]) tie() T {
	if l.last() {
		return 0
	}
	return 1e-12
}

// capped returns min(a, 0) and its derivative: half at a tie, as torch.minimum
// has it. A NaN stays one.
func capped[T numeric.Real](a, tie T) (value, slope T) {
	switch {
	case a > tie:
		return 0, 0
	case a >= -tie:
		return min(a, 0), 0.5
	}
	return a, 1
}

// BackwardLayer turns the gradients by the layer's outputs (gOut and gLogDep,
// or gWeights in the last layer) into those by its parameters, by its input
// (gIn [d, b]) and by the log depression before it (gLogDep [b]); nil leaves
// the latter two out.
func (net *Network[T]) BackwardLayer(l *Layer[T], gIn, gLogDep []T, b int) {
	weights, gWeights := l.Weights[:l.N*b], l.GWeights[:l.N*b]
	if l.projects() {
		net.NN(l.N, b, l.O, 1, l.Projections, l.GOut, 0, gWeights)
		net.NT(l.N, l.O, b, 1, weights, l.GOut, 0, l.GProjections)
	}
	if !l.last() {
		// From the gradient by n_c to the one by log n_c.
		net.Multiply(gWeights, weights)
		if net.depress {
			for i, c := range l.largest[:b] {
				gWeights[int(c)*b+i] += l.GLogDep[i]
			}
		}
	}
	net.Backward(gWeights, l.GBeta, l.sumByC, l.gLimit[:b], l.sumByX[:b], gWeights, l.Dist, l.Width, l.inverse)
	net.Multiply(l.GBeta, l.slope)
	if gLogDep != nil {
		copy(gLogDep, l.gLimit[:b])
		net.Multiply(gLogDep[:b], l.Passed)
	}
	switch net.K {
	case 1:
		if gIn == nil {
			net.DistancesGradient(l.N, b, l.D, l.Centroids, l.RowsIn, l.GWeights, l.GCentroids, nil)
			return
		}
		net.DistancesGradient(l.N, b, l.D, l.Centroids, l.RowsIn, l.GWeights, l.GCentroids, net.gRowsIn)
		net.Transpose(gIn, net.gRowsIn, b, l.D)
	case 2:
		net.SquaredDistancesGradient(l.N, b, l.D, l.Centroids, l.In, l.RowsIn, l.GWeights, l.sumByC, l.sumByX, l.GCentroids, gIn)
	default:
		net.backwardDistances(l, gIn, b)
	}
}

// backwardDistances goes, for any k, from the gradient by the distances to those
// by the centroids and by the input, term by term.
func (net *Network[T]) backwardDistances(l *Layer[T], gIn []T, b int) {
	clear(l.GCentroids)
	if gIn != nil {
		clear(gIn[:l.D*b])
	}
	for i := range b {
		x := l.RowsIn[i*l.D : (i+1)*l.D]
		for c := range l.N {
			g := l.GWeights[c*b+i]
			centroid, gCentroid := l.Centroids[c*l.D:(c+1)*l.D], l.GCentroids[c*l.D:(c+1)*l.D]
			for j, v := range x {
				s := g * T(net.K.slope(float64(v-centroid[j])))
				gCentroid[j] -= s
				if gIn != nil {
					gIn[j*b+i] += s
				}
			}
		}
	}
}
