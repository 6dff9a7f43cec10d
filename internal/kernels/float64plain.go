package kernels

import "unsafe"

// plainFloat64 are the kernels in plain Go, which every machine has.
var plainFloat64 = float64Kernels{
	tiles: tiles{
		plainRows,
		[float64Vectors + 1]tileOf[float64]{1: plainTile[float64](1), 2: plainTile[float64](2), 3: plainTile[float64](3)},
		[float64Vectors + 1]tileOf[float32]{1: plainTile[float32](1), 2: plainTile[float32](2), 3: plainTile[float32](3)},
	},
	width:         plainWidth,
	symmetricRows: plainSymmetricRows, rowsTimes: plainRowsTimes, timesRows: plainTimesRows,
	secularTerms: plainSecularTerms, quotients: plainQuotients,
	dot32: plainDot[float32], dot64: plainDot[float64],
	below: plainBelow, atLeast: plainAtLeast,
}

func plainSymmetricRows(aAt *float64, lda int, xAt, yAt, vAt, sumsAt *float64, n int) {
	a, x, y := unsafe.Slice(aAt, 3*lda+4*n), unsafe.Slice(xAt, 4*n), unsafe.Slice(yAt, 4*n)
	v, sums := unsafe.Slice(vAt, 4), unsafe.Slice(sumsAt, 4)
	for i := range 4 {
		sums[i] = 0
		for j, w := range a[i*lda : i*lda+4*n] {
			sums[i] += w * x[j]
			y[j] += w * v[i]
		}
	}
}

func plainRowsTimes(aAt *float64, lda int, xAt, sumsAt *float64, n int) {
	a, x, sums := unsafe.Slice(aAt, 3*lda+4*n), unsafe.Slice(xAt, 4*n), unsafe.Slice(sumsAt, 4)
	for i := range 4 {
		sums[i] = 0
		for j, w := range a[i*lda : i*lda+4*n] {
			sums[i] += w * x[j]
		}
	}
}

func plainTimesRows(aAt *float64, lda int, yAt, vAt *float64, n int) {
	a, y, v := unsafe.Slice(aAt, 3*lda+4*n), unsafe.Slice(yAt, 4*n), unsafe.Slice(vAt, 4)
	for i, by := range v {
		for j, w := range a[i*lda : i*lda+4*n] {
			y[j] += w * by
		}
	}
}

func plainSecularTerms(polesAt, squaresAt *float64, step, n int, x float64, sumsAt *float64) {
	var sum, slope, size [4]float64
	for at := range n {
		poles, squares := unsafe.Slice(polesAt, 4), unsafe.Slice(squaresAt, 4)
		for i, v := range poles {
			t := 1 / (v - x)
			u := squares[i] * t
			sum[i] += u
			slope[i] += u * t
			size[i] += sum[i]
		}
		if at < n-1 {
			polesAt, squaresAt = (*float64)(unsafe.Add(unsafe.Pointer(polesAt), 8*step)), (*float64)(unsafe.Add(unsafe.Pointer(squaresAt), 8*step))
		}
	}
	for i, of := range [][4]float64{sum, slope, size} {
		unsafe.Slice(sumsAt, 3)[i] = of[0] + of[1] + (of[2] + of[3])
	}
}

func plainQuotients(productsAt, rowsAt *float64, ld int, polesAt, othersAt *float64, n int) {
	products, rows := unsafe.Slice(productsAt, SecularWidth), unsafe.Slice(rowsAt, (n-1)*ld+SecularWidth)
	poles := unsafe.Slice(polesAt, SecularWidth)
	for j, other := range unsafe.Slice(othersAt, n) {
		for i, v := range rows[j*ld : j*ld+SecularWidth] {
			products[i] *= v / (poles[i] - other)
		}
	}
}

func plainDot[T Real](xAt, yAt *T, n int) float64 {
	x, y := unsafe.Slice(xAt, 32*n), unsafe.Slice(yAt, 32*n)
	var sums [4]float64 // several sums, for speed
	for len(x) >= 4 && len(y) >= 4 {
		sums[0] += float64(x[0]) * float64(y[0])
		sums[1] += float64(x[1]) * float64(y[1])
		sums[2] += float64(x[2]) * float64(y[2])
		sums[3] += float64(x[3]) * float64(y[3])
		x, y = x[4:], y[4:]
	}
	return sums[0] + sums[1] + sums[2] + sums[3]
}

func plainBelow(xAt *float32, pAt, qAt *float64, classes, ld, n int, low, high, band float64, nearAt *byte) (sum float64) {
	x, near := unsafe.Slice(xAt, n), unsafe.Slice(nearAt, n/8)
	p, q := unsafe.Slice(pAt, (classes-1)*ld+n), unsafe.Slice(qAt, classes)
	clear(near)
	var weights [8]float64
	for j := 0; j < n; j += len(weights) {
		clear(weights[:])
		for c, share := range q {
			for i, v := range p[c*ld+j:][:len(weights)] {
				weights[i] += share * v
			}
		}
		for i, w := range weights {
			switch v := float64(x[j+i]) * w; {
			case v < low-band*w:
				sum += v
			case v <= high+band*w:
				near[j/8] |= 1 << i
			}
		}
	}
	return sum
}

func plainAtLeast(xAt *float32, floor float32, bitsAt *byte, n int) {
	x, bits := unsafe.Slice(xAt, n), unsafe.Slice(bitsAt, n/8)
	for i := range bits {
		var some byte
		for j, v := range x[8*i:][:8] {
			if v >= floor {
				some |= 1 << j
			}
		}
		bits[i] = some
	}
}

// As many sums as fit into a processor's registers.
const (
	plainRows  = 2
	plainWidth = 4
)

func plainTile[T Real](vectors int) tileOf[T] {
	return func(aAt *float64, bAt *T, cAt *float64, k, ldc int, alpha float64, add int) {
		cols := vectors * plainWidth
		c := unsafe.Slice(cAt, ldc+cols)
		for j := 0; j < cols; j += plainWidth {
			a, b := unsafe.Slice(aAt, k*plainRows), unsafe.Slice(bAt, k*cols)[j:]
			var s, t [plainWidth]float64
			for len(a) > plainRows {
				x, y := a[0], a[1]
				s[0] += x * float64(b[0])
				s[1] += x * float64(b[1])
				s[2] += x * float64(b[2])
				s[3] += x * float64(b[3])
				t[0] += y * float64(b[0])
				t[1] += y * float64(b[1])
				t[2] += y * float64(b[2])
				t[3] += y * float64(b[3])
				a, b = a[plainRows:], b[cols:]
			}
			for i := range plainWidth { // the last, after which there is no B
				s[i] = alpha * (s[i] + a[0]*float64(b[i]))
				t[i] = alpha * (t[i] + a[1]*float64(b[i]))
				if add != 0 {
					s[i] += c[j+i]
					t[i] += c[ldc+j+i]
				}
			}
			copy(c[j:], s[:])
			copy(c[ldc+j:], t[:])
		}
	}
}
