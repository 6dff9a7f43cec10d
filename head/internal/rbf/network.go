package head

import "math"

// layer is one RBF layer: its parameters, their gradients and, for up to a
// batch of B rows, everything that the backward pass needs again. A hidden
// layer has o > 0 projections per centroid, or gives its n_c as they are (o = n
// and no projections); the last layer has o = 0. The slices are taken once, so
// that a step allocates nothing.
//
// What the batch fills lies with a column for each of its rows, [n, b], so that
// the kernels' vectors run along the batch, full whatever n is. The first layer
// reads the batch as it comes, row by row, and so do norms that are no products
// with the input of every layer: rowsIn and rowsOut are those transposes.
type layer[T real] struct {
	d, n, o int

	centroids, gCentroids     []T // [n, d]
	beta, gBeta               []T // [n], before softplus
	projections, gProjections []T // [n, o]; empty without
	initBeta                  float64

	// Per centroid, from the parameters as they are in this step.
	width    []T // β⁺ = softplus(β)
	slope    []T // ∂β⁺/∂β = sigmoid(β)
	logRatio []T // log(β⁺/β⁺_init); 0 without the ratio and in the last layer
	inverse  []T // ∂ logRatio/∂β⁺ = 1/β⁺, or 0 like it
	sq       []T // ‖c‖², for k = 2

	// Per row of the batch.
	in, rowsIn     []T // [d, B] and [B, d], the layer's input (not owned); for k = 2 one may be nil, else in
	xsq            []T // [B], ‖x‖², for k = 2
	dist           []T // [n, B], ‖x−c‖_k^k
	weights        []T // [n, B], n_c; in the last layer log φ_c
	gWeights       []T // [n, B], gradient by n_c, in the last layer by log φ_c, in whose place it is; then that by the distances
	out, rowsOut   []T // [o, B] and [B, o]; without projections out is the weights
	gOut           []T // [o, B]; likewise
	gLimit         []T // [B], gradient by limit
	sumByX, sumByC []T // [B] and [n], Σ_c and Σ_b of the gradient by the distances, for k = 2

	limit   []T     // [B], cap = min(log dep + log rec, 0) of the layer before
	logDep  []T     // [B], log dep after this layer
	gLogDep []T     // [B], gradient by it
	passed  []T     // [B], ∂ cap / ∂ log dep: 1 below the cap, 0 above
	largest []int32 // [B], the centroid that gave the depression
}

// newLayer makes a layer with room for batches of up to b rows.
func newLayer[T real](d, n, o, b int, projects bool) *layer[T] {
	vector := func(n int) []T { return make([]T, n) }
	l := &layer[T]{
		d: d, n: n, o: o,
		centroids: vector(n * d), gCentroids: vector(n * d),
		beta: vector(n), gBeta: vector(n),
		width: vector(n), slope: vector(n), logRatio: vector(n), inverse: vector(n), sq: vector(n), sumByC: vector(n),
		xsq: vector(b), dist: vector(n * b), weights: vector(n * b),
		rowsOut: vector(b * o), gLimit: vector(b), sumByX: vector(b),
		limit: vector(b), logDep: vector(b), gLogDep: vector(b), passed: vector(b), largest: make([]int32, b),
	}
	if l.last() {
		l.gWeights = l.weights // nothing reads log φ after the loss
	} else {
		l.gWeights = vector(n * b)
	}
	if projects {
		l.projections, l.gProjections = vector(n*o), vector(n*o)
		l.out, l.gOut = vector(o*b), vector(o*b)
	} else {
		l.out, l.gOut = l.weights, l.gWeights
	}
	return l
}

func (l *layer[T]) last() bool { return l.o == 0 }

func (l *layer[T]) projects() bool { return len(l.projections) > 0 }

// network is an MLRBFN with room to compute in. It serves one goroutine.
type network[T real] struct {
	arithmetic[T]
	layers  []*layer[T]
	k       norm
	depress bool
	ratio   bool // of β⁺ in the hidden layers
	sumLoss bool // gradients of the sum over the entries, not of their mean
	logRec  T
	first   []T // [B], log dep before the first layer: 0
	in      []T // [d, B], the transpose of the rows
	phi     []T // [B, C], that of log φ
	gRowsIn []T // [B, d], gradient by a layer's input, for k = 1
	gInput  []T // [d, B], gradient by the input; nil where nobody asks for it

	*open[T] // nil in the paper's head
}

// networkOf copies a head's parameters into a network with room for batches of
// up to batch rows.
func networkOf[T real](m *MLRBFN, batch int) *network[T] {
	net := &network[T]{
		arithmetic: arithmeticOf[T](), k: norm(m.Norm),
		depress: !m.NoDepression, ratio: !m.NoDepression && !m.NoRatio,
		logRec: T(math.Log(m.Recovery)), first: make([]T, batch),
	}
	for _, from := range m.Layers {
		net.layers = append(net.layers, newLayer[T](from.In, from.N, from.Out, batch, len(from.Projections) > 0))
		if net.k == 1 && len(net.gRowsIn) < batch*from.In {
			net.gRowsIn = make([]T, batch*from.In)
		}
	}
	first, last := m.Layers[0], m.Layers[len(m.Layers)-1]
	net.in, net.phi = make([]T, first.In*batch), make([]T, batch*last.N)
	if m.Open {
		net.open = openOf[T](last.In, last.N, batch)
	}
	net.copyFrom(m)
	return net
}

func (net *network[T]) last() *layer[T] { return net.layers[len(net.layers)-1] }

// copyFrom takes the parameters of a head of the same shape.
func (net *network[T]) copyFrom(m *MLRBFN) {
	for i, l := range net.layers {
		from := &m.Layers[i]
		convert(l.centroids, from.Centroids)
		convert(l.beta, from.Beta)
		convert(l.projections, from.Projections)
		l.initBeta = float64(from.InitBeta)
	}
	net.refresh()
}

// copyTo copies the network's parameters into the head that it was made of.
func (net *network[T]) copyTo(m *MLRBFN) {
	for i, l := range net.layers {
		to := &m.Layers[i]
		convert(to.Centroids, l.centroids)
		convert(to.Beta, l.beta)
		convert(to.Projections, l.projections)
		to.InitBeta = float32(l.initBeta)
	}
}

func convert[To, From real](dst []To, src []From) {
	for i, v := range src {
		dst[i] = To(v)
	}
}

// params lists all arrays that training changes, in the order of the layers.
func (net *network[T]) params() []param[T] {
	var ps []param[T]
	for _, l := range net.layers {
		ps = append(ps, param[T]{l.centroids, l.gCentroids}, param[T]{l.beta, l.gBeta})
		if l.projects() {
			ps = append(ps, param[T]{l.projections, l.gProjections})
		}
	}
	return ps
}

// refresh computes what depends on the parameters alone.
func (net *network[T]) refresh() {
	for _, l := range net.layers {
		net.refreshLayer(l)
	}
}

func (net *network[T]) refreshLayer(l *layer[T]) {
	net.Softplus(l.width, l.beta)
	net.Sigmoid(l.slope, l.beta)
	if net.ratio && !l.last() {
		init := T(softplus(l.initBeta))
		for c, w := range l.width {
			l.logRatio[c] = w / init
			l.inverse[c] = 1 / w
		}
		net.Log(l.logRatio, l.logRatio)
	}
	if net.k == 2 {
		net.SumSquares(l.sq, l.centroids)
	}
}

// forward computes log φ for the rows x [b, d]. refresh comes before it.
func (net *network[T]) forward(x []T, b int) {
	if net.open != nil {
		net.forwardOpen(x, b)
		return
	}
	d := net.layers[0].d
	in, logDep := []T(nil), net.first
	if net.k == 2 && net.gInput != nil { // else a product reads the rows as they are
		in = net.in[:d*b]
		net.Transpose(in, x, b, d)
	}
	for _, l := range net.layers {
		net.forwardLayer(l, in, x, logDep, b)
		in, x, logDep = l.out[:l.o*b], nil, l.logDep
		if net.k != 2 {
			x = net.rows(l, b)
		}
	}
}

// rows returns the outputs of a layer row by row, [b, o].
func (net *network[T]) rows(l *layer[T], b int) []T {
	net.Transpose(l.rowsOut, l.out, l.o, b)
	return l.rowsOut[:b*l.o]
}

// output returns the log φ [b, C] of the last forward pass. It is the network's
// own until the next call.
func (net *network[T]) output(b int) []T {
	return net.perRow(net.phi, net.last().weights, b)
}

// perRow sets dst [b, C] to the transpose of what the last layer has [C, b].
func (net *network[T]) perRow(dst, src []T, b int) []T {
	n := net.last().n
	net.Transpose(dst, src, n, b)
	return dst[:b*n]
}

// forwardLayer computes, in log space,
//
//	log n_c = log(β⁺_c/β⁺_init) − β⁺_c d_c + cap,  cap = min(log dep + log rec, 0)
//
// and from it dep' = max_c n_c and φ' = Σ_c a_c n_c; in the last layer log φ_c
// is log n_c without the ratio. in is [d, b] and rows [b, d], of which either may
// be nil for k = 2, and logDep [b].
func (net *network[T]) forwardLayer(l *layer[T], in, rows, logDep []T, b int) {
	l.in, l.rowsIn = in, rows
	net.distances(l, b)
	net.caps(l, logDep, b)
	dist, weights, limit := l.dist[:l.n*b], l.weights[:l.n*b], l.limit[:b]
	if l.last() {
		net.LogPhi(weights, dist, l.width, limit)
		return
	}
	net.Activate(weights, l.logDep[:b], l.largest[:b], dist, l.logRatio, l.width, limit)
	if net.open != nil { // past the layer, which adds to what it reads
		copy(l.out, in)
		net.TN(l.o, b, l.n, 1, l.projections, weights, 1, l.out)
	} else if l.projects() {
		net.TN(l.o, b, l.n, 1, l.projections, weights, 0, l.out)
	}
}

// caps fills l.limit with min(log dep + log rec, 0) and l.passed with its slope.
func (net *network[T]) caps(l *layer[T], logDep []T, b int) {
	if net.depress {
		for i, d := range logDep[:b] {
			l.limit[i], l.passed[i] = capped(d+net.logRec, l.tie())
		}
	}
}

// distances fills l.dist with ‖x−c‖_k^k, for k = 2 as ‖c‖² − 2c·x + ‖x‖².
func (net *network[T]) distances(l *layer[T], b int) {
	switch net.k {
	case 1:
		net.Distances(l.n, b, l.d, l.centroids, l.rowsIn, l.dist)
	case 2:
		if l.in == nil {
			net.SumSquares(l.xsq[:b], l.rowsIn[:l.d*b])
			net.NT(l.n, b, l.d, -2, l.centroids, l.rowsIn, 0, l.dist)
		} else {
			net.SumSquaresOfColumns(l.xsq[:b], l.in[:l.d*b])
			net.NN(l.n, b, l.d, -2, l.centroids, l.in, 0, l.dist)
		}
		net.SquaredDistances(l.dist[:l.n*b], l.sq, l.xsq[:b])
	default:
		for i := range b {
			row := l.rowsIn[i*l.d : (i+1)*l.d]
			for c := range l.n {
				l.dist[c*b+i] = distance(net.k, row, l.centroids[c*l.d:(c+1)*l.d])
			}
		}
	}
}

// tie is how near to 0 log dep + log rec is taken for 0. The paper's code
// compares dep·rec with 1 in the hidden layers, where 1/1.1·1.1 is a tie, and
// the logarithms in the last, where it is not.
func (l *layer[T]) tie() T {
	if l.last() {
		return 0
	}
	return 1e-12
}

// capped returns min(a, 0) and its derivative: half at a tie, as torch.minimum
// has it. A NaN stays one.
func capped[T real](a, tie T) (value, slope T) {
	switch {
	case a > tie:
		return 0, 0
	case a >= -tie:
		return min(a, 0), 0.5
	}
	return a, 1
}

// backward computes the gradients of all parameters from the gradient by
// log φ [C, b], which it finds in the last layer's gWeights, for the rows of
// the last forward pass.
func (net *network[T]) backward(b int) {
	if net.open != nil {
		net.backwardOpen(b)
		return
	}
	for at := len(net.layers) - 1; at >= 0; at-- {
		l := net.layers[at]
		gIn, gLogDep := net.gInput, []T(nil)
		if at > 0 {
			gIn, gLogDep = net.layers[at-1].gOut, net.layers[at-1].gLogDep
		}
		net.backwardLayer(l, gIn, gLogDep, b)
	}
}

// backwardLayer turns the gradients by the layer's outputs (gOut and gLogDep,
// or gWeights in the last layer) into those by its parameters, by its input
// (gIn [d, b]) and by the log depression before it (gLogDep [b]); nil leaves
// the latter two out.
func (net *network[T]) backwardLayer(l *layer[T], gIn, gLogDep []T, b int) {
	weights, gWeights := l.weights[:l.n*b], l.gWeights[:l.n*b]
	if l.projects() {
		net.NN(l.n, b, l.o, 1, l.projections, l.gOut, 0, gWeights)
		net.NT(l.n, l.o, b, 1, weights, l.gOut, 0, l.gProjections)
	}
	if !l.last() {
		// From the gradient by n_c to the one by log n_c.
		net.Multiply(gWeights, weights)
		if net.depress {
			for i, c := range l.largest[:b] {
				gWeights[int(c)*b+i] += l.gLogDep[i]
			}
		}
	}
	net.Backward(gWeights, l.gBeta, l.sumByC, l.gLimit[:b], l.sumByX[:b], gWeights, l.dist, l.width, l.inverse)
	net.Multiply(l.gBeta, l.slope)
	if gLogDep != nil {
		copy(gLogDep, l.gLimit[:b])
		net.Multiply(gLogDep[:b], l.passed)
	}
	switch net.k {
	case 1:
		if gIn == nil {
			net.DistancesGradient(l.n, b, l.d, l.centroids, l.rowsIn, l.gWeights, l.gCentroids, nil)
			return
		}
		net.DistancesGradient(l.n, b, l.d, l.centroids, l.rowsIn, l.gWeights, l.gCentroids, net.gRowsIn)
		net.Transpose(gIn, net.gRowsIn, b, l.d)
	case 2:
		net.SquaredDistancesGradient(l.n, b, l.d, l.centroids, l.in, l.rowsIn, l.gWeights, l.sumByC, l.sumByX, l.gCentroids, gIn)
	default:
		net.backwardDistances(l, gIn, b)
	}
}

// backwardDistances goes, for any k, from the gradient by the distances to those
// by the centroids and by the input, term by term.
func (net *network[T]) backwardDistances(l *layer[T], gIn []T, b int) {
	clear(l.gCentroids)
	if gIn != nil {
		clear(gIn[:l.d*b])
	}
	for i := range b {
		x := l.rowsIn[i*l.d : (i+1)*l.d]
		for c := range l.n {
			g := l.gWeights[c*b+i]
			centroid, gCentroid := l.centroids[c*l.d:(c+1)*l.d], l.gCentroids[c*l.d:(c+1)*l.d]
			for j, v := range x {
				s := g * T(net.k.slope(float64(v-centroid[j])))
				gCentroid[j] -= s
				if gIn != nil {
					gIn[j*b+i] += s
				}
			}
		}
	}
}

// softplus is log(1+eˣ), and x itself above 20, as torch has it.
func softplus(x float64) float64 {
	if x > 20 {
		return x
	}
	return math.Log1p(math.Exp(x))
}
