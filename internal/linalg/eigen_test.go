package linalg

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"gonum.org/v1/gonum/mat"
)

// random returns XᵀX/rank for normal X [rank, n].
func random(n, rank int) *mat.SymDense {
	rng := rand.New(rand.NewPCG(uint64(n), uint64(rank)))
	x := mat.NewDense(n, rank, nil)
	for i := range n {
		for j := range rank {
			x.Set(i, j, rng.NormFloat64())
		}
	}
	s := mat.NewSymDense(n, nil)
	s.SymOuterK(1/float64(rank), x)
	return s
}

// withSpectrum returns a matrix with these eigenvalues and vectors of no structure.
func withSpectrum(values []float64) *mat.SymDense {
	n := len(values)
	a := mat.NewDense(n, n, nil)
	for i, v := range values {
		a.Set(i, i, v)
	}
	rng := rand.New(rand.NewPCG(uint64(n), 7))
	for range 3 {
		v := mat.NewVecDense(n, nil)
		for i := range n {
			v.SetVec(i, rng.NormFloat64())
		}
		h := mat.NewDense(n, n, nil)
		h.Outer(-2/mat.Dot(v, v), v, v)
		for i := range n {
			h.Set(i, i, h.At(i, i)+1)
		}
		a.Mul(h, a)
		a.Mul(a, h.T())
	}
	s := mat.NewSymDense(n, nil)
	for i := range n {
		for j := i; j < n; j++ {
			s.SetSym(i, j, (a.At(i, j)+a.At(j, i))/2)
		}
	}
	return s
}

// spectrum returns n eigenvalues.
func spectrum(n int, of func(i int) float64) []float64 {
	values := make([]float64, n)
	for i := range values {
		values[i] = of(i)
	}
	return values
}

// wilkinson returns copies of Wilkinson's W21+, whose largest eigenvalues come in pairs
// that are nearly equal, with glue between them.
func wilkinson(copies int, glue float64) *mat.SymDense {
	a := mat.NewSymDense(21*copies, nil)
	for i := range 21 * copies {
		a.SetSym(i, i, math.Abs(float64(i%21-10)))
		if i%21 > 0 {
			a.SetSym(i-1, i, 1)
		} else if i > 0 {
			a.SetSym(i-1, i, glue)
		}
	}
	return a
}

// TestEigen compares eigenvalues with gonum's, and checks that vectors satisfy
// their definition.
func TestEigen(t *testing.T) {
	diagonal := mat.NewSymDense(5, nil)
	for i, v := range []float64{3, -1, 0, 3, 2} {
		diagonal.SetSym(i, i, v)
	}
	ones := mat.NewSymDense(97, nil)
	for i := range 97 {
		for j := range i + 1 {
			ones.SetSym(i, j, 1)
		}
	}
	for name, test := range map[string]struct {
		a     *mat.SymDense
		scale float64 // gonum does not scale very large or small values
	}{
		"one": {random(1, 1), 1}, "two": {random(2, 5), 1}, "three": {random(3, 5), 1}, "few": {random(7, 9), 1}, "many": {random(150, 400), 1},
		"one part": {random(32, 50), 1}, "two parts": {random(33, 50), 1}, "three parts": {random(65, 90), 1},
		"of low rank": {random(130, 20), 1}, "of rank one": {ones, 1}, "huge": {random(40, 50), 1e300}, "tiny": {random(40, 50), 1e-290},
		"denormal": {ones, 1e-320}, "denormal and large": {random(40, 50), 1e-310}, "zero": {mat.NewSymDense(6, nil), 1}, "large zero": {mat.NewSymDense(70, nil), 1}, "diagonal": {diagonal, 1},
		"repeated":    {withSpectrum(spectrum(131, func(i int) float64 { return float64(i % 3) })), 1},
		"clustered":   {withSpectrum(spectrum(131, func(i int) float64 { return float64(i%4) + 1e-14*float64(i) })), 1},
		"near":        {withSpectrum(spectrum(131, func(i int) float64 { return 1 + 1e-9*float64(i) })), 1},
		"graded":      {withSpectrum(spectrum(131, func(i int) float64 { return math.Pow(10, -float64(i)/4) })), 1},
		"both signs":  {withSpectrum(spectrum(131, func(i int) float64 { return float64(i - 65) })), 1},
		"tridiagonal": {wilkinson(5, 1), 1}, "glued": {wilkinson(5, 1e-8), 1}, "hardly glued": {wilkinson(5, 1e-14), 1}, "not glued": {wilkinson(5, 0), 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := test.a.SymmetricDim()
			var want mat.EigenSym
			if !want.Factorize(test.a, false) {
				t.Fatal("gonum fails")
			}
			a := mat.NewSymDense(n, nil)
			a.ScaleSym(test.scale, test.a)
			values, v, err := Eigen(a)
			if err != nil {
				t.Fatal(err)
			}
			size := max(math.Abs(values[0]), math.Abs(values[n-1]))
			smallest := 5e-324 * float64(n) // what products of denormal numbers are rounded to
			for i, w := range want.Values(nil) {
				w *= test.scale
				if !(math.Abs(values[i]-w) <= 1e-13*size+smallest) {
					t.Errorf("eigenvalue %d is %g, want %g", i, values[i], w)
				}
				if i > 0 && values[i] < values[i-1] {
					t.Errorf("eigenvalue %d is less than the one before", i)
				}
			}
			var gram, av mat.Dense
			gram.Mul(v, v.T())
			av.Mul(v, a)
			for i := range n {
				for j := range n {
					one := 0.
					if i == j {
						one = 1
					}
					if !(math.Abs(gram.At(i, j)-one) < 3e-14) {
						t.Fatalf("⟨v%d, v%d⟩ = %g", i, j, gram.At(i, j))
					}
					if !(math.Abs(av.At(i, j)-values[i]*v.At(i, j)) <= 3e-14*size+smallest) {
						t.Fatalf("(Av)[%d, %d] = %g, λv is %g", i, j, av.At(i, j), values[i]*v.At(i, j))
					}
				}
			}
		})
	}
}

func TestEigenOfNoNumbers(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		a := random(4, 9)
		a.SetSym(1, 2, v)
		if _, _, err := Eigen(a); err == nil {
			t.Errorf("no error of a matrix with %g", v)
		}
	}
}

// TestEigenOnCores: results are bit-identical on any number of cores.
func TestEigenOnCores(t *testing.T) {
	a := random(200, 300)
	_, want, err := Eigen(a)
	if err != nil {
		t.Fatal(err)
	}
	for _, cores := range []int{1, 3} {
		func() {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(cores))
			_, got, err := Eigen(a)
			if err != nil || !mat.Equal(got, want) {
				t.Errorf("%d cores find other vectors (%v)", cores, err)
			}
		}()
	}
}

func BenchmarkEigen(b *testing.B) {
	for _, n := range []int{512, 768, 1280} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			a := random(n, 2*n)
			for b.Loop() {
				if _, _, err := Eigen(a); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
