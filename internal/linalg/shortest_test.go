package linalg

import (
	"math"
	"math/rand/v2"
	"testing"

	"gonum.org/v1/gonum/mat"
)

// dense returns a matrix [n, m] of a rank. Its singular values fall slowly.
func dense(n, m, rank int) *mat.Dense {
	rng := rand.New(rand.NewPCG(uint64(n), uint64(m)))
	normal := func(n, m int) *mat.Dense {
		x := mat.NewDense(n, m, nil)
		for i := range n {
			for j := range m {
				x.Set(i, j, rng.NormFloat64()/math.Sqrt(float64(1+j)))
			}
		}
		return x
	}
	var a mat.Dense
	a.Mul(normal(n, rank), normal(rank, m))
	return &a
}

// TestShortest compares with the singular value decomposition, for matrices that are
// tall, wide, small and of low rank.
func TestShortest(t *testing.T) {
	t.Parallel()
	for _, size := range [][3]int{{3, 5, 3}, {300, 256, 256}, {300, 256, 40}, {256, 300, 256}} {
		a, b := dense(size[0], size[1], size[2]), dense(size[0], 1, 1)
		got, found := Shortest(a, mat.Col(nil, 0, b), 1e-12)
		var svd mat.SVD
		if !svd.Factorize(a, mat.SVDThin) || !found {
			t.Fatalf("%v: no singular values", size)
		}
		var want mat.Dense
		svd.SolveTo(&want, b, svd.Rank(1e-12))
		for j, v := range got {
			if !(math.Abs(v-want.At(j, 0)) <= 1e-8*mat.Norm(&want, 2)) {
				t.Fatalf("%v: x[%d] = %g, want %g", size, j, v, want.At(j, 0))
			}
		}
	}
	if x, found := Shortest(mat.NewDense(2, 2, nil), []float64{1, 1}, 1e-12); !found || x[0] != 0 || x[1] != 0 {
		t.Errorf("the shortest solution of nothing is %v", x)
	}
}

// TestAxes: the axes are orthonormal, and A's singular values fall along them.
func TestAxes(t *testing.T) {
	t.Parallel()
	for _, size := range [][2]int{{4, 6}, {6, 4}, {256, 300}, {300, 256}} {
		a := dense(size[0], size[1], min(size[0], size[1]))
		axes, found := Axes(a)
		if n, k := axes.Dims(); !found || n != size[0] || k != min(size[0], size[1]) {
			t.Fatalf("%v: axes [%d, %d], %v", size, n, k, found)
		}
		var svd mat.SVD
		if !svd.Factorize(a, mat.SVDNone) {
			t.Fatal("no singular values")
		}
		var gram, along mat.Dense
		gram.Mul(axes.T(), axes)
		along.Mul(axes.T(), a)
		for i, want := range svd.Values(nil) {
			for j := range i + 1 {
				one := 0.
				if i == j {
					one = 1
				}
				if !(math.Abs(gram.At(i, j)-one) < 1e-12) {
					t.Fatalf("%v: ⟨axis %d, axis %d⟩ = %g", size, i, j, gram.At(i, j))
				}
			}
			if got := mat.Norm(along.RowView(i), 2); !(math.Abs(got-want) < 1e-7*(1+want)) {
				t.Fatalf("%v: singular value %d is %g, want %g", size, i, got, want)
			}
		}
	}
}
