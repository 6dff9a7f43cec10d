package linalg

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestProducts uses sizes around those of a slab.
func TestProducts(t *testing.T) {
	t.Parallel()
	testProducts[float32](t, 1e-4)
	testProducts[float64](t, 1e-12)
}

func testProducts[T Real](t *testing.T, tolerance float64) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, size := range [][3]int{{1, 1, 1}, {64, 192, 5}, {65, 193, 7}, {130, 3, 70}} {
		m, n, k := size[0], size[1], size[2]
		a, b, bT := make([]T, m*k), make([]T, k*n), make([]T, n*k)
		for i := range a {
			a[i] = T(rng.NormFloat64())
		}
		for p := range k {
			for j := range n {
				b[p*n+j] = T(rng.NormFloat64())
				bT[j*k+p] = b[p*n+j]
			}
		}
		nt, nn := make([]T, m*n), make([]T, m*n)
		NT(m, n, k, a, bT, nt)
		NN(m, n, k, a, b, nn)
		for i := range m {
			for j := range n {
				var want float64
				for p := range k {
					want += float64(a[i*k+p]) * float64(b[p*n+j])
				}
				for name, got := range map[string]T{"NT": nt[i*n+j], "NN": nn[i*n+j]} {
					if !(math.Abs(float64(got)-want) < tolerance) {
						t.Fatalf("%v: %s[%d, %d] = %g, want %g", size, name, i, j, got, want)
					}
				}
			}
		}
	}
}

func TestAddGram(t *testing.T) {
	t.Parallel()
	const n, d = 9, 200
	rng := rand.New(rand.NewPCG(3, 4))
	x, sum := make([]float64, n*d), make([]float64, d*d)
	for i := range x {
		x[i] = rng.NormFloat64()
	}
	for range 2 {
		addGram(n, d, x, sum)
	}
	for i := range d {
		for j := i; j < d; j++ {
			var want float64
			for r := range n {
				want += 2 * x[r*d+i] * x[r*d+j]
			}
			if !(math.Abs(sum[i*d+j]-want) < 1e-12) {
				t.Fatalf("[%d, %d] = %g, want %g", i, j, sum[i*d+j], want)
			}
		}
	}
}
