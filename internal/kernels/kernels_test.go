package kernels

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/mlrbfn/mlrbfn/internal/testenv"
)

// forEach runs a test with every set of kernels that this machine has.
func forEach(t *testing.T, test func(*testing.T, set)) {
	for _, s := range available(true) {
		t.Run(s.name, func(t *testing.T) {
			defer release()
			test(t, s)
		})
	}
}

// check is rapid.Check that frees the memory of guarded.
func check(t *testing.T, property func(*rapid.T)) {
	rapid.Check(t, func(r *rapid.T) {
		defer release()
		property(r)
	})
}

func normals(t testing.TB, rng *rand.Rand, n int) []float32 {
	x := guarded(t, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

func inFloat64(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

// near compares got with want, with an absolute tolerance for each finite element;
// NaN and infinities must be the same.
func near(t rapid.TB, what string, got []float32, want []float64, allowed func(i int) float64) {
	t.Helper()
	for i, w := range want {
		g := float64(got[i])
		if g == w || math.IsNaN(g) && math.IsNaN(w) || math.Abs(g-w) <= allowed(i) {
			continue
		}
		t.Fatalf("%s[%d] of %d = %v, want %v (allowed %.2g)", what, i, len(want), g, w, allowed(i))
	}
}

// tiny is the least positive number that is not treated as 0.
const tiny = 0x1p-126

func rngOf(t *rapid.T) *rand.Rand { return rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)) }

// TestProducts compares the products with float64, up to the rounding of a sum.
func TestProducts(t *testing.T) {
	forEach(t, func(t *testing.T, s set) {
		p := s.products()
		check(t, func(r *rapid.T) {
			m, n := rapid.IntRange(0, 70).Draw(r, "m"), rapid.IntRange(0, 140).Draw(r, "n")
			k := rapid.OneOf(rapid.IntRange(0, 60), rapid.IntRange(120, 260)).Draw(r, "k") // one panel, and several
			alpha := rapid.SampledFrom([]float32{1, -2}).Draw(r, "alpha")
			beta := rapid.SampledFrom([]float32{0, 1, 0.5}).Draw(r, "beta")
			rng := rngOf(r)
			a, b, c := normals(t, rng, m*k), normals(t, rng, k*n), normals(t, rng, m*n)
			if rapid.Bool().Draw(r, "odd values") && m*k > 0 {
				a[rng.IntN(m*k)] = rapid.SampledFrom([]float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 1e-45, 1e30}).Draw(r, "odd")
			}
			if beta == 0 && m*n > 0 {
				c[rng.IntN(m*n)] = float32(math.NaN()) // must not be read
			}
			for _, form := range []string{"NN", "NT", "TN"} {
				want, size := make([]float64, m*n), make([]float64, m*n)
				for i := range m {
					for j := range n {
						at := i*n + j
						if beta != 0 {
							want[at] = float64(beta) * float64(c[at])
						}
						for q := range k {
							ia, ib := i*k+q, q*n+j
							switch form {
							case "NT":
								ib = j*k + q
							case "TN":
								ia = q*m + i
							}
							term := float64(alpha) * float64(a[ia]) * float64(b[ib])
							want[at] += term
							size[at] += math.Abs(term)
						}
						if math.Abs(want[at]) > math.MaxFloat32 || size[at] > math.MaxFloat32/4 { // intermediate overflow is not tested
							want[at], size[at] = 0, math.Inf(1)
						}
					}
				}
				got := guarded(t, m*n)
				copy(got, c)
				switch form {
				case "NN":
					p.NN(m, n, k, alpha, a, b, beta, got)
				case "NT":
					p.NT(m, n, k, alpha, a, b, beta, got)
				case "TN":
					p.TN(m, n, k, alpha, a, b, beta, got)
				}
				near(r, form, got, want, func(i int) float64 { return float64(k+2) * 0x1p-24 * (size[i] + math.Abs(want[i]) + 1) })
			}
		})
	})
}

// TestBank compares products with a packed matrix with sums. Some rows among others, with
// a part of the bank, must be bit-identical to themselves.
func TestBank(t *testing.T) {
	before := *chosen()
	defer func() { *chosen() = before }()
	for _, name := range append(Sets(), "amx in go", "avx2 in go") {
		if of, inGo := strings.CutSuffix(name, " in go"); inGo {
			*chosen() = *choose("go")
			BytesInGo(of == "avx2")
		} else {
			*chosen() = *choose(name)
		}
		t.Run(name, func(t *testing.T) {
			check(t, func(r *rapid.T) {
				m, n := rapid.IntRange(1, 70).Draw(r, "m"), rapid.IntRange(1, 140).Draw(r, "n")
				k := rapid.OneOf(rapid.IntRange(1, 60), rapid.IntRange(120, 700)).Draw(r, "k")
				rng := rngOf(r)
				unit := func(rows int) []float32 {
					x := normals(t, rng, rows*k)
					switch rng.IntN(4) {
					case 0: // one large number: the largest sums
						clear(x)
						for i := range rows {
							x[i*k+k-1] = -1
						}
					case 1: // one that is larger than the others
						for i := range rows {
							x[i*k] *= 100
						}
					}
					for i := range rows {
						row := x[i*k : (i+1)*k]
						length := math.Sqrt(Dot(row, row)) * (1 + 1e-7)
						for j := range row {
							row[j] = float32(float64(row[j]) / length)
						}
					}
					return x
				}
				a, b, c := unit(m), unit(n), guarded(t, m*n)
				clear(a[:k])
				var bank Bank
				for _, coarse := range []bool{true, false} {
					bank.Reset(n, k, coarse)
					panels, high := bank.Panels()
					for panel := range panels {
						bank.Set(panel, b[panel*high*k:min((panel+1)*high, n)*k])
					}
					left := NewLeft(a, k, coarse)
					left.Set(0, m)
					bank.Times(left, 0, m, 0, n, c)
					i0, j0 := rng.IntN((m+Rows-1)/Rows)*Rows, rng.IntN(panels)*high
					i1, j1 := i0+1+rng.IntN(m-i0), j0+1+rng.IntN(n-j0)
					some := guarded(t, (i1-i0)*(j1-j0))
					bank.Times(left, i0, i1, j0, j1, some)
					for i := i0; i < i1; i++ {
						if !slices.Equal(some[(i-i0)*(j1-j0):(i-i0+1)*(j1-j0)], c[i*n+j0:i*n+j1]) {
							t.Fatal("some rows give other products")
						}
					}
					for i := range m {
						above, below := bank.Slack(left, i)
						for j, v := range c[i*n : (i+1)*n] {
							want := Dot(a[i*k:(i+1)*k], b[j*k:(j+1)*k])
							if !(want <= float64(v)+above) || !(want >= float64(v)-below) {
								t.Fatalf("coarse %t: [%d, %d] is %g, want %g (at most %g more, %g less)", coarse, i, j, v, want, above, below)
							}
						}
					}
				}
			})
		})
	}
}

// TestBytes holds products of bytes against sums of integers.
func TestBytes(t *testing.T) {
	before := *chosen()
	defer func() { *chosen() = before }()
	for _, ofAVX2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("go, avx2 %t", ofAVX2), func(t *testing.T) {
			defer BytesInGo(ofAVX2)()
			testBytes(t)
		})
	}
	for _, name := range []string{"amx", "avx2"} {
		t.Run(name, func(t *testing.T) {
			if *chosen() = *choose(name); Set() != name {
				t.Skipf("this machine or build has no %s", name)
			}
			testBytes(t)
		})
	}
}

func testBytes(t *testing.T) {
	// The largest sums, of which those with an offset leave their range on the way.
	row := slices.Repeat([]float32{-1}, mostBytes)
	var bank Bank
	bank.Reset(1, len(row), true)
	bank.Set(0, row)
	left, product := NewLeft(row, len(row), true), make([]float32, 1)
	left.Set(0, 1)
	bank.Times(left, 0, 1, 0, 1, product)
	if want := float32(len(row)); math.Abs(float64(product[0]/want-1)) > 1e-5 {
		t.Errorf("the largest product is %g, want %g", product[0], want)
	}
	check(t, func(r *rapid.T) {
		m, n, k := rapid.IntRange(1, 70).Draw(r, "m"), rapid.IntRange(1, 100).Draw(r, "n"), rapid.IntRange(1, 300).Draw(r, "k")
		rng := rngOf(r)
		most := int(chosen().f64.bytes.most)
		draw := func(rows int) []float32 { // k numbers of at most most, one of which is that
			x := guarded(t, rows*k)
			least := -most
			for i := range x {
				if i%k == 0 {
					least = rng.IntN(2*most+1) - most
				}
				x[i] = float32(least+rng.IntN(most-least+1)) / 4096
				if i%k == rng.IntN(k) || i%k == k-1 {
					x[i] = float32(most*(1-2*rng.IntN(2))) / 4096
				}
			}
			return x
		}
		a, b, c := draw(m), draw(n), guarded(t, m*n)
		var bank Bank
		bank.Reset(n, k, true)
		for panel := range (n + byteRows - 1) / byteRows {
			bank.Set(panel, b[panel*byteRows*k:min((panel+1)*byteRows, n)*k])
		}
		left := NewLeft(a, k, true)
		left.Set(0, m)
		clear(bank.scale) // and with it the errors
		for j := range n {
			bank.scale[j/byteRows*2*byteRows+j%byteRows] = 1
		}
		for i := range m {
			left.scale[2*i] = 1
		}
		bank.Times(left, 0, m, 0, n, c)
		for i := range m {
			for j := range n {
				var want float32
				for p := range k {
					want += a[i*k+p] * b[j*k+p] * (1 << 24) // exact
				}
				if c[i*n+j] != want {
					t.Fatalf("[%d, %d] of %d×%d×%d is %g, want %g", i, j, m, n, k, c[i*n+j], want)
				}
			}
		}
	})
}

// TestSquaredDistancesGradient compares it with plain float64, with and without the
// rows and the gradient by X.
func TestSquaredDistancesGradient(t *testing.T) {
	forEach(t, func(t *testing.T, s set) {
		p := s.products()
		check(t, func(r *rapid.T) {
			n, b, d := rapid.IntRange(1, 60).Draw(r, "n"), rapid.IntRange(1, 140).Draw(r, "b"), rapid.IntRange(1, 140).Draw(r, "d")
			rng := rngOf(r)
			c, x, w, byC, byX := normals(t, rng, n*d), normals(t, rng, d*b), normals(t, rng, n*b), normals(t, rng, n), normals(t, rng, b)
			gC, gX, wantC, wantX := guarded(t, n*d), guarded(t, d*b), make([]float64, n*d), make([]float64, d*b)
			plainProducts[float64]{}.SquaredDistancesGradient(n, b, d, inFloat64(c), inFloat64(x), nil, inFloat64(w), inFloat64(byC), inFloat64(byX), wantC, wantX)
			rounding := func(int) float64 { return 1e-4 }

			p.SquaredDistancesGradient(n, b, d, c, x, nil, w, byC, byX, gC, gX)
			near(r, "gradient by C", gC, wantC, rounding)
			near(r, "gradient by X", gX, wantX, rounding)

			rows := guarded(t, b*d)
			s.vectors.Transpose(rows, x, d, b)
			clear(gC)
			p.SquaredDistancesGradient(n, b, d, c, nil, rows, w, byC, byX, gC, nil)
			near(r, "gradient by C from rows", gC, wantC, rounding)
		})
	})
}

// TestProductsPropagate: a NaN or infinity in A reaches its row of C and no
// other.
func TestProductsPropagate(t *testing.T) {
	forEach(t, func(t *testing.T, s set) {
		const m, n, k = 19, 21, 5
		for _, odd := range []float64{math.NaN(), math.Inf(1)} {
			rng := rand.New(rand.NewPCG(1, 1))
			a, b, c := normals(t, rng, m*k), normals(t, rng, n*k), guarded(t, m*n)
			a[17*k+3] = float32(odd)
			s.products().NT(m, n, k, 1, a, b, 0, c)
			for i, v := range c {
				finite := !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0)
				if finite != (i/n != 17) || math.IsNaN(odd) && !finite && !math.IsNaN(float64(v)) {
					t.Fatalf("%g in row 17 makes C[%d,%d] = %g", odd, i/n, i%n, v)
				}
			}
		}
	})
}

// TestDistances compares Σ|x−c| and its gradient with plain float64.
func TestDistances(t *testing.T) {
	forEach(t, func(t *testing.T, s set) {
		p, exact := s.products(), plainProducts[float64]{}
		check(t, func(r *rapid.T) {
			m, n, k := rapid.IntRange(1, 40).Draw(r, "m"), rapid.IntRange(1, 140).Draw(r, "n"), rapid.IntRange(1, 60).Draw(r, "k")
			rng := rngOf(r)
			x, c, g := normals(t, rng, m*k), normals(t, rng, n*k), normals(t, rng, m*n)
			copy(c, x[:min(k, 3)]) // ties
			dist, gX, gC := guarded(t, m*n), guarded(t, m*k), guarded(t, n*k)
			wantDist, wantX, wantC := make([]float64, m*n), make([]float64, m*k), make([]float64, n*k)
			exact.Distances(m, n, k, inFloat64(x), inFloat64(c), wantDist)
			exact.DistancesGradient(m, n, k, inFloat64(x), inFloat64(c), inFloat64(g), wantX, wantC)
			p.Distances(m, n, k, x, c, dist)
			near(r, "distance", dist, wantDist, func(i int) float64 { return 1e-6 * float64(k) })
			p.DistancesGradient(m, n, k, x, c, g, gX, gC)
			near(r, "gradient by x", gX, wantX, func(i int) float64 { return 1e-6 * float64(n) })
			near(r, "gradient by c", gC, wantC, func(i int) float64 { return 1e-6 * float64(m) })
			clear(gX)
			p.DistancesGradient(m, n, k, x, c, g, gX, nil)
			near(r, "gradient by x alone", gX, wantX, func(i int) float64 { return 1e-6 * float64(n) })
		})
	})
}

// ulp is the distance of neighbouring float32s at v, within the range of float32.
func ulp(v float64) float64 {
	if math.Abs(v) < 0x1p-126 || math.IsNaN(v) {
		return 0x1p-149
	}
	_, e := math.Frexp(v)
	return math.Ldexp(1, e-24)
}

// TestFunctions checks the elementary functions to 2 units in the last place
// over all magnitudes, 0, denormal numbers, infinities and NaN among them.
func TestFunctions(t *testing.T) {
	var xs []float32
	for i := uint32(0); i < 1<<16; i++ { // every sign and exponent, 128 fractions
		xs = append(xs, math.Float32frombits(i<<16|i*2654435761>>16))
	}
	for x := -110.0; x < 95; x += 1.0 / 128 {
		xs = append(xs, float32(x))
	}
	for x := 0.5; x < 2; x += 1.0 / 4096 {
		xs = append(xs, float32(x))
	}
	for _, x := range []float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), 1, 0x1p-149, 0x1p-126, math.MaxFloat32} {
		xs = append(xs, float32(x))
	}
	forEach(t, func(t *testing.T, s set) {
		for _, f := range []struct {
			name string
			get  func(dst, src []float32)
			want func(float64) float64
		}{
			{"exp", s.vectors.Exp, math.Exp},
			{"log", s.vectors.Log, math.Log},
			{"softplus", s.vectors.Softplus, Softplus},
			{"sigmoid", s.vectors.Sigmoid, sigmoid},
		} {
			got, worst := make([]float32, len(xs)), 0.0
			f.get(got, xs)
			for i, x := range xs {
				w, g := f.want(float64(x)), float64(got[i])
				if g == w || math.IsNaN(g) && math.IsNaN(w) || float32(w) == got[i] {
					continue
				}
				e := math.Abs(g-w) / ulp(w)
				if worst = max(worst, e); !(e <= 2) {
					t.Fatalf("%s(%g) = %g, want %g", f.name, x, g, w)
				}
			}
			t.Logf("%s: at most %.2f ulp", f.name, worst)
			inPlace := guarded(t, 19)
			copy(inPlace, xs[1<<16:])
			f.get(inPlace, inPlace)
			near(t, f.name+" in place", inPlace, inFloat64(got[1<<16:1<<16+19]), func(int) float64 { return 0 })
		}
	})
}

// TestRows compares the row-by-row kernels with plain float64.
func TestRows(t *testing.T) {
	forEach(t, func(t *testing.T, s set) {
		v, exact := s.vectors, plainVectors[float64]{}
		check(t, func(r *rapid.T) {
			n, b := rapid.IntRange(1, 9).Draw(r, "n"), rapid.IntRange(1, 170).Draw(r, "b")
			rng := rngOf(r)
			matrix, other := normals(t, rng, n*b), normals(t, rng, n*b)
			rows, more, columns := normals(t, rng, n), normals(t, rng, n), normals(t, rng, b)
			rounding := func(int) float64 { return 1e-5 }

			got, want := guarded(t, n), make([]float64, n)
			v.SumSquares(got, matrix)
			exact.SumSquares(want, inFloat64(matrix))
			near(r, "sum of squares", got, want, func(i int) float64 { return 1e-6 * want[i] })

			perColumn, wantColumns := guarded(t, b), make([]float64, b)
			v.SumSquaresOfColumns(perColumn, matrix)
			exact.SumSquaresOfColumns(wantColumns, inFloat64(matrix))
			near(r, "sum of squares of columns", perColumn, wantColumns, func(j int) float64 { return 1e-6 * wantColumns[j] })

			dst, wantDst := guarded(t, n*b), inFloat64(matrix)
			copy(dst, matrix)
			v.Multiply(dst, other)
			exact.Multiply(wantDst, inFloat64(other))
			near(r, "multiplied", dst, wantDst, rounding)
			v.Add(dst, other)
			exact.Add(wantDst, inFloat64(other))
			near(r, "added", dst, wantDst, rounding)

			dist := guarded(t, n*b)
			copy(dist, matrix)
			wantDist := inFloat64(matrix)
			v.SquaredDistances(dist, rows, columns)
			exact.SquaredDistances(wantDist, inFloat64(rows), inFloat64(columns))
			near(r, "squared distance", dist, wantDist, rounding)

			v.LogPhi(dst, matrix, rows, columns)
			exact.LogPhi(wantDst, inFloat64(matrix), inFloat64(rows), inFloat64(columns))
			near(r, "log φ", dst, wantDst, rounding)

			g, perRow, perRow2, perColumn, perColumn2 := guarded(t, n*b), guarded(t, n), guarded(t, n), guarded(t, b), guarded(t, b)
			w1, w2, w3, w4, w5 := make([]float64, n*b), make([]float64, n), make([]float64, n), make([]float64, b), make([]float64, b)
			v.Backward(g, perRow, perRow2, perColumn, perColumn2, matrix, other, rows, more)
			exact.Backward(w1, w2, w3, w4, w5, inFloat64(matrix), inFloat64(other), inFloat64(rows), inFloat64(more))
			inPlace := guarded(t, n*b)
			copy(inPlace, matrix)
			v.Backward(inPlace, guarded(t, n), guarded(t, n), guarded(t, b), guarded(t, b), inPlace, other, rows, more)
			near(r, "backward in place", inPlace, inFloat64(g), func(int) float64 { return 0 })
			for i, pair := range []struct {
				got  []float32
				want []float64
			}{{g, w1}, {perRow, w2}, {perRow2, w3}, {perColumn, w4}, {perColumn2, w5}} {
				near(r, fmt.Sprintf("backward %d", i), pair.got, pair.want, func(int) float64 { return 1e-4 })
			}
		})
	})
}

// TestTranspose transposes a matrix of numbers that encode their place.
func TestTranspose(t *testing.T) {
	forEach(t, func(t *testing.T, s set) {
		check(t, func(r *rapid.T) {
			rows, cols := rapid.IntRange(1, 70).Draw(r, "rows"), rapid.IntRange(1, 70).Draw(r, "cols")
			src, dst := guarded(t, rows*cols), guarded(t, rows*cols)
			for i := range src {
				src[i] = float32(i)
			}
			s.vectors.Transpose(dst, src, rows, cols)
			for i := range rows {
				for j := range cols {
					if dst[j*rows+i] != src[i*cols+j] {
						r.Fatalf("[%d,%d] of %d×%d: %g, want %g", i, j, rows, cols, dst[j*rows+i], src[i*cols+j])
					}
				}
			}
		})
	})
}

// TestSoftmax compares the softmax of columns and its gradient with plain float64.
func TestSoftmax(t *testing.T) {
	forEach(t, func(t *testing.T, s set) {
		check(t, func(r *rapid.T) {
			n, b := rapid.IntRange(1, 30).Draw(r, "n"), rapid.IntRange(1, 40).Draw(r, "b")
			rng := rngOf(r)
			l, g := normals(t, rng, n*b), normals(t, rng, n*b)
			for i := range l {
				l[i] *= 30
			}
			share, norm, sum := guarded(t, n*b), guarded(t, b), guarded(t, b)
			wantShare, wantNorm, wantSum := make([]float64, n*b), make([]float64, b), make([]float64, b)
			s.vectors.Softmax(share, norm, l)
			plainVectors[float64]{}.Softmax(wantShare, wantNorm, inFloat64(l))
			near(r, "share", share, wantShare, func(i int) float64 { return 1e-5*wantShare[i] + tiny })
			near(r, "norm", norm, wantNorm, func(i int) float64 { return 1e-6 * (1 + math.Abs(wantNorm[i])) })
			wantG := inFloat64(g)
			plainVectors[float64]{}.SoftmaxBackward(wantG, wantSum, wantShare)
			s.vectors.SoftmaxBackward(g, sum, share)
			near(r, "gradient", g, wantG, func(int) float64 { return 1e-4 })
			near(r, "sum", sum, wantSum, func(int) float64 { return 1e-5 })
		})
	})
}

// TestActivate has ties, huge distances, and columns of NaN alone.
func TestActivate(t *testing.T) {
	forEach(t, func(t *testing.T, s set) {
		v, exact := s.vectors, plainVectors[float64]{}
		check(t, func(r *rapid.T) {
			n, b := rapid.IntRange(1, 9).Draw(r, "n"), rapid.IntRange(1, 70).Draw(r, "b")
			rng := rngOf(r)
			dist, logRatio, width, limit := guarded(t, n*b), guarded(t, n), guarded(t, n), normals(t, rng, b)
			for i := range dist {
				dist[i] = float32(rng.IntN(4)) // ties
			}
			for c := range n {
				width[c], logRatio[c] = 1, float32(rng.IntN(2))
			}
			for i := range rng.IntN(3) {
				dist[rng.IntN(n*b)] = []float32{float32(math.Inf(1)), 1e30, 200}[i]
			}
			dst, top, largest := guarded(t, n*b), guarded(t, b), make([]int32, b)
			wantDst, wantTop, wantLargest := make([]float64, n*b), make([]float64, b), make([]int32, b)
			v.Activate(dst, top, largest, dist, logRatio, width, limit)
			exact.Activate(wantDst, wantTop, wantLargest, inFloat64(dist), inFloat64(logRatio), inFloat64(width), inFloat64(limit))
			near(r, "activation", dst, wantDst, func(i int) float64 { return 1e-6*wantDst[i] + tiny })
			near(r, "top", top, wantTop, func(i int) float64 { return 1e-6 * (1 + math.Abs(wantTop[i])) })
			for i, at := range largest {
				if at != wantLargest[i] && dst[int(at)*b+i] != dst[int(wantLargest[i])*b+i] { // equal only once rounded
					r.Fatalf("column %d: largest %d, want %d", i, at, wantLargest[i])
				}
			}
		})
		const n = 21
		dist, ones, dst := guarded(t, n), guarded(t, n), guarded(t, n)
		for i := range n {
			dist[i], ones[i] = float32(math.NaN()), 1
		}
		largest := []int32{-1}
		s.vectors.Activate(dst, guarded(t, 1), largest, dist, ones, ones, ones[:1])
		if largest[0] != 0 || !math.IsNaN(float64(dst[0])) || !math.IsNaN(float64(dst[n-1])) {
			t.Errorf("of NaN alone: largest %d, %v", largest[0], dst)
		}
	})
}

// TestLogBCE has values from certainty to −∞.
func TestLogBCE(t *testing.T) {
	forEach(t, func(t *testing.T, s set) {
		check(t, func(r *rapid.T) {
			n, b := rapid.IntRange(1, 5).Draw(r, "n"), rapid.IntRange(1, 70).Draw(r, "b")
			rng := rngOf(r)
			logY, labels := guarded(t, n*b), make([]int, b)
			for i := range logY {
				logY[i] = -float32(math.Exp(rng.Float64()*26 - 20)) // -2e-9 to -400
			}
			for i := range rng.IntN(3) {
				logY[rng.IntN(n*b)] = []float32{0, float32(math.Inf(-1))}[i]
			}
			for i := range labels {
				labels[i] = rng.IntN(n)
				logY[labels[i]*b+i] = -1
			}
			grad, want := guarded(t, n*b), make([]float64, n*b)
			sum := s.vectors.LogBCE(grad, logY, labels, 1e-6, 0.5)
			wantSum := plainVectors[float64]{}.LogBCE(want, inFloat64(logY), labels, float64(float32(1e-6)), 0.5)
			// logY − shift is rounded, and the slope is e to the power of it.
			near(r, "gradient", grad, want, func(i int) float64 {
				return (5e-7+2e-7*math.Abs(float64(logY[i])))*math.Abs(want[i]) + tiny
			})
			if math.Abs(sum-wantSum) > 2e-6*wantSum {
				r.Fatalf("sum %g, want %g", sum, wantSum)
			}
			if alone := s.vectors.LogBCE(nil, logY, labels, 1e-6, 0.5); alone != sum {
				r.Fatalf("without gradient %g, with %g", alone, sum)
			}
			if s.vectors.LogBCE(logY, logY, labels, 1e-6, 0.5); !slices.Equal(logY, grad) {
				r.Fatalf("gradient in place %v, beside %v", logY, grad)
			}
		})
		logY := guarded(t, 3)
		logY[0], logY[1], logY[2] = -1, -1, float32(math.NaN())
		for _, labels := range [][]int{{0}, {0, 0, 0}} { // as one column and as one row
			if sum := s.vectors.LogBCE(nil, logY, labels, 1e-6, 1); !math.IsNaN(sum) {
				t.Errorf("the loss of NaN is %g", sum)
			}
		}
	})
}

func TestAdam(t *testing.T) {
	forEach(t, func(t *testing.T, s set) {
		check(t, func(r *rapid.T) {
			n := rapid.IntRange(1, 70).Draw(r, "n")
			rng := rngOf(r)
			p, g, m, v := normals(t, rng, n), normals(t, rng, n), normals(t, rng, n), guarded(t, n)
			for i := range v {
				v[i] = float32(math.Exp(40*rng.Float64() - 35))
				g[i] *= float32(math.Exp(-20 * rng.Float64()))
			}
			g[0], m[0], v[0] = 0, 0, 0
			wantP, wantM, wantV := inFloat64(p), inFloat64(m), inFloat64(v)
			plainVectors[float64]{}.Adam(wantP, inFloat64(g), wantM, wantV, 1e-3, 1.5)
			s.vectors.Adam(p, g, m, v, 1e-3, 1.5)
			near(r, "m", m, wantM, func(i int) float64 { return 2e-7 * (math.Abs(wantM[i]) + math.Abs(float64(g[i]))) })
			near(r, "v", v, wantV, func(i int) float64 { return 4e-7*wantV[i] + tiny })
			near(r, "p", p, wantP, func(i int) float64 {
				return 2e-7*math.Abs(wantP[i]) + 1e-6*math.Abs(1e-3*wantM[i]/(math.Sqrt(wantV[i])*1.5+1e-8)) + 1e-9
			})
		})
		p, g, m, v := guarded(t, 3), guarded(t, 3), guarded(t, 3), guarded(t, 3)
		g[1] = float32(math.NaN())
		s.vectors.Adam(p, g, m, v, 1e-3, 1)
		if p[0] != 0 || !math.IsNaN(float64(p[1])) || p[2] != 0 {
			t.Errorf("after a gradient of NaN: %v", p)
		}
		p, g, m, v = guarded(t, 1), guarded(t, 1), guarded(t, 1), guarded(t, 1)
		g[0] = 1e30 // its square overflows float32
		for range 3 {
			s.vectors.Adam(p, g, m, v, 1e-3, 1)
		}
		if math.IsNaN(float64(p[0])) {
			t.Errorf("after gradients of %g: %v", g[0], p)
		}
	})
}

// TestShortArguments: a kernel must not read or write memory outside its arguments.
func TestShortArguments(t *testing.T) {
	forEach(t, func(t *testing.T, s set) {
		x := func(n int) []float32 { return make([]float32, n) }
		for name, call := range map[string]func(){
			"NN":               func() { s.products().NN(3, 4, 5, 1, x(15), x(19), 0, x(12)) },
			"NT":               func() { s.products().NT(3, 4, 5, 1, x(14), x(20), 0, x(12)) },
			"TN":               func() { s.products().TN(3, 4, 5, 1, x(15), x(20), 0, x(11)) },
			"Distances":        func() { s.products().Distances(3, 4, 5, x(15), x(20), x(11)) },
			"Exp":              func() { s.vectors.Exp(x(5), x(4)) },
			"SumSquares":       func() { s.vectors.SumSquares(x(3), x(20)) },
			"SquaredDistances": func() { s.vectors.SquaredDistances(x(20), x(4), x(4)) },
			"Transpose":        func() { s.vectors.Transpose(x(20), x(19), 5, 4) },
			"Backward":         func() { s.vectors.Backward(x(20), x(5), x(5), x(4), x(3), x(20), x(20), x(5), x(5)) },
			"Softmax":          func() { s.vectors.Softmax(x(20), x(5), x(19)) },
			"LogBCE":           func() { s.vectors.LogBCE(x(19), x(20), make([]int, 4), 0, 1) },
			"Adam":             func() { s.vectors.Adam(x(5), x(5), x(5), x(4), 1, 1) },
			"SquaredDistancesGradient": func() { // X is needed for gX
				s.products().SquaredDistancesGradient(4, 3, 5, x(20), nil, x(15), x(12), x(4), x(3), x(20), x(15))
			},
		} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s takes an argument that is too short", name)
					}
				}()
				call()
			}()
		}
	})
}
