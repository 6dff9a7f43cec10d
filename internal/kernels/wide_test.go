package kernels

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func BenchmarkWide(b *testing.B) {
	for _, size := range [][3]int{{256, 768, 768}, {256, 512, 512}, {1024, 1024, 1024}, {256, 10, 512}} {
		m, n, k := size[0], size[1], size[2]
		rng := rand.New(rand.NewPCG(1, 2))
		x, y, c := make([]float64, m*k), make([]float64, k*n), make([]float64, m*n)
		for _, a := range [][]float64{x, y} {
			for i := range a {
				a[i] = rng.NormFloat64()
			}
		}
		p := NewProducts[float64]()
		for name, f := range map[string]func(){"NN": func() { p.NN(m, n, k, 1, x, y, 0, c) }, "NT": func() { p.NT(m, n, k, 1, x, y, 0, c) }, "TN": func() { p.TN(m, n, k, 1, x, y, 0, c) }} {
			b.Run(fmt.Sprint(name, size), func(b *testing.B) {
				for b.Loop() {
					f()
				}
				b.ReportMetric(2*float64(m*n*k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}
