// Package products is where the scores' and the moments' matrix products
// happen: those of the package kernels, for any number of goroutines. Matrices
// are row-major and dense.
package products

import (
	"context"
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"

	"mlrbfn/internal/kernels"
)

// Real is a type that products are computed in.
type Real = kernels.Real

// NT sets C = A·Bᵀ with A [m,k], B [n,k], C [m,n].
func NT[T Real](m, n, k int, a, b, c []T) {
	borrow(func(p kernels.Products[T]) { p.NT(m, n, k, 1, a, b, 0, c) })
}

// NN sets C = A·B with A [m,k], B [k,n], C [m,n].
func NN[T Real](m, n, k int, a, b, c []T) {
	borrow(func(p kernels.Products[T]) { p.NN(m, n, k, 1, a, b, 0, c) })
}

// idle32 and idle64 hold products between calls, as each serves one
// goroutine and keeps room to work in.
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

// AddGram adds the upper triangle of XᵀX, X [n,d], to sum [d,d]. What it leaves
// below the diagonal is not defined. Tiles of the sum are shared out over all
// cores, so that the result does not depend on how many there are.
func AddGram(ctx context.Context, n, d int, x, sum []float64) error {
	// gonum computes tiles of this size on the calling goroutine.
	const tileRows, tileCols = 64, 192
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i := 0; i < d; i += tileRows {
		for j := 0; j < d; j += tileCols {
			rows, cols := min(tileRows, d-i), min(tileCols, d-j)
			if j+cols <= i {
				continue // below the diagonal
			}
			group.Go(func() error {
				blas64.Implementation().Dgemm(blas.Trans, blas.NoTrans, rows, cols, n, 1, x[i:], d, x[j:], d, 1, sum[i*d+j:], d)
				return ctx.Err()
			})
		}
	}
	return group.Wait()
}
