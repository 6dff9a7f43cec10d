package kernels

import "testing"

// BenchmarkPeak measures the peak speed of the core: a product in the first-level
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

// BenchmarkElements measures the work of a step between its products, in the
// first-level cache: forward and backward for a hidden centroid and for a class,
// each for a batch, and Adam for a parameter.
func BenchmarkElements(b *testing.B) {
	const batch, rows = 128, 8
	v := VectorsOf[float32]()
	room := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = -float32(i%7+1) / 8
		}
		return x
	}
	dist, phi, grad := room(rows*batch), room(rows*batch), room(rows*batch)
	width, inverse, sums, more := room(rows), room(rows), room(rows), room(rows)
	limit, top, other := room(batch), room(batch), room(batch)
	largest, labels := make([]int32, batch), make([]int, batch)
	p, m, second := room(rows*batch), room(rows*batch), make([]float32, rows*batch)
	for name, of := range map[string]struct {
		run  func()
		each int // number of elements
	}{
		"activation": {func() {
			v.Activate(phi, top, largest, dist, inverse, width, limit)
			v.Backward(grad, sums, more, top, other, phi, dist, width, inverse)
		}, rows},
		"output": {func() {
			v.LogPhi(phi, dist, width, limit)
			v.LogBCE(grad, phi, labels, 0, 1)
			v.Backward(grad, sums, more, top, other, phi, dist, width, inverse)
		}, rows},
		"Adam": {func() { v.Adam(p, grad, m, second, 1e-6, 1) }, rows * batch},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				of.run()
			}
			b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(b.N*of.each), "ns/each")
		})
	}
}
