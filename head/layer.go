package head

import (
	"fmt"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

// Layer is one layer of radial basis functions, with N centroids for inputs of
// length d. A hidden layer has projections of length o, or none and then outputs
// the N weights of its centroids; the last layer has one centroid per class.
type Layer struct {
	In, N, Out  int       // d, N and o; Out is N without projections, and 0 in the last layer
	Centroids   []float32 // [N, d]
	Beta        []float32 // [N], β; the inverse width is β⁺ = kernels.Softplus(β)
	InitBeta    float32   // β of the whole layer before training
	Projections []float32 // [N, o]; empty in the last layer and without
}

// NewLayer returns a layer whose parameters are all zero. out is 0 for a last
// layer.
func NewLayer(in, n, out int, projects bool) Layer {
	l := Layer{In: in, N: n, Out: out, Centroids: make([]float32, n*in), Beta: make([]float32, n)}
	if projects {
		l.Projections = make([]float32, n*out)
	}
	return l
}

// Widths returns β⁺ [N] of the centroids and β⁺_init.
func (l *Layer) Widths() (widths []float64, initial float64) {
	widths = make([]float64, l.N)
	for c, b := range l.Beta {
		widths[c] = kernels.Softplus(float64(b))
	}
	return widths, kernels.Softplus(float64(l.InitBeta))
}

// mostLayers is the largest number of layers of any network.
const mostLayers = 100

// CheckLayers checks that layers fit together and that all numbers are finite.
// Either all hidden layers have projections, or none has.
func CheckLayers(layers []Layer, projects bool) error {
	if n := len(layers); n < 1 || n > mostLayers {
		return fmt.Errorf("%d layers: a head has 1 to %d", n, mostLayers)
	}
	for i, l := range layers {
		last := i == len(layers)-1
		projections := 0
		if projects {
			projections = l.N * l.Out
		}
		switch {
		case l.In < 1 || l.N < 1 || last != (l.Out == 0) || l.Out < 0:
			return fmt.Errorf("layer %d has the shape d=%d, N=%d, o=%d", i, l.In, l.N, l.Out)
		case i > 0 && l.In != layers[i-1].Out:
			return fmt.Errorf("layer %d reads %d values where layer %d gives %d", i, l.In, i-1, layers[i-1].Out)
		case !projects && !last && l.Out != l.N:
			return fmt.Errorf("layer %d gives %d values, and has %d centroids without projections", i, l.Out, l.N)
		case len(l.Centroids) != l.N*l.In, len(l.Beta) != l.N, len(l.Projections) != projections:
			return fmt.Errorf("layer %d has arrays of the wrong size for d=%d, N=%d, o=%d", i, l.In, l.N, l.Out)
		}
		for _, array := range [][]float32{l.Centroids, l.Beta, l.Projections, {l.InitBeta}} {
			if slices.ContainsFunc(array, notFinite[float32]) {
				return fmt.Errorf("layer %d holds a value that is not finite", i)
			}
		}
	}
	return nil
}
