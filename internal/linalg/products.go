// Package linalg is the linear algebra that conditionings and scores need:
// products of matrices, means and covariances of feature rows, and eigenvectors
// of symmetric matrices. It works on all cores with the arithmetic of package
// kernels; what it computes does not depend on how many cores there are.
package linalg

import (
	"sync"

	"gonum.org/v1/gonum/blas"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

// Real is a type that products are computed in.
type Real = kernels.Real

// NT sets C = A·Bᵀ with A [m,k], B [n,k], C [m,n]. Matrices are row-major and
// dense. Any number of goroutines may call it and NN.
func NT[T Real](m, n, k int, a, b, c []T) {
	borrow(func(p kernels.Products[T]) { p.NT(m, n, k, 1, a, b, 0, c) })
}

// NN sets C = A·B with A [m,k], B [k,n], C [m,n].
func NN[T Real](m, n, k int, a, b, c []T) {
	borrow(func(p kernels.Products[T]) { p.NN(m, n, k, 1, a, b, 0, c) })
}

// idle32 and idle64 hold kernels between calls: each serves one goroutine at a time
// and has buffers to reuse.
var idle32, idle64 sync.Pool

func borrow[T Real](do func(kernels.Products[T])) {
	pool := &idle32
	if _, wide := any(T(0)).(float64); wide {
		pool = &idle64
	}
	p, ok := pool.Get().(kernels.Products[T])
	if !ok {
		p = kernels.NewProducts[T]()
	}
	defer pool.Put(p)
	do(p)
}

// addGram adds the upper triangle of XᵀX, X [n,d], to sum [d,d], on all cores;
// the result does not depend on how many there are.
func addGram(n, d int, x, sum []float64) {
	kernels.BLAS{}.Dsyrk(blas.Upper, blas.Trans, d, n, 1, x, d, 1, sum, d)
}
