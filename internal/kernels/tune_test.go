package kernels

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

func TestTuneParts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	mk := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = rng.Float32()
		}
		return x
	}
	p, v := available()[0].products(), available()[0].vectors
	pp := p.(*products)
	x, c, d := mk(128*512), mk(50*512), mk(128*50)
	x1, c1, o := mk(128*100), mk(50*100), mk(128*100)
	packed := mk(512 * 128)
	l128, l50, m50, n50, k50 := mk(128), mk(50), mk(50), mk(50), mk(50)
	r128 := mk(128)
	gD := mk(128 * 50)
	for i := range d {
		d[i] = rng.Float32() * 4
	}
	dd := append([]float32(nil), d...)
	big, bg, bm, bv := mk(51000), mk(51000), mk(51000), mk(51000)
	lg := make([]int, 128)
	for _, b := range []struct {
		n string
		f func()
	}{
		{"NT dist", func() { p.NT(128, 50, 512, -2, x, c, 0, d) }},
		{"turn x", func() { turn(packed, 128, x, 512, 128, 512) }},
		{"contract distT", func() {
			pp.contract(pp.product, 50, 128, 512, -2, dense(c, 512), dense(packed, 128), 0, dense(gD, 128), matrix{})
		}},
		{"TN gC", func() { p.TN(50, 512, 128, -2, d, x, 1, c) }},
		{"NT hidden", func() { p.NT(128, 50, 100, 1, x1, c1, 0, d) }},
		{"NN out", func() { p.NN(128, 100, 50, 1, gD, c1, 0, o) }},
		{"TN gP", func() { p.TN(50, 100, 128, 1, gD, x1, 0, c1) }},
		{"activate", func() { v.Activate(gD, l128, lg, dd, l50, m50, r128) }},
		{"backward", func() { v.Backward(gD, l50, m50, l128, r128, dd, dd, n50, k50) }},
		{"adam 51000", func() { v.Adam(big, bg, bm, bv, 1e-3, 1) }},
		{"sumSquares x", func() { v.SumSquares(l128, x) }},
		{"scaleRows c", func() { v.ScaleRows(c, c, l50, 1) }},
		{"squaredDist", func() { v.SquaredDistances(dd, l128, l50) }},
		{"multiply", func() { v.Multiply(gD, gD); copy(gD, dd) }},
	} {
		best := time.Hour
		for range 150 {
			for range 3 {
				t0 := time.Now()
				b.f()
				best = min(best, time.Since(t0))
			}
			copy(d, dd)
		}
		fmt.Printf("%-16s %v\n", b.n, best)
	}
}
