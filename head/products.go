package head

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas32"
	"gonum.org/v1/gonum/blas/blas64"
)

// real is the arithmetic that a head is computed in: float32 to train, float64
// to score and to be held against finite differences.
type real interface{ float32 | float64 }

// products is the one place where matrix products happen, so that faster
// kernels have one seam to fit into. All matrices are row-major and dense.
type products[T real] struct {
	gemm func(tA, tB blas.Transpose, m, n, k int, alpha T, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int)
}

// productsOf returns the products of T by gonum's BLAS, or by whichever one
// the program has registered with blas32.Use and blas64.Use.
func productsOf[T real]() products[T] {
	var p any = products[float64]{blas64.Implementation().Dgemm}
	if _, single := any(T(0)).(float32); single {
		p = products[float32]{blas32.Implementation().Sgemm}
	}
	return p.(products[T])
}

// gonum's Gemm starts goroutines from four 64×64 blocks of C on, which
// allocates and gains nothing at a head's sizes. Slabs of at most three blocks
// keep a training step on its own goroutine and free of garbage.
const (
	slabRows = 64
	slabCols = 192
)

// nn computes C = alpha·A·B + beta·C with A [m,k], B [k,n], C [m,n].
func (p products[T]) nn(m, n, k int, alpha T, a, b []T, beta T, c []T) {
	for i := 0; i < m; i += slabRows {
		for j := 0; j < n; j += slabCols {
			p.gemm(blas.NoTrans, blas.NoTrans, min(slabRows, m-i), min(slabCols, n-j), k, alpha, a[i*k:], k, b[j:], n, beta, c[i*n+j:], n)
		}
	}
}

// nt computes C = alpha·A·Bᵀ + beta·C with A [m,k], B [n,k], C [m,n].
func (p products[T]) nt(m, n, k int, alpha T, a, b []T, beta T, c []T) {
	for i := 0; i < m; i += slabRows {
		for j := 0; j < n; j += slabCols {
			p.gemm(blas.NoTrans, blas.Trans, min(slabRows, m-i), min(slabCols, n-j), k, alpha, a[i*k:], k, b[j*k:], k, beta, c[i*n+j:], n)
		}
	}
}

// tn computes C = alpha·Aᵀ·B + beta·C with A [k,m], B [k,n], C [m,n].
func (p products[T]) tn(m, n, k int, alpha T, a, b []T, beta T, c []T) {
	for i := 0; i < m; i += slabRows {
		for j := 0; j < n; j += slabCols {
			p.gemm(blas.Trans, blas.NoTrans, min(slabRows, m-i), min(slabCols, n-j), k, alpha, a[i:], m, b[j:], n, beta, c[i*n+j:], n)
		}
	}
}
