// Package products is where the scores' and the moments' matrix products
// happen, so that faster kernels have one seam to fit into. Matrices are
// row-major and dense.
package products

import (
	"context"
	"runtime"

	"golang.org/x/sync/errgroup"
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
	"gonum.org/v1/gonum/blas/blas64"
)

// Real is a type that products are computed in.
type Real interface{ float32 | float64 }

// gonum's Gemm starts goroutines of its own from four 64×64 blocks on. Slabs of
// three stay on the calling goroutine: callers share out rows themselves.
const (
	slabRows = 64
	slabCols = 192
)

// NT sets C = A·Bᵀ with A [m,k], B [n,k], C [m,n].
func NT[T Real](m, n, k int, a, b, c []T) {
	slabs(m, n, func(i, j, rows, cols int) {
		gemm(blas.NoTrans, blas.Trans, rows, cols, k, a[i*k:], k, b[j*k:], k, 0, c[i*n+j:], n)
	})
}

// NN sets C = A·B with A [m,k], B [k,n], C [m,n].
func NN[T Real](m, n, k int, a, b, c []T) {
	slabs(m, n, func(i, j, rows, cols int) {
		gemm(blas.NoTrans, blas.NoTrans, rows, cols, k, a[i*k:], k, b[j:], n, 0, c[i*n+j:], n)
	})
}

// AddGram adds the upper triangle of XᵀX, X [n,d], to sum [d,d]. What it leaves
// below the diagonal is not defined. Tiles of the sum are shared out over all
// cores, so that the result does not depend on how many there are.
func AddGram(ctx context.Context, n, d int, x, sum []float64) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	slabs(d, d, func(i, j, rows, cols int) {
		if j+cols <= i {
			return // below the diagonal
		}
		group.Go(func() error {
			gemm(blas.Trans, blas.NoTrans, rows, cols, n, x[i:], d, x[j:], d, 1, sum[i*d+j:], d)
			return ctx.Err()
		})
	})
	return group.Wait()
}

func slabs(m, n int, each func(i, j, rows, cols int)) {
	for i := 0; i < m; i += slabRows {
		for j := 0; j < n; j += slabCols {
			each(i, j, min(slabRows, m-i), min(slabCols, n-j))
		}
	}
}

func gemm[T Real](tA, tB blas.Transpose, m, n, k int, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int) {
	switch a := any(a).(type) {
	case []float32:
		blas32.Implementation().Sgemm(tA, tB, m, n, k, 1, a, lda, any(b).([]float32), ldb, float32(beta), any(c).([]float32), ldc)
	case []float64:
		blas64.Implementation().Dgemm(tA, tB, m, n, k, 1, a, lda, any(b).([]float64), ldb, float64(beta), any(c).([]float64), ldc)
	}
}
