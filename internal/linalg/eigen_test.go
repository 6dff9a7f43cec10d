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

// TestEigen compares eigenvalues with gonum's, and checks that vectors satisfy
// their definition.
func TestEigen(t *testing.T) {
	diagonal := mat.NewSymDense(5, nil)
	for i, v := range []float64{3, -1, 0, 3, 2} {
		diagonal.SetSym(i, i, v)
	}
	for name, test := range map[string]struct {
		a     *mat.SymDense
		scale float64 // gonum does not scale very large or small values
	}{
		"one": {random(1, 1), 1}, "two": {random(2, 5), 1}, "few": {random(7, 9), 1}, "many": {random(150, 400), 1},
		"of low rank": {random(130, 20), 1}, "huge": {random(40, 50), 1e300}, "tiny": {random(40, 50), 1e-290},
		"zero": {mat.NewSymDense(6, nil), 1}, "diagonal": {diagonal, 1},
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
			for i, w := range want.Values(nil) {
				w *= test.scale
				if !(math.Abs(values[i]-w) <= 1e-13*size) {
					t.Errorf("eigenvalue %d is %g, want %g", i, values[i], w)
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
					if !(math.Abs(gram.At(i, j)-one) < 1e-13) {
						t.Fatalf("⟨v%d, v%d⟩ = %g", i, j, gram.At(i, j))
					}
					if !(math.Abs(av.At(i, j)-values[i]*v.At(i, j)) <= 1e-13*size) {
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
