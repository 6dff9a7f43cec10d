package kernels

import "testing"

// BenchmarkPeak measures what the core can do: a product in the first-level
// cache that fills all tiles.
func BenchmarkPeak(b *testing.B) {
	const m, n, k = 36, 96, 100
	x, y, c := make([]float32, m*k), make([]float32, k*n), make([]float32, m*n)
	for _, a := range [][]float32{x, y} {
		for i := range a {
			a[i] = 1
		}
	}
	p := NewProducts[float32]()
	for b.Loop() {
		p.NN(m, n, k, 1, x, y, 0, c)
	}
	b.ReportMetric(2*m*n*k*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}
