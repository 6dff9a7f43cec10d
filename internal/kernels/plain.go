package kernels

import (
	"math"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

// plainProducts contracts with gonum's BLAS and with plain loops.
type plainProducts[T Real] struct{}

// gonum's Gemm starts goroutines from four 64×64 blocks of C on, which allocates
// and is no faster at a head's sizes. Slabs of at most three blocks keep a training
// step on its own goroutine, without garbage.
const (
	slabRows = 64
	slabCols = 192
)

func gemm[T Real](tA, tB blas.Transpose, m, n, k int, alpha T, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int) {
	var impl gonum.Implementation
	switch a := any(a).(type) {
	case []float32:
		impl.Sgemm(tA, tB, m, n, k, float32(alpha), a, lda, any(b).([]float32), ldb, float32(beta), any(c).([]float32), ldc)
	case []float64:
		impl.Dgemm(tA, tB, m, n, k, float64(alpha), a, lda, any(b).([]float64), ldb, float64(beta), any(c).([]float64), ldc)
	}
}

func (plainProducts[T]) product(tA, tB blas.Transpose, m, n, k int, alpha T, a, b []T, beta T, c []T) {
	if !fits(m, n, k, beta, a, b, c) {
		return
	}
	lda, stepA, ldb, stepB := k, k, n, 1
	if tA == blas.Trans {
		lda, stepA = m, 1
	}
	if tB == blas.Trans {
		ldb, stepB = k, k
	}
	for i := 0; i < m; i += slabRows {
		for j := 0; j < n; j += slabCols {
			gemm(tA, tB, min(slabRows, m-i), min(slabCols, n-j), k, alpha, a[i*stepA:], lda, b[j*stepB:], ldb, beta, c[i*n+j:], n)
		}
	}
}

func (p plainProducts[T]) NN(m, n, k int, alpha T, a, b []T, beta T, c []T) {
	p.product(blas.NoTrans, blas.NoTrans, m, n, k, alpha, a, b, beta, c)
}

func (p plainProducts[T]) NT(m, n, k int, alpha T, a, b []T, beta T, c []T) {
	p.product(blas.NoTrans, blas.Trans, m, n, k, alpha, a, b, beta, c)
}

func (p plainProducts[T]) TN(m, n, k int, alpha T, a, b []T, beta T, c []T) {
	p.product(blas.Trans, blas.NoTrans, m, n, k, alpha, a, b, beta, c)
}

func (p plainProducts[T]) SquaredDistancesGradient(n, b, d int, c, x, rows, w, byC, byX, gC, gX []T) {
	squaredDistancesGradient[T](p, n, b, d, c, x, rows, w, byC, byX, gC, gX)
}

// squaredDistancesGradient computes Products.SquaredDistancesGradient with any products.
func squaredDistancesGradient[T Real](p Products[T], n, b, d int, c, x, rows, w, byC, byX, gC, gX []T) {
	for i, s := range byC[:n] {
		to := gC[i*d : (i+1)*d]
		for j, v := range c[i*d : (i+1)*d] {
			to[j] = 2 * s * v
		}
	}
	if rows != nil {
		p.NN(n, d, b, -2, w, rows, 1, gC)
	} else {
		p.NT(n, d, b, -2, w, x, 1, gC)
	}
	if gX == nil {
		return
	}
	byX = byX[:b]
	for i := range d {
		from, to := x[i*b:(i+1)*b], gX[i*b:(i+1)*b]
		for j, s := range byX {
			to[j] = 2 * s * from[j]
		}
	}
	p.TN(d, b, n, -2, c, w, 1, gX)
}

func (plainProducts[T]) Distances(m, n, k int, x, c, dist []T) {
	for i := range m {
		row := x[i*k : (i+1)*k]
		l := 0
		for ; l+4 <= n; l += 4 { // four sums, because each addition waits for the one before
			c0, c1, c2, c3 := c[l*k:(l+1)*k], c[(l+1)*k:(l+2)*k], c[(l+2)*k:(l+3)*k], c[(l+3)*k:(l+4)*k]
			var s0, s1, s2, s3 float64
			for j, v := range row {
				s0 += math.Abs(float64(v - c0[j]))
				s1 += math.Abs(float64(v - c1[j]))
				s2 += math.Abs(float64(v - c2[j]))
				s3 += math.Abs(float64(v - c3[j]))
			}
			dist[i*n+l], dist[i*n+l+1], dist[i*n+l+2], dist[i*n+l+3] = T(s0), T(s1), T(s2), T(s3)
		}
		for ; l < n; l++ {
			centroid := c[l*k : (l+1)*k]
			var sum float64
			for j, v := range row {
				sum += math.Abs(float64(v - centroid[j]))
			}
			dist[i*n+l] = T(sum)
		}
	}
}

func (plainProducts[T]) DistancesGradient(m, n, k int, x, c, g, gX, gC []T) {
	clear(gX[:m*k])
	if gC != nil {
		clear(gC[:n*k])
	}
	for i := range m {
		row, to := x[i*k:(i+1)*k], gX[i*k:(i+1)*k]
		for l, slope := range g[i*n : (i+1)*n] {
			signed := [...]T{-slope, 0, slope} // because a branch would be unpredictable
			centroid := c[l*k : (l+1)*k]
			if gC == nil {
				for j, v := range row {
					to[j] += signed[1+order(v, centroid[j])]
				}
				continue
			}
			toC := gC[l*k : (l+1)*k]
			for j, v := range row {
				s := signed[1+order(v, centroid[j])]
				to[j] += s
				toC[j] -= s
			}
		}
	}
}

// order returns 1, 0 or -1 if a is greater than, equal to or less than b.
func order[T Real](a, b T) int {
	above, below := 0, 0
	if a > b {
		above = 1
	}
	if a < b {
		below = 1
	}
	return above - below
}

// plainVectors are the elementwise kernels in plain Go. Functions without a loop
// for T compute in float64.
type plainVectors[T Real] struct{}

func (plainVectors[T]) each(dst, src []T, f func(float64) float64) {
	for i, x := range src[:len(dst)] {
		dst[i] = T(f(float64(x)))
	}
}

func (v plainVectors[T]) Exp(dst, src []T)      { v.each(dst, src, math.Exp) }
func (v plainVectors[T]) Log(dst, src []T)      { v.each(dst, src, math.Log) }
func (v plainVectors[T]) Softplus(dst, src []T) { v.each(dst, src, Softplus) }
func (v plainVectors[T]) Sigmoid(dst, src []T)  { v.each(dst, src, sigmoid) }

// Softplus is log(1+eˣ), and x itself above 20, as in torch, with the derivative 1.
func Softplus(x float64) float64 {
	if x > 20 {
		return x
	}
	return math.Log1p(math.Exp(x))
}

func sigmoid(x float64) float64 {
	if x > 20 {
		return 1
	}
	return 1 / (1 + math.Exp(-x))
}

func (plainVectors[T]) Add(dst, src []T) {
	for i, x := range src[:len(dst)] {
		dst[i] += x
	}
}

func (plainVectors[T]) Multiply(dst, src []T) {
	for i, x := range src[:len(dst)] {
		dst[i] *= x
	}
}

func (plainVectors[T]) Transpose(dst, src []T, rows, cols int) {
	const side = 16 // of blocks that stay in the cache
	dst, src = dst[:rows*cols], src[:rows*cols]
	for i := 0; i < rows; i += side {
		for j := 0; j < cols; j += side {
			for r := i; r < min(i+side, rows); r++ {
				for c := j; c < min(j+side, cols); c++ {
					dst[c*rows+r] = src[r*cols+c]
				}
			}
		}
	}
}

// shape returns how many rows of what length x has, of which each has one
// element in perRow. It panics unless all are of one length.
func shape[T, E any](x []T, perRow []E) (b, n int) {
	b = len(perRow)
	n = len(x) / max(b, 1)
	if b*n != len(x) {
		panic("kernels: a matrix does not fit its vectors")
	}
	return b, n
}

func (plainVectors[T]) SumSquares(dst, x []T) {
	_, n := shape(x, dst)
	for i := range dst {
		var sum T
		for _, v := range x[i*n : (i+1)*n] {
			sum += v * v
		}
		dst[i] = sum
	}
}

func (plainVectors[T]) SumSquaresOfColumns(dst, x []T) {
	n, _ := shape(x, dst)
	clear(dst)
	for ; len(x) > 0; x = x[n:] {
		for j, v := range x[:n] {
			dst[j] += v * v
		}
	}
}

func (plainVectors[T]) SquaredDistances(dist, csq, xsq []T) {
	_, b := shape(dist, csq)
	for c, s := range csq {
		row := dist[c*b : (c+1)*b]
		for i, d := range row {
			row[i] = max(s+d+xsq[i], 0)
		}
	}
}

func (plainVectors[T]) LogPhi(dst, dist, width, limit []T) {
	_, b := shape(dst, width)
	for c, w := range width {
		row := dst[c*b : (c+1)*b]
		for i, d := range dist[c*b : (c+1)*b] {
			row[i] = limit[i] - w*d
		}
	}
}

func (plainVectors[T]) Activate(dst, top []T, largest []int32, dist, logRatio, width, limit []T) {
	_, b := shape(dst, width)
	for c, w := range width {
		row := dst[c*b : (c+1)*b]
		for i, d := range dist[c*b : (c+1)*b] {
			l := logRatio[c] - w*d + limit[i]
			if c == 0 || l > top[i] {
				top[i], largest[i] = l, int32(c)
			}
			row[i] = T(math.Exp(float64(l)))
		}
	}
}

func (plainVectors[T]) Backward(gDist, gWidth, sumDist, gLimit, perColumn, g, dist, width, inverse []T) {
	_, b := shape(gDist, width)
	clear(gLimit[:b])
	clear(perColumn[:b])
	for c, w := range width {
		var total, totalDist T
		for i, v := range g[c*b : (c+1)*b] {
			d := -w * v
			gDist[c*b+i] = d
			total += v * (inverse[c] - dist[c*b+i])
			totalDist += d
			gLimit[i] += v
			perColumn[i] += d
		}
		gWidth[c], sumDist[c] = total, totalDist
	}
}

func (plainVectors[T]) Softmax(dst, norm, l []T) {
	b, l := len(norm), l[:len(dst)]
	for i := range norm {
		top := l[i]
		for at := i; at < len(l); at += b {
			top = max(top, l[at])
		}
		var sum float64
		for at := i; at < len(l); at += b {
			e := math.Exp(float64(l[at] - top))
			sum += e
			dst[at] = T(e)
		}
		for at := i; at < len(l); at += b {
			dst[at] /= T(sum)
		}
		norm[i] = top + T(math.Log(sum))
	}
}

func (plainVectors[T]) SoftmaxBackward(g, sum, share []T) {
	b, share := len(sum), share[:len(g)]
	for i := range sum {
		sum[i] = 0
		for at := i; at < len(g); at += b {
			sum[i] += g[at]
		}
		for at := i; at < len(g); at += b {
			g[at] -= share[at] * sum[i]
		}
	}
}

func (plainVectors[T]) LogBCE(grad, logY []T, labels []int, shift, scale T) float64 {
	b, n := shape(logY, labels) // a label for each column
	var sum float64
	for c := range n {
		for i, own := range labels {
			l := float64(logY[c*b+i]) - float64(shift)
			slope := -1.0
			if c == own {
				sum -= l
			} else {
				sum -= log1mExp(l)
				slope = 1 / math.Expm1(-l)
			}
			if grad != nil {
				grad[c*b+i] = T(slope * float64(scale))
			}
		}
	}
	return sum
}

// log1mExp returns log(1−eˡ) for l < 0 without cancellation at either end.
func log1mExp(l float64) float64 {
	if l > -math.Ln2 {
		return math.Log(-math.Expm1(l))
	}
	return math.Log1p(-math.Exp(l))
}

func (plainVectors[T]) Adam(p, g, m, v []T, size, scale T) {
	const beta1, beta2, eps = 0.9, 0.999, 1e-8
	g, m, v = g[:len(p)], m[:len(p)], v[:len(p)]
	for i, x := range g {
		m[i] += (1 - beta1) * (x - m[i])
		v[i] = beta2*v[i] + (1-beta2)*x*x
		p[i] -= size * m[i] / (T(math.Sqrt(float64(v[i])))*scale + eps)
	}
}
