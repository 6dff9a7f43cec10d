// Package kernels does the arithmetic of training a head (matrix products and
// elementwise operations) and the matrix products of scores. All matrices are
// row-major.
//
// Assembly that asm generates computes float32, and matrix products of float64,
// with AVX-512 or AVX2 and FMA if the processor has them, and with NEON on arm64.
// Plain Go computes everything else, and everything with the build tag noasm. The
// environment variable MLRBFN_KERNELS=amx|avx512|avx2|neon|go chooses a set of kernels;
// amx is avx512 with the tiles of AMX for coarse products, which are of bytes there, as
// with avx2. It is read when a kernel is first needed. Check reports a value that the
// processor or the build does not have; the fastest kernels are then used.
//
// One set of kernels gives the same results on every machine and in every run. Two
// sets differ by rounding. Also, the assembly of amd64, except the elementary
// functions, treats numbers below 2⁻¹²⁶ as 0.
package kernels

//go:generate go run -C asm . -out ../kernels_amd64.s -declarations ../stubs_amd64.go
//go:generate go run -C asm . -float64 -out ../float64_amd64.s -declarations ../float64stubs_amd64.go
//go:generate go run -C asm ./neon -out ../kernels_arm64.s -declarations ../stubs_arm64.go
//go:generate go run -C asm ./neon -float64 -out ../float64_arm64.s -declarations ../float64stubs_arm64.go

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
)

// Real is the type to compute in: float32 for training, float64 for scoring and for
// tests against finite differences.
type Real interface{ float32 | float64 }

// Convert copies src to dst in another type.
func Convert[To, From Real](dst []To, src []From) {
	for i, v := range src {
		dst[i] = To(v)
	}
}

// Converted returns a copy of src in another type.
func Converted[To, From Real](src []From) []To {
	dst := make([]To, len(src))
	Convert(dst, src)
	return dst
}

// Products are the kernels that contract two matrices. They reuse buffers, so that
// only the first call of a size allocates, and serve one goroutine. They panic if a
// matrix is too short for its sizes.
type Products[T Real] interface {
	// NN computes C = alpha·A·B + beta·C with A [m,k], B [k,n], C [m,n].
	// With beta = 0 it does not read C.
	NN(m, n, k int, alpha T, a, b []T, beta T, c []T)
	// NT computes C = alpha·A·Bᵀ + beta·C with A [m,k], B [n,k], C [m,n].
	NT(m, n, k int, alpha T, a, b []T, beta T, c []T)
	// TN computes C = alpha·Aᵀ·B + beta·C with A [k,m], B [k,n], C [m,n].
	TN(m, n, k int, alpha T, a, b []T, beta T, c []T)

	// SquaredDistancesGradient computes gradients from W [n,b], the gradient by
	// the squared distances of the rows of C [n,d] from the columns of X [d,b]:
	// gC = 2(byC∘C − W·Xᵀ) [n,d] and, unless nil, gX = 2(X∘byX − Cᵀ·W) [d,b].
	// byC [n] and byX [b] are the sums of W's rows and columns. rows [b,d] is Xᵀ
	// or nil; X may be nil if rows is given and gX is nil.
	SquaredDistancesGradient(n, b, d int, c, x, rows, w, byC, byX, gC, gX []T)

	// Distances fills dist [m,n] with Σ_j |x_j−c_j| for the rows x of X [m,k]
	// and c of C [n,k].
	Distances(m, n, k int, x, c, dist []T)
	// DistancesGradient computes, from the gradient g [m,n] by the result of
	// Distances, the gradients gX [m,k] and, unless nil, gC [n,k]. |x−c| has the
	// slope 0 at x = c.
	DistancesGradient(m, n, k int, x, c, g, gX, gC []T)
}

// Vectors are the elementwise kernels. Those of a layer take [n,b]: a row for each
// centroid, or class, and a column for each row of the batch, so that vectors are
// full for any n. They are accurate to 2 units in the last place. They panic if
// lengths do not fit. dst may be a source only where the comment says so.
type Vectors[T Real] interface {
	// Exp, Log, Softplus and Sigmoid set dst [n] to eˣ, log x, log(1+eˣ) and
	// 1/(1+e⁻ˣ) of src [n], which may be dst.
	Exp(dst, src []T)
	Log(dst, src []T)
	Softplus(dst, src []T)
	Sigmoid(dst, src []T)

	// Add adds src [n] to dst [n], and Multiply multiplies dst by it.
	Add(dst, src []T)
	Multiply(dst, src []T)
	// Transpose sets dst [cols,rows] to the transpose of src [rows,cols].
	Transpose(dst, src []T, rows, cols int)
	// SumSquares sets dst [m] to ‖x‖² of the rows of x [m,d], and
	// SumSquaresOfColumns dst [d] to those of the columns.
	SumSquares(dst, x []T)
	SumSquaresOfColumns(dst, x []T)

	// SquaredDistances adds csq [n] and xsq [b] to the products −2c·x in dist
	// [n,b], which gives ‖x−c‖². Negative results of rounding become 0.
	SquaredDistances(dist, csq, xsq []T)
	// LogPhi sets dst [n,b] to limit − width·dist, with dist [n,b], width [n]
	// and limit [b].
	LogPhi(dst, dist, width, limit []T)
	// Activate sets dst [n,b] to the exponentials of logRatio − width·dist +
	// limit, top [b] to the largest such number of each column and largest
	// [b] to the first row where it is, with logRatio and width [n] and limit
	// [b].
	Activate(dst, top []T, largest []int32, dist, logRatio, width, limit []T)
	// Backward computes gDist = −width·g [n,b], which may be g, from g [n,b], the
	// gradient by limit − width·dist + log(width). It sets gWidth to
	// Σ_b g·(inverse − dist) and sumDist to Σ_b gDist, all [n], and gLimit and
	// perColumn [b] to the columns' sums of g and gDist. inverse [n] is 1/width,
	// or 0 without the term log(width).
	Backward(gDist, gWidth, sumDist, gLimit, perColumn, g, dist, width, inverse []T)

	// Softmax sets dst [n,b] to e^{l−norm} with norm [b] = log Σ_c e^l, a
	// softmax of each column of l [n,b], which may be dst.
	Softmax(dst, norm, l []T)
	// SoftmaxBackward replaces g [n,b], the gradient by l − norm, by the gradient
	// by l, g − share·Σ_c g, where share [n,b] is the softmax. It sets sum [b] to
	// Σ_c g.
	SoftmaxBackward(g, sum, share []T)
	// LogBCE returns Σ −l for each column's label and Σ −log(1−eˡ) for the
	// other rows, with l = logY − shift < 0, logY [n,b]. grad [n,b], which may
	// be logY, receives the derivatives times scale unless it is nil.
	LogBCE(grad, logY []T, labels []int, shift, scale T) float64
	// Adam takes one step of Adam with β₁ = 0.9, β₂ = 0.999 and ε = 1e-8 on
	// the parameters p [n] with their gradients g, and updates the moments m and v:
	// p −= size·m/(√v·scale + ε).
	Adam(p, g, m, v []T, size, scale T)
}

// NewProducts returns products for one goroutine.
func NewProducts[T Real]() Products[T] {
	if p, ok := any(chosen().products()).(Products[T]); ok {
		return p
	}
	return any(float64Products{float64Kernels: &chosen().f64}).(Products[T])
}

// VectorsOf returns the vector kernels of T.
func VectorsOf[T Real]() Vectors[T] {
	if v, ok := any(chosen().vectors).(Vectors[T]); ok {
		return v
	}
	return plainVectors[T]{}
}

// Name returns the kernels that float32 uses: avx512, avx2, neon or go.
func Name() string { return chosen().kernels }

// Names lists the kernels of float32 that this machine and build have, the fastest
// first; amx is not one of them.
func Names() []string { return namesOf(available(false)) }

// Set returns the name of the set in use: amx, or what Name returns.
func Set() string { return chosen().name }

// Sets lists the sets that this machine and build have, the fastest first.
func Sets() []string { return namesOf(available(true)) }

func namesOf(sets []set) (names []string) {
	for _, s := range sets {
		names = append(names, s.name)
	}
	return names
}

// set is one implementation for float32.
type set struct {
	name     string
	kernels  string // those of float32
	products func() Products[float32]
	vectors  Vectors[float32]
}

// plain is the set that every machine has.
var plain = set{
	name:     "go",
	kernels:  "go",
	products: func() Products[float32] { return &plainProducts[float32]{} },
	vectors:  plainVectors[float32]{},
}

// available lists the sets that this machine can run, the fastest first.
func available(amx bool) []set { return append(assembled(amx), plain) }

// Variable is the name of the environment variable that chooses kernels.
const Variable = "MLRBFN_KERNELS"

// choice holds the kernels of a process.
type choice struct {
	set
	f64 float64Kernels
	err error // what is wrong with the environment variable
}

// chosen returns the kernels to use, which the first call chooses.
var chosen = sync.OnceValue(func() *choice { return choose(os.Getenv(Variable)) })

func choose(name string) *choice {
	sets := available(!slices.Contains([]string{"avx512", "avx2", "neon", "go"}, name))
	for _, s := range sets {
		if name == "" || name == s.name {
			return &choice{s, float64Of(s.name), nil}
		}
	}
	err := fmt.Errorf("%s=%s: this machine and build have %s", Variable, name, strings.Join(namesOf(sets), ", "))
	return &choice{sets[0], float64Of(sets[0].name), err}
}

// Check reports a value of the environment variable MLRBFN_KERNELS that this
// machine or build does not have.
func Check() error { return chosen().err }

// fits reports whether there is anything to contract, and panics if a matrix is too
// short for its sizes. If k is 0 it scales c.
func fits[T Real](m, n, k int, beta T, a, b, c []T) bool {
	if len(a) < m*k || len(b) < n*k || len(c) < m*n {
		panic("kernels: a matrix is too short for its sizes")
	}
	if k == 0 {
		for i := range c[:m*n] {
			if beta == 0 {
				c[i] = 0
			} else {
				c[i] *= beta
			}
		}
	}
	return m > 0 && n > 0 && k > 0
}
