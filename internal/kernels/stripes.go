package kernels

import (
	"runtime"

	"github.com/mlrbfn/mlrbfn/internal/parallel"
)

// A Sweep is a sequence of rotations of neighbouring rows, from its last row to its
// first: row i+1 becomes s_i·z_i + c_i·z_{i+1}, and row i becomes c_i·z_i −
// s_i·z_{i+1}.
type Sweep struct {
	First int       // the row that the last rotation ends at
	C, S  []float64 // [n]; rotation i is that of the rows First+i and First+i+1
}

// Stripes are a matrix [n, cols], stripe after stripe of columns, each as [n,
// Width].
type Stripes struct {
	N, Cols, Width int
	Data           []float64
}

// NewStripes returns a matrix of zeros.
func NewStripes(n, cols int) *Stripes {
	w := chosen().f64.stripe
	return &Stripes{n, cols, w, make([]float64, (cols+w-1)/w*w*n)}
}

// At returns the address of an element.
func (z *Stripes) At(i, j int) *float64 {
	return &z.Data[j/z.Width*z.Width*z.N+i*z.Width+j%z.Width]
}

// Rotate applies the sweeps one after the other, on all cores.
func (z *Stripes) Rotate(sweeps []Sweep) {
	size, kernels := z.N*z.Width, &chosen().f64
	parallel.Each(runtime.GOMAXPROCS(0), len(z.Data)/size, func(at int) {
		stripe := z.Data[at*size : (at+1)*size]
		for _, s := range sweeps {
			if n := len(s.C); n > 0 {
				kernels.sweep(&stripe[(s.First+n)*z.Width], z.Width, &s.C[n-1], &s.S[n-1], n)
			}
		}
	})
}
