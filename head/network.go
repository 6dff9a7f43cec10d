package head

import (
	"fmt"
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

// This file computes layers of radial basis functions, forwards and backwards.
// Both networks are built of them.

// rbfLayer is one RBF layer: its parameters, their gradients and, for up to a
// batch of B rows, all values that the backward pass needs. A hidden layer has
// o > 0 projections per centroid, or outputs its n_c unchanged (o = n and no
// projections); the last layer has o = 0. All slices are allocated once.
//
// The values of a batch have one column per row, [n, b], so that the kernels'
// vectors run along the batch and are full for any n. The first layer, and
// distances other than k = 2, read the batch row by row: RowsIn and rowsOut are
// the transposes for these.
type rbfLayer[T kernels.Real] struct {
	D, N, O int

	Centroids, GCentroids     []T // [n, d]
	Beta, GBeta               []T // [n], before softplus
	Projections, GProjections []T // [n, o]; empty without
	InitBeta                  float64

	// Per centroid, computed from the parameters of this step.
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
	GWeights       []T // [n, B], gradient by n_c (in the last layer by log φ_c, and shares memory with it); then the gradient by the distances
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
func newLayer[T kernels.Real](d, n, o, b int, projects bool) *rbfLayer[T] {
	vector := func(n int) []T { return make([]T, n) }
	l := &rbfLayer[T]{
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

func (l *rbfLayer[T]) last() bool { return l.O == 0 }

func (l *rbfLayer[T]) projects() bool { return len(l.Projections) > 0 }

// rbfNetwork is a list of layers with buffers to compute in. It serves one goroutine.
type rbfNetwork[T kernels.Real] struct {
	arithmetic[T]
	Layers  []*rbfLayer[T]
	K       norm
	SumLoss bool // gradients of the sum over the entries, not of their mean
	In      []T  // [d, B], room for the transpose of the rows
	GInput  []T  // [d, B], gradient by the input; nil if not wanted

	depress bool
	ratio   bool // of β⁺ in the hidden layers
	logRec  T
	phi     []T // [B, C], the transpose of log φ
	gRowsIn []T // [B, d], gradient by a layer's input, for k = 1
}

// newRBF copies layers into a network with room for batches of up to batch rows,
// which computes as the settings say.
func newRBF[T kernels.Real](s Settings, layers []Layer, batch int) *rbfNetwork[T] {
	net := &rbfNetwork[T]{
		arithmetic: newArithmetic[T](), K: norm(s.Norm), SumLoss: s.SumLoss,
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
func (net *rbfNetwork[T]) Last() *rbfLayer[T] { return net.Layers[len(net.Layers)-1] }

// Hidden returns the layers before the last.
func (net *rbfNetwork[T]) Hidden() []*rbfLayer[T] { return net.Layers[:len(net.Layers)-1] }

// CopyFrom takes the parameters of layers of the same shape.
func (net *rbfNetwork[T]) CopyFrom(layers []Layer) {
	for i, l := range net.Layers {
		from := &layers[i]
		kernels.Convert(l.Centroids, from.Centroids)
		kernels.Convert(l.Beta, from.Beta)
		kernels.Convert(l.Projections, from.Projections)
		l.InitBeta = float64(from.InitBeta)
	}
	net.Refresh()
}

// CopyTo copies the network's parameters into layers of the same shape.
func (net *rbfNetwork[T]) CopyTo(layers []Layer) {
	for i, l := range net.Layers {
		to := &layers[i]
		kernels.Convert(to.Centroids, l.Centroids)
		kernels.Convert(to.Beta, l.Beta)
		kernels.Convert(to.Projections, l.Projections)
		to.InitBeta = float32(l.InitBeta)
	}
}

// Params lists all arrays that training changes, in the order of the layers, and
// their gradients.
func (net *rbfNetwork[T]) Params() (params, gradients [][]T) {
	for _, l := range net.Layers {
		params, gradients = append(params, l.Centroids, l.Beta), append(gradients, l.GCentroids, l.GBeta)
		if l.projects() {
			params, gradients = append(params, l.Projections), append(gradients, l.GProjections)
		}
	}
	return params, gradients
}

// Constants lists the values that initialisation sets and no step changes: the
// initial β of each layer.
func (net *rbfNetwork[T]) Constants() []*float64 {
	var all []*float64
	for _, l := range net.Layers {
		all = append(all, &l.InitBeta)
	}
	return all
}

// Loss returns the mean loss of the rows of the last forward pass.
func (net *rbfNetwork[T]) Loss(labels []int) float64 {
	return logBCE(net.Last().Weights[:net.Last().N*len(labels)], labels, nil)
}

// LossGradient returns Loss and puts the gradient by log φ into the last layer.
func (net *rbfNetwork[T]) LossGradient(labels []int) float64 {
	last := net.Last()
	n := last.N * len(labels)
	loss := logBCE(last.Weights[:n], labels, last.GWeights)
	if net.SumLoss {
		for i := range last.GWeights[:n] {
			last.GWeights[i] *= T(n)
		}
	}
	return loss
}

// Refresh computes the values that depend on the parameters alone. Call it after
// the parameters change.
func (net *rbfNetwork[T]) Refresh() {
	for _, l := range net.Layers {
		net.RefreshLayer(l)
	}
}

// RefreshLayer is Refresh for one layer.
func (net *rbfNetwork[T]) RefreshLayer(l *rbfLayer[T]) {
	net.Softplus(l.Width, l.Beta)
	net.Sigmoid(l.slope, l.Beta)
	if net.ratio && !l.last() {
		init := T(kernels.Softplus(l.InitBeta))
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
func (net *rbfNetwork[T]) Rows(l *rbfLayer[T], b int) []T {
	net.Transpose(l.rowsOut, l.Out, l.O, b)
	return l.rowsOut[:b*l.O]
}

// Inputs returns the last inputs of a layer row by row, [b, d].
func (net *rbfNetwork[T]) Inputs(l *rbfLayer[T], b int) []T {
	if l.RowsIn != nil {
		return l.RowsIn[:b*l.D]
	}
	rows := make([]T, b*l.D)
	net.Transpose(rows, l.In, l.D, b)
	return rows
}

// Output returns log φ [b, C] of the last forward pass. The next call overwrites
// it.
func (net *rbfNetwork[T]) Output(b int) []T {
	return net.PerRow(net.phi, net.Last().Weights, b)
}

// PerRow sets dst [b, C] to the transpose of values [C, b] of the last layer.
func (net *rbfNetwork[T]) PerRow(dst, src []T, b int) []T {
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
func (net *rbfNetwork[T]) Weigh(l *rbfLayer[T], in, rows, logDep []T, b int) {
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

// Project computes φ' = Σ_c a_c n_c + keep·φ' from the n_c of Weigh. It does
// nothing for a layer without projections.
func (net *rbfNetwork[T]) Project(l *rbfLayer[T], keep T, b int) {
	if l.projects() {
		net.TN(l.O, b, l.N, 1, l.Projections, l.Weights[:l.N*b], keep, l.Out)
	}
}

// Caps fills l.Limit with min(log dep + log rec, 0) and l.Passed with its slope.
func (net *rbfNetwork[T]) Caps(l *rbfLayer[T], logDep []T, b int) {
	if net.depress {
		for i, d := range logDep[:b] {
			l.Limit[i], l.Passed[i] = capped(d+net.logRec, l.tie())
		}
	}
}

// Measure fills l.Dist with ‖x−c‖_k^k, for k = 2 as ‖c‖² − 2c·x + ‖x‖².
func (net *rbfNetwork[T]) Measure(l *rbfLayer[T], b int) {
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
				l.Dist[c*b+i] = distance(net.K, row, l.Centroids[c*l.D:(c+1)*l.D])
			}
		}
	}
}

// MeasureBy is Measure of the last layer for k = 2, by a function that puts the
// products [b, n] of the rows [b, d] with the centroids into dst.
func (net *rbfNetwork[T]) MeasureBy(l *rbfLayer[T], b int, products func(dst, rows []T)) {
	if l.In == nil {
		net.SumSquares(l.xsq[:b], l.RowsIn[:l.D*b])
	} else {
		net.SumSquaresOfColumns(l.xsq[:b], l.In[:l.D*b])
	}
	size := l.N * b
	products(net.phi[:size], net.Inputs(l, b))
	net.Transpose(l.Dist[:size], net.phi[:size], b, l.N)
	for i := range l.Dist[:size] {
		l.Dist[i] *= -2
	}
	net.SquaredDistances(l.Dist[:size], l.sq, l.xsq[:b])
}

// tie is the largest |log dep + log rec| that counts as 0. The paper's code
// compares dep·rec with 1 in the hidden layers, where 1/1.1·1.1 is a tie, and
// compares logarithms in the last layer, where it is not.
func (l *rbfLayer[T]) tie() T {
	if l.last() {
		return 0
	}
	return 1e-12
}

// capped returns min(a, 0) and its derivative, which at a tie is ½ as in
// torch.minimum. NaN gives NaN.
func capped[T kernels.Real](a, tie T) (value, slope T) {
	switch {
	case a > tie:
		return 0, 0
	case a >= -tie:
		return min(a, 0), 0.5
	}
	return a, 1
}

// BackwardLayer computes, from the gradients by the layer's outputs (GOut and
// GLogDep, or GWeights in the last layer), the gradients by its parameters, by
// its input (gIn [d, b]) and by the log depression before it (gLogDep [b]). Pass
// nil to skip either of the last two.
func (net *rbfNetwork[T]) BackwardLayer(l *rbfLayer[T], gIn, gLogDep []T, b int) {
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

// backwardDistances computes, for any k and term by term, the gradients by the
// centroids and by the input from the gradient by the distances.
func (net *rbfNetwork[T]) backwardDistances(l *rbfLayer[T], gIn []T, b int) {
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

// Layer is one layer of radial basis functions, with N centroids for inputs of
// length d. A hidden layer has projections of length o, or none and then outputs
// the N weights of its centroids; the last layer has one centroid per class.
type Layer struct {
	In, N, Out  int       // d, N and o; Out is N without projections, and 0 in the last layer
	Centroids   []float32 // [N, d]
	Beta        []float32 // [N], β; the inverse width is β⁺ = softplus(β)
	InitBeta    float32   // β of the whole layer before training
	Projections []float32 // [N, o]; empty in the last layer and without
}

// NewLayer returns a layer whose parameters are all zero. out is 0 for a last
// layer.
func NewLayer(in, n, out int, projects bool) Layer {
	l := Layer{In: in, N: n, Out: out, Centroids: make([]float32, n*in), Beta: make([]float32, n)}
	if projects {
		l.Projections = make([]float32, n*out)
	}
	return l
}

// Widths returns β⁺ [N] of the centroids and β⁺_init.
func (l *Layer) Widths() (widths []float64, initial float64) {
	widths = make([]float64, l.N)
	for c, b := range l.Beta {
		widths[c] = kernels.Softplus(float64(b))
	}
	return widths, kernels.Softplus(float64(l.InitBeta))
}

// mostLayers is the largest number of layers of any network.
const mostLayers = 100

// CheckLayers checks that layers fit together and that all numbers are finite.
// Either all hidden layers have projections, or none has.
func CheckLayers(layers []Layer, projects bool) error {
	if n := len(layers); n < 1 || n > mostLayers {
		return fmt.Errorf("%d layers: a head has 1 to %d", n, mostLayers)
	}
	for i, l := range layers {
		last := i == len(layers)-1
		projections := 0
		if projects {
			projections = l.N * l.Out
		}
		switch {
		case l.In < 1 || l.N < 1 || last != (l.Out == 0) || l.Out < 0:
			return fmt.Errorf("layer %d has the shape d=%d, N=%d, o=%d", i, l.In, l.N, l.Out)
		case i > 0 && l.In != layers[i-1].Out:
			return fmt.Errorf("layer %d reads %d values where layer %d gives %d", i, l.In, i-1, layers[i-1].Out)
		case !projects && !last && l.Out != l.N:
			return fmt.Errorf("layer %d gives %d values, and has %d centroids without projections", i, l.Out, l.N)
		case len(l.Centroids) != l.N*l.In, len(l.Beta) != l.N, len(l.Projections) != projections:
			return fmt.Errorf("layer %d has arrays of the wrong size for d=%d, N=%d, o=%d", i, l.In, l.N, l.Out)
		}
		for _, array := range [][]float32{l.Centroids, l.Beta, l.Projections, {l.InitBeta}} {
			if slices.ContainsFunc(array, notFinite[float32]) {
				return fmt.Errorf("layer %d holds a value that is not finite", i)
			}
		}
	}
	return nil
}
