package kernels

import (
	"math"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

// plainProducts contracts by gonum's BLAS, and plain loops.
type plainProducts[T Real] struct{}

// gonum's Gemm starts goroutines from four 64×64 blocks of C on, which
// allocates and gains nothing at a head's sizes. Slabs of at most three blocks
// keep a training step on its own goroutine and free of garbage.
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

func (plainProducts[T]) NN(m, n, k int, alpha T, a, b []T, beta T, c []T) {
	if !fits(m, n, k, beta, a, b, c) {
		return
	}
	for i := 0; i < m; i += slabRows {
		for j := 0; j < n; j += slabCols {
			gemm(blas.NoTrans, blas.NoTrans, min(slabRows, m-i), min(slabCols, n-j), k, alpha, a[i*k:], k, b[j:], n, beta, c[i*n+j:], n)
		}
	}
}

func (plainProducts[T]) NT(m, n, k int, alpha T, a, b []T, beta T, c []T) {
	if !fits(m, n, k, beta, a, b, c) {
		return
	}
	for i := 0; i < m; i += slabRows {
		for j := 0; j < n; j += slabCols {
			gemm(blas.NoTrans, blas.Trans, min(slabRows, m-i), min(slabCols, n-j), k, alpha, a[i*k:], k, b[j*k:], k, beta, c[i*n+j:], n)
		}
	}
}

func (plainProducts[T]) TN(m, n, k int, alpha T, a, b []T, beta T, c []T) {
	if !fits(m, n, k, beta, a, b, c) {
		return
	}
	for i := 0; i < m; i += slabRows {
		for j := 0; j < n; j += slabCols {
			gemm(blas.Trans, blas.NoTrans, min(slabRows, m-i), min(slabCols, n-j), k, alpha, a[i:], m, b[j:], n, beta, c[i*n+j:], n)
		}
	}
}

func (plainProducts[T]) Distances(m, n, k int, x, c, dist []T) {
	for i := range m {
		row := x[i*k : (i+1)*k]
		for l := range n {
			centroid := c[l*k : (l+1)*k]
			var sum T
			for j, v := range row {
				sum += max(v-centroid[j], centroid[j]-v)
			}
			dist[i*n+l] = sum
		}
	}
}

func (plainProducts[T]) DistancesGradient(m, n, k int, x, c, g, gX, gC []T) {
	clear(gC[:n*k])
	if gX != nil {
		clear(gX[:m*k])
	}
	for i := range m {
		row := x[i*k : (i+1)*k]
		for l, slope := range g[i*n : (i+1)*n] {
			centroid, to := c[l*k:(l+1)*k], gC[l*k:(l+1)*k]
			for j, v := range row {
				e := v - centroid[j]
				if e == 0 {
					continue
				}
				s := slope * T(math.Copysign(1, float64(e))) // a branch could not be foreseen
				to[j] -= s
				if gX != nil {
					gX[i*k+j] += s
				}
			}
		}
	}
}

// plainVectors computes in float64 what it has no loop for in T.
type plainVectors[T Real] struct{}

func (plainVectors[T]) each(dst, src []T, f func(float64) float64) {
	for i, x := range src[:len(dst)] {
		dst[i] = T(f(float64(x)))
	}
}

func (v plainVectors[T]) Exp(dst, src []T)      { v.each(dst, src, math.Exp) }
func (v plainVectors[T]) Log(dst, src []T)      { v.each(dst, src, math.Log) }
func (v plainVectors[T]) Softplus(dst, src []T) { v.each(dst, src, softplus) }
func (v plainVectors[T]) Sigmoid(dst, src []T)  { v.each(dst, src, sigmoid) }

// softplus is x itself above 20, as torch has it; so is its derivative 1.
func softplus(x float64) float64 {
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

func (plainVectors[T]) Multiply(dst, src []T) {
	for i, x := range src[:len(dst)] {
		dst[i] *= x
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

func (plainVectors[T]) ScaleRows(dst, src, by []T, factor T) {
	_, n := shape(dst, by)
	for i, s := range by {
		row := dst[i*n : (i+1)*n]
		for j, v := range src[i*n : (i+1)*n] {
			row[j] = factor * s * v
		}
	}
}

func (plainVectors[T]) SquaredDistances(dist, xsq, csq []T) {
	_, n := shape(dist, xsq)
	for i, s := range xsq {
		row := dist[i*n : (i+1)*n]
		for c, d := range row {
			row[c] = max(s+d+csq[c], 0)
		}
	}
}

func (plainVectors[T]) LogPhi(dst, dist, width, limit []T) {
	_, n := shape(dst, limit)
	for i, most := range limit {
		row := dst[i*n : (i+1)*n]
		for c, d := range dist[i*n : (i+1)*n] {
			row[c] = most - width[c]*d
		}
	}
}

func (plainVectors[T]) Activate(dst, top []T, largest []int, dist, logRatio, width, limit []T) {
	_, n := shape(dst, limit)
	for i, most := range limit {
		row := dst[i*n : (i+1)*n]
		best := 0
		for c, d := range dist[i*n : (i+1)*n] {
			row[c] = logRatio[c] - width[c]*d + most
			if row[c] > row[best] {
				best = c
			}
		}
		largest[i], top[i] = best, row[best]
		for c, v := range row {
			row[c] = T(math.Exp(float64(v)))
		}
	}
}

func (plainVectors[T]) Backward(gDist, gBeta, colSum, sum, rowSum, g, dist, width, inverse []T) {
	_, n := shape(gDist, sum)
	for i := range sum {
		var total, totalDist T
		for c, v := range g[i*n : (i+1)*n] {
			d := -width[c] * v
			gDist[i*n+c] = d
			gBeta[c] += v * (inverse[c] - dist[i*n+c])
			colSum[c] += d
			total += v
			totalDist += d
		}
		sum[i], rowSum[i] = total, totalDist
	}
}

func (plainVectors[T]) LogBCE(grad, logY []T, labels []int, shift, scale T) float64 {
	_, n := shape(logY, labels)
	var sum float64
	for i, own := range labels {
		for c := range n {
			l := float64(logY[i*n+c]) - float64(shift)
			slope := -1.0
			if c == own {
				sum -= l
			} else {
				sum -= log1mExp(l)
				slope = 1 / math.Expm1(-l)
			}
			if grad != nil {
				grad[i*n+c] = T(slope * float64(scale))
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
