//go:build (amd64 || arm64) && !noasm

package kernels

// vectorKernels is one instruction set's assembly. It takes n ≥ 0 elements, or
// rows of n.
type vectorKernels struct {
	exp, log, softplus, sigmoid, add, multiply func(dst, src *float32, n int)

	sumSquares       func(dst, x *float32, rows, n int)
	addSquares       func(sums, x *float32, rows, n int)
	squaredDistances func(dist, csq, xsq *float32, rows, n int)
	logPhi           func(dst, dist, width, limit *float32, rows, n int)
	activate         func(dst, top *float32, largest *int32, dist, logRatio, width, limit *float32, rows, n int)
	backward         func(gDist, gWidth, sumDist, gLimit, perColumn, grad, dist, width, inverse *float32, rows, n int)
	softmax          func(dst, norm, l *float32, rows, n int)
	softmaxBackward  func(grad, sum, share *float32, rows, n int)
	logBCE           func(grad, logY *float32, labels *int, shift, scale float32, rows, n int) (sum float64)
	adam             func(p, grad, m, v *float32, size, scale float32, n int)
}

// at returns the address of x's beginning, after a check that it holds n > 0.
func at[E any](x []E, n int) *E {
	_ = x[n-1]
	return &x[0]
}

func apply(f func(dst, src *float32, n int), dst, src []float32) {
	if len(dst) > 0 {
		f(&dst[0], at(src, len(dst)), len(dst))
	}
}

func (v *vectorKernels) Exp(dst, src []float32)      { apply(v.exp, dst, src) }
func (v *vectorKernels) Log(dst, src []float32)      { apply(v.log, dst, src) }
func (v *vectorKernels) Softplus(dst, src []float32) { apply(v.softplus, dst, src) }
func (v *vectorKernels) Sigmoid(dst, src []float32)  { apply(v.sigmoid, dst, src) }
func (v *vectorKernels) Add(dst, src []float32)      { apply(v.add, dst, src) }
func (v *vectorKernels) Multiply(dst, src []float32) { apply(v.multiply, dst, src) }

func (v *vectorKernels) SumSquares(dst, x []float32) {
	if len(x) == 0 {
		clear(dst)
		return
	}
	b, n := shape(x, dst)
	v.sumSquares(&dst[0], &x[0], b, n)
}

func (v *vectorKernels) SumSquaresOfColumns(dst, x []float32) {
	clear(dst)
	if len(x) == 0 {
		return
	}
	n, rows := shape(x, dst)
	v.addSquares(&dst[0], &x[0], rows, n)
}

func (v *vectorKernels) Transpose(dst, src []float32, rows, cols int) {
	if rows*cols > 0 {
		transpose(dst, rows, src, cols, rows, cols)
	}
}

func (v *vectorKernels) SquaredDistances(dist, csq, xsq []float32) {
	if len(dist) == 0 {
		return
	}
	n, b := shape(dist, csq)
	v.squaredDistances(&dist[0], &csq[0], at(xsq, b), n, b)
}

func (v *vectorKernels) LogPhi(dst, dist, width, limit []float32) {
	if len(dst) == 0 {
		return
	}
	n, b := shape(dst, width)
	v.logPhi(&dst[0], at(dist, n*b), &width[0], at(limit, b), n, b)
}

func (v *vectorKernels) Activate(dst, top []float32, largest []int32, dist, logRatio, width, limit []float32) {
	if len(dst) == 0 {
		return
	}
	n, b := shape(dst, width)
	v.activate(&dst[0], at(top, b), at(largest, b), at(dist, n*b), at(logRatio, n), &width[0], at(limit, b), n, b)
}

func (v *vectorKernels) Backward(gDist, gWidth, sumDist, gLimit, perColumn, g, dist, width, inverse []float32) {
	if len(gDist) == 0 {
		return
	}
	n, b := shape(gDist, width)
	clear(gLimit[:b])
	clear(perColumn[:b])
	v.backward(&gDist[0], at(gWidth, n), at(sumDist, n), &gLimit[0], &perColumn[0], at(g, n*b), at(dist, n*b), &width[0], at(inverse, n), n, b)
}

func (v *vectorKernels) Softmax(dst, norm, l []float32) {
	if len(dst) == 0 {
		return
	}
	b, n := shape(dst, norm)
	v.softmax(&dst[0], &norm[0], at(l, n*b), n, b)
}

func (v *vectorKernels) SoftmaxBackward(g, sum, share []float32) {
	if len(g) == 0 {
		return
	}
	b, n := shape(g, sum)
	v.softmaxBackward(&g[0], &sum[0], at(share, n*b), n, b)
}

func (v *vectorKernels) LogBCE(grad, logY []float32, labels []int, shift, scale float32) float64 {
	if len(logY) == 0 {
		return 0
	}
	b, n := shape(logY, labels)
	var to *float32
	if grad != nil {
		to = at(grad, n*b)
	}
	return v.logBCE(to, &logY[0], &labels[0], shift, scale, n, b)
}

func (v *vectorKernels) Adam(p, g, m, s []float32, size, scale float32) {
	if n := len(p); n > 0 {
		v.adam(&p[0], at(g, n), at(m, n), at(s, n), size, scale, n)
	}
}
