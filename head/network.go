package head

import "math"

// layer is one RBF layer: its parameters, their gradients and, for up to a
// batch of B rows, everything that the backward pass needs again. A hidden
// layer has o > 0 projections per centroid, or gives its n_c as they are (o = n
// and no projections); the last layer has o = 0. The slices are taken once, so
// that a step allocates nothing.
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
	in       []T // [B, d], the layer's input (not owned)
	xsq      []T // [B], ‖x‖², for k = 2
	dist     []T // [B, n], ‖x−c‖_k^k
	weights  []T // [B, n], n_c; in the last layer log φ_c
	gWeights []T // [B, n], gradient by n_c, in the last layer by log φ_c; then that by the distances
	out      []T // [B, o]; without projections these are the weights
	gOut     []T // [B, o]; likewise
	gLimit   []T // [B], gradient by limit
	rowSum   []T // [B], Σ_c of the gradient by the distances, for k = 2
	colSum   []T // [n], Σ_b of it, for k = 2

	limit   []T   // [B], cap = min(log dep + log rec, 0) of the layer before
	logDep  []T   // [B], log dep after this layer
	gLogDep []T   // [B], gradient by it
	passed  []T   // [B], ∂ cap / ∂ log dep: 1 below the cap, 0 above
	largest []int // [B], the centroid that gave the depression
}

// newLayer makes a layer with room for batches of up to b rows.
func newLayer[T real](d, n, o, b int, projects bool) *layer[T] {
	vector := func(n int) []T { return make([]T, n) }
	l := &layer[T]{
		d: d, n: n, o: o,
		centroids: vector(n * d), gCentroids: vector(n * d),
		beta: vector(n), gBeta: vector(n),
		width: vector(n), slope: vector(n), logRatio: vector(n), inverse: vector(n), sq: vector(n), colSum: vector(n),
		xsq: vector(b), dist: vector(b * n), weights: vector(b * n), gWeights: vector(b * n),
		gLimit: vector(b), rowSum: vector(b),
		limit: vector(b), logDep: vector(b), gLogDep: vector(b), passed: vector(b), largest: make([]int, b),
	}
	if projects {
		l.projections, l.gProjections = vector(n*o), vector(n*o)
		l.out, l.gOut = vector(b*o), vector(b*o)
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
	gInput  []T // [B, d], gradient by the input; nil where nobody asks for it

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
	}
	if m.Open {
		last := m.Layers[len(m.Layers)-1]
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

// forward computes log φ [b, C] for the rows x [b, d]. The result is the
// network's own until the next call. refresh comes before it.
func (net *network[T]) forward(x []T, b int) []T {
	if net.open != nil {
		return net.forwardOpen(x, b)
	}
	logDep := net.first
	for _, l := range net.layers {
		net.forwardLayer(l, x, logDep, b)
		x, logDep = l.out[:b*l.o], l.logDep
	}
	return net.output(b)
}

// output returns the log φ [b, C] of the last forward pass.
func (net *network[T]) output(b int) []T {
	l := net.last()
	return l.weights[:b*l.n]
}

// forwardLayer computes, in log space,
//
//	log n_c = log(β⁺_c/β⁺_init) − β⁺_c d_c + cap,  cap = min(log dep + log rec, 0)
//
// and from it dep' = max_c n_c and φ' = Σ_c a_c n_c; in the last layer log φ_c
// is log n_c without the ratio. logDep is [b].
func (net *network[T]) forwardLayer(l *layer[T], x, logDep []T, b int) {
	l.in = x
	net.distances(l, x, b)
	net.caps(l, logDep, b)
	dist, weights, limit := l.dist[:b*l.n], l.weights[:b*l.n], l.limit[:b]
	if l.last() {
		net.LogPhi(weights, dist, l.width, limit)
		return
	}
	net.Activate(weights, l.logDep[:b], l.largest[:b], dist, l.logRatio, l.width, limit)
	if net.open != nil { // past the layer, which adds to what it reads
		copy(l.out, x)
		net.NN(b, l.o, l.n, 1, weights, l.projections, 1, l.out)
	} else if l.projects() {
		net.NN(b, l.o, l.n, 1, weights, l.projections, 0, l.out)
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

// distances fills l.dist with ‖x−c‖_k^k, for k = 2 as ‖x‖² − 2x·c + ‖c‖².
func (net *network[T]) distances(l *layer[T], x []T, b int) {
	switch net.k {
	case 1:
		net.Distances(b, l.n, l.d, x, l.centroids, l.dist)
	case 2:
		net.SumSquares(l.xsq[:b], x[:b*l.d])
		net.NT(b, l.n, l.d, -2, x, l.centroids, 0, l.dist)
		net.SquaredDistances(l.dist[:b*l.n], l.xsq[:b], l.sq)
	default:
		for i := range b {
			row := x[i*l.d : (i+1)*l.d]
			for c := range l.n {
				l.dist[i*l.n+c] = distance(net.k, row, l.centroids[c*l.d:(c+1)*l.d])
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
// log φ [b, C], which it finds in the last layer's gWeights, for the rows of
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
// (gIn [b, d]) and by the log depression before it (gLogDep [b]); nil leaves
// the latter two out.
func (net *network[T]) backwardLayer(l *layer[T], gIn, gLogDep []T, b int) {
	weights, gWeights := l.weights[:b*l.n], l.gWeights[:b*l.n]
	if l.projects() {
		net.NT(b, l.n, l.o, 1, l.gOut, l.projections, 0, gWeights)
		net.TN(l.n, l.o, b, 1, weights, l.gOut, 0, l.gProjections)
	}
	if !l.last() {
		// From the gradient by n_c to the one by log n_c.
		net.Multiply(gWeights, weights)
		if net.depress {
			for i, c := range l.largest[:b] {
				gWeights[i*l.n+c] += l.gLogDep[i]
			}
		}
	}
	clear(l.gBeta)
	clear(l.colSum)
	net.Backward(gWeights, l.gBeta, l.colSum, l.gLimit[:b], l.rowSum[:b], gWeights, l.dist, l.width, l.inverse)
	net.Multiply(l.gBeta, l.slope)
	if gLogDep != nil {
		copy(gLogDep, l.gLimit[:b])
		net.Multiply(gLogDep[:b], l.passed)
	}
	switch net.k {
	case 1:
		net.DistancesGradient(b, l.n, l.d, l.in, l.centroids, l.gWeights, gIn, l.gCentroids)
	case 2:
		net.backwardSquares(l, gIn, b)
	default:
		net.backwardDistances(l, gIn, b)
	}
}

// backwardSquares goes from the gradient W by d = ‖x−c‖² to 2(Σ_c W x − W·c)
// by x and 2(Σ_b W c − Wᵀ·x) by c.
func (net *network[T]) backwardSquares(l *layer[T], gIn []T, b int) {
	net.ScaleRows(l.gCentroids, l.centroids, l.colSum, 2)
	net.TN(l.n, l.d, b, -2, l.gWeights, l.in, 1, l.gCentroids)
	if gIn != nil {
		net.ScaleRows(gIn[:b*l.d], l.in, l.rowSum[:b], 2)
		net.NN(b, l.d, l.n, -2, l.gWeights, l.centroids, 1, gIn)
	}
}

// backwardDistances is backwardSquares for any k, term by term.
func (net *network[T]) backwardDistances(l *layer[T], gIn []T, b int) {
	clear(l.gCentroids)
	if gIn != nil {
		clear(gIn[:b*l.d])
	}
	for i := range b {
		x := l.in[i*l.d : (i+1)*l.d]
		for c, g := range l.gWeights[i*l.n : (i+1)*l.n] {
			centroid, gCentroid := l.centroids[c*l.d:(c+1)*l.d], l.gCentroids[c*l.d:(c+1)*l.d]
			for j, v := range x {
				s := g * T(net.k.slope(float64(v-centroid[j])))
				gCentroid[j] -= s
				if gIn != nil {
					gIn[i*l.d+j] += s
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
