package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
	"pgregory.net/rapid"
)

// forEachFloat64 runs a test with every set of kernels that this machine has.
func forEachFloat64(t *testing.T, test func(*testing.T)) {
	defer func(w float64Kernels) { chosen().f64 = w }(chosen().f64)
	for _, name := range Names() {
		chosen().f64 = float64Of(name)
		t.Run(name, test)
	}
}

func normals64(rng *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = rng.NormFloat64()
	}
	return x
}

// TestBLAS compares every routine with gonum's own, on sizes around those of tiles,
// blocks and passes, with strides larger than the rows. Elements outside a matrix
// or in its other triangle must not change.
func TestBLAS(t *testing.T) {
	var plain gonum.Implementation
	transposes := []blas.Transpose{blas.NoTrans, blas.Trans}
	forEachFloat64(t, func(t *testing.T) {
		check(t, func(t *rapid.T) {
			rng := rngOf(t)
			size := rapid.IntRange(1, 130)
			m, n, k := size.Draw(t, "m"), size.Draw(t, "n"), rapid.IntRange(1, 400).Draw(t, "k")
			alpha := rapid.SampledFrom([]float64{1, -1, 0.5}).Draw(t, "alpha")
			beta := rapid.SampledFrom([]float64{0, 1, -2}).Draw(t, "beta")
			tA, tB := rapid.SampledFrom(transposes).Draw(t, "tA"), rapid.SampledFrom(transposes).Draw(t, "tB")
			ul := rapid.SampledFrom([]blas.Uplo{blas.Upper, blas.Lower}).Draw(t, "triangle")
			side := rapid.SampledFrom([]blas.Side{blas.Left, blas.Right}).Draw(t, "side")
			matrix := func(t blas.Transpose, rows, cols int) (x []float64, stride int) {
				if t == blas.Trans {
					rows, cols = cols, rows
				}
				return normals64(rng, rows*(cols+3)), cols + 3
			}
			compare := func(what string, c []float64, do func(b blas.Float64, c []float64)) {
				got, want := slices.Clone(c), slices.Clone(c)
				do(BLAS{}, got)
				do(plain, want)
				for i, w := range want {
					if !(math.Abs(got[i]-w) <= 1e-11*(1+math.Abs(w))) {
						t.Fatalf("%s: element %d is %g, want %g", what, i, got[i], w)
					}
				}
			}
			a, lda := matrix(tA, m, k)
			b, ldb := matrix(tB, k, n)
			c, ldc := matrix(blas.NoTrans, m, n)
			compare("Dgemm", c, func(f blas.Float64, c []float64) {
				f.Dgemm(tA, tB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
			})
			s, lds := matrix(blas.NoTrans, m, m)
			compare("Dsyrk", s, func(f blas.Float64, c []float64) {
				f.Dsyrk(ul, tA, m, k, alpha, a, lda, beta, c, lds)
			})
			a2, _ := matrix(tA, m, k)
			compare("Dsyr2k", s, func(f blas.Float64, c []float64) {
				f.Dsyr2k(ul, tA, m, k, alpha, a, lda, a2, lda, beta, c, lds)
			})
			order := m
			if side == blas.Right {
				order = n
			}
			r, ldr := matrix(blas.NoTrans, order, order)
			for i := range r { // well conditioned
				r[i] /= float64(4 * order)
			}
			for i := range order {
				r[i*ldr+i]++
			}
			compare("Dtrsm", c, func(f blas.Float64, c []float64) {
				f.Dtrsm(side, ul, tA, blas.NonUnit, m, n, alpha, r, ldr, c, ldc)
			})
		})
	})
}

// TestFloat64Products compares products with sums. A row alone must be
// bit-identical to the same row among others.
func TestFloat64Products(t *testing.T) {
	forEachFloat64(t, func(t *testing.T) {
		check(t, func(t *rapid.T) {
			rng, size := rngOf(t), rapid.IntRange(1, 100)
			m, n, k := size.Draw(t, "m"), size.Draw(t, "n"), rapid.IntRange(1, 400).Draw(t, "k")
			p := NewProducts[float64]()
			a, b := normals64(rng, m*k), normals64(rng, k*n)
			aT, bT := make([]float64, m*k), make([]float64, k*n)
			for q := range k {
				for i := range m {
					aT[q*m+i] = a[i*k+q]
				}
				for j := range n {
					bT[j*k+q] = b[q*n+j]
				}
			}
			nn, nt, tn, row := make([]float64, m*n), make([]float64, m*n), make([]float64, m*n), make([]float64, n)
			p.NN(m, n, k, 1, a, b, 0, nn)
			p.NT(m, n, k, 1, a, bT, 0, nt)
			p.TN(m, n, k, 1, aT, b, 0, tn)
			if !slices.Equal(nn, nt) || !slices.Equal(nn, tn) {
				t.Fatal("NN, NT and TN of the same matrices differ")
			}
			for i := range m {
				p.NN(1, n, k, 1, a[i*k:], b, 0, row)
				for j, v := range row {
					var want float64
					for q := range k {
						want += a[i*k+q] * b[q*n+j]
					}
					if v != nn[i*n+j] || !(math.Abs(v-want) < 1e-11) {
						t.Fatalf("[%d, %d] is %g alone and %g among others, want %g", i, j, v, nn[i*n+j], want)
					}
				}
			}
		})
	})
}

// close64 reports whether numbers are equal up to rounding.
func close64(got, want float64) bool { return math.Abs(got-want) <= 1e-11*(1+math.Abs(want)) }

// TestRowsTimes compares products of a matrix and a vector with sums, for rows that are
// longer than the vector and for all remainders of four. What is outside of the matrix
// does not matter.
func TestRowsTimes(t *testing.T) {
	forEachFloat64(t, func(t *testing.T) {
		check(t, func(t *rapid.T) {
			rng := rngOf(t)
			m, n := rapid.IntRange(0, 9).Draw(t, "m"), rapid.IntRange(1, 90).Draw(t, "n")
			lda := n + rapid.IntRange(0, 5).Draw(t, "apart")
			a, x, v := normals64(rng, m*lda), normals64(rng, n), normals64(rng, m)
			if m > 0 {
				a = a[:(m-1)*lda+n]
			}
			sums, y := normals64(rng, m), normals64(rng, n)
			want := slices.Clone(y)
			RowsTimes(a, lda, x, sums)
			TimesRows(v, a, lda, y)
			for i := range m {
				var sum float64
				for j := range n {
					sum += a[i*lda+j] * x[j]
					want[j] += v[i] * a[i*lda+j]
				}
				if !close64(sums[i], sum) {
					t.Fatalf("row %d: %g, want %g", i, sums[i], sum)
				}
			}
			for j, w := range want {
				if !close64(y[j], w) {
					t.Fatalf("column %d: %g, want %g", j, y[j], w)
				}
			}
		})
	})
}

// TestSymmetricTimes compares the product with sums. It must not read the other triangle.
func TestSymmetricTimes(t *testing.T) {
	forEachFloat64(t, func(t *testing.T) {
		check(t, func(t *rapid.T) {
			rng := rngOf(t)
			n := rapid.IntRange(0, 90).Draw(t, "n")
			lda := n + rapid.IntRange(0, 5).Draw(t, "apart")
			a, x, y := normals64(rng, n*lda), normals64(rng, n), normals64(rng, n+1)
			beyond := y[n]
			for i := range n {
				for j := i + 1; j < lda; j++ {
					a[i*lda+j] = math.NaN()
				}
			}
			SymmetricTimes(n, a, lda, x, y)
			for i := range n {
				var want float64
				for j := range n {
					want += a[max(i, j)*lda+min(i, j)] * x[j]
				}
				if !close64(y[i], want) {
					t.Fatalf("%d of %d: %g, want %g", i, n, y[i], want)
				}
			}
			if y[n] != beyond {
				t.Fatal("it writes beyond the numbers")
			}
		})
	})
}

// TestSecular compares sums and products over poles with their definitions.
func TestSecular(t *testing.T) {
	forEachFloat64(t, func(t *testing.T) {
		check(t, func(t *rapid.T) {
			rng, backwards := rngOf(t), rapid.Bool().Draw(t, "backwards")
			n := rapid.IntRange(0, 40).Draw(t, "n")
			poles, squares, x := normals64(rng, n), normals64(rng, n), 0.01
			var want, slopes, sizes float64
			for i, v := range poles {
				poles[i], squares[i] = math.Abs(v)+1, math.Abs(squares[i])
				if !backwards {
					poles[i] *= -1
				}
				want += squares[i] / (poles[i] - x)
				slopes += squares[i] / ((poles[i] - x) * (poles[i] - x))
				sizes += math.Abs(squares[i] / (poles[i] - x))
			}
			sum, slope, size := SecularTerms(poles, squares, backwards, x)
			if !close64(sum, want) || !close64(slope, slopes) {
				t.Fatalf("sum %g and slope %g of %d, want %g and %g", sum, slope, n, want, slopes)
			}
			// Each term is part of the sums after it.
			if steps := float64(n/4 + 3); size < sizes*(1-1e-12) || size > steps*sizes*(1+1e-12) {
				t.Fatalf("size %g of terms whose sizes sum to %g", size, sizes)
			}

			ld := SecularWidth + rapid.IntRange(0, 5).Draw(t, "apart")
			rows, others, columns := normals64(rng, n*ld), normals64(rng, n), normals64(rng, SecularWidth)
			products := normals64(rng, SecularWidth+1)
			expected := slices.Clone(products)
			for j, other := range others {
				for i, pole := range columns {
					expected[i] *= rows[j*ld+i] / (pole - other)
				}
			}
			Quotients(products, rows, ld, columns, others)
			for i, w := range expected {
				if !(math.Abs(products[i]-w) <= 1e-12*math.Abs(w)) {
					t.Fatalf("product %d of %d: %g, want %g", i, n, products[i], w)
				}
			}
		})
	})
}

func TestDgemmOnAnyNumberOfCores(t *testing.T) {
	const n = 300
	rng := rand.New(rand.NewPCG(1, 2))
	a, b := normals64(rng, n*n), normals64(rng, n*n)
	var want []float64
	for _, cores := range []int{1, 2, 5} {
		func() {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
			c := make([]float64, n*n)
			BLAS{}.Dgemm(blas.NoTrans, blas.Trans, n, n, n, 1, a, n, b, n, 0, c, n)
			if want == nil {
				want = c
			}
			if !slices.Equal(c, want) {
				t.Errorf("%d cores give other bits", cores)
			}
		}()
	}
}

func TestDot(t *testing.T) {
	forEachFloat64(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(3, 4))
		for n := range 70 {
			x, y := normals(t, rng, n), normals(t, rng, n)
			var want float64
			for i, v := range x {
				want += float64(v) * float64(y[i])
			}
			got := Dot(x, y)
			if !(math.Abs(got-want) < 1e-13) {
				t.Errorf("of %d: %g, want %g", n, got, want)
			}
			var wideX, wideY []float64
			for i, v := range x {
				wideX, wideY = append(wideX, float64(v)), append(wideY, float64(y[i]))
			}
			if wide := Dot(wideX, wideY); wide != got {
				t.Errorf("of %d: %g in float64, %g in float32", n, wide, got)
			}
			release()
		}
	})
}

func BenchmarkFloat64(b *testing.B) {
	for _, size := range [][3]int{{256, 768, 768}, {256, 10, 512}, {1024, 1024, 1024}} {
		m, n, k := size[0], size[1], size[2]
		rng := rand.New(rand.NewPCG(1, 2))
		x, y, c := normals64(rng, m*k), normals64(rng, k*n), make([]float64, m*n)
		p := NewProducts[float64]()
		for name, product := range map[string]func(m, n, k int, alpha float64, a, b []float64, beta float64, c []float64){"NN": p.NN, "NT": p.NT, "TN": p.TN} {
			b.Run(fmt.Sprintf("%s/%dx%dx%d", name, m, n, k), func(b *testing.B) {
				for b.Loop() {
					product(m, n, k, 1, x, y, 0, c)
				}
				b.ReportMetric(2*float64(m*n*k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}

// TestRight: the product with a packed matrix is bit-identical to the one that
// packs it, and that of a row does not depend on the others.
func TestRight(t *testing.T) {
	forEachFloat64(t, func(t *testing.T) {
		check(t, func(t *rapid.T) {
			rng := rngOf(t)
			m, n, k := rapid.IntRange(1, 130).Draw(t, "m"), rapid.IntRange(1, 250).Draw(t, "n"), rapid.IntRange(1, 400).Draw(t, "k")
			a, b, narrow := normals64(rng, m*k), normals64(rng, k*n), make([]float32, k*n)
			for i, v := range b {
				narrow[i] = float32(v)
				b[i] = float64(narrow[i])
			}
			if rapid.Bool().Draw(t, "triangular") {
				n, k = min(n, k), min(n, k)
				for p := range k {
					clear(b[p*n : p*n+min(n, p)])
					clear(narrow[p*n : p*n+min(n, p)])
				}
			}
			want, got, row := make([]float64, m*n), make([]float64, m*n), make([]float64, n)
			float64Products{float64Kernels: &chosen().f64}.NN(m, n, k, 1, a, b, 0, want)
			right := NewRight(n, k, narrow)
			right.NN(m, a, got)
			if !slices.Equal(got, want) {
				t.Fatal("a packed matrix gives another product")
			}
			for i := range m {
				right.NN(1, a[i*k:(i+1)*k], row)
				if !slices.Equal(row, want[i*n:(i+1)*n]) {
					t.Fatalf("row %d alone differs", i)
				}
			}
		})
	})
}

// TestBelow compares sums and bits with their definition, for numbers with NaN,
// many of which are near the bounds.
func TestBelow(t *testing.T) {
	forEachFloat64(t, func(t *testing.T) {
		check(t, func(t *rapid.T) {
			rng := rngOf(t)
			n, classes := Rows*rapid.IntRange(1, 5).Draw(t, "n"), rapid.IntRange(1, 12).Draw(t, "classes")
			ld := n + rapid.IntRange(0, 9).Draw(t, "apart")
			x, p, q := make([]float32, n), normals64(rng, classes*ld), normals64(rng, classes)
			for i := range x {
				x[i] = float32(rng.NormFloat64())
			}
			x[rng.IntN(n)] = float32(math.NaN())
			low, high, band := -0.5, rapid.SampledFrom([]float64{0.5, math.Inf(1)}).Draw(t, "high"), 0.1
			near := make([]byte, n/8+1)
			near[n/8] = 77
			got, want := Below(x, p, ld, q, low, high, band, near), 0.
			if near[n/8] != 77 {
				t.Fatal("it writes beyond the rows")
			}
			for j, v := range x {
				var w float64
				for c, share := range q {
					w += share * p[c*ld+j]
				}
				value := float64(v) * w
				below := value < low-band*w
				if below {
					want += value
				}
				if set := near[j/8]>>(j%8)&1 == 1; set != (!below && value <= high+band*w) {
					t.Fatalf("%d is %g of the weight %g: near is %t", j, value, w, set)
				}
			}
			if !(math.Abs(got-want) <= 1e-11) {
				t.Fatalf("sum %g, want %g", got, want)
			}
		})
	})
}

func TestAtLeast(t *testing.T) {
	forEachFloat64(t, func(t *testing.T) {
		check(t, func(t *rapid.T) {
			rng := rngOf(t)
			x := make([]float32, Rows*rapid.IntRange(1, 4).Draw(t, "n"))
			for i := range x {
				x[i] = float32(rng.IntN(5))
			}
			x[rng.IntN(len(x))] = float32(math.NaN())
			floor := rapid.SampledFrom([]float32{2, float32(math.Inf(-1))}).Draw(t, "floor")
			bits := make([]byte, len(x)/8+1)
			bits[len(x)/8] = 77
			AtLeast(x, floor, bits)
			for i, v := range x {
				if set := bits[i/8]>>(i%8)&1 == 1; set != (v >= floor) {
					t.Fatalf("%g at least %g: %t", v, floor, set)
				}
			}
			if bits[len(x)/8] != 77 {
				t.Fatal("it writes beyond the numbers")
			}
		})
	})
}

func TestChoose(t *testing.T) {
	for _, name := range Sets() {
		if c := choose(name); c.name != name || c.err != nil {
			t.Errorf("%s: chose %s, %v", name, c.name, c.err)
		}
	}
	c := choose("sse9")
	if c.name != Sets()[0] || c.err == nil || !strings.Contains(c.err.Error(), strings.Join(Sets(), ", ")) {
		t.Errorf("unknown kernels: chose %s, %v", c.name, c.err)
	}
}
