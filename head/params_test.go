package head

import (
	"fmt"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

// goldenParams are the parameters of a golden network, or their gradients, layer by
// layer.
type goldenParams []struct {
	Centroids   Matrix
	Beta        Vector
	Projections Matrix
}

// setParams gives a network these parameters, not rounded to float32.
func setParams[T kernels.Real](net *rbfNetwork[T], g goldenParams) {
	for i, l := range net.Layers {
		copy(l.Centroids, Values[T](g[i].Centroids.Flat()))
		copy(l.Beta, Values[T](g[i].Beta))
		copy(l.Projections, Values[T](g[i].Projections.Flat()))
	}
}

// nearParams compares the network's parameters, or its gradients, with g.
func nearParams[T kernels.Real](t *testing.T, what string, net *rbfNetwork[T], grads bool, g goldenParams, tol float64) {
	t.Helper()
	for i, l := range net.Layers {
		centroids, beta, projections := l.Centroids, l.Beta, l.Projections
		if grads {
			centroids, beta, projections = l.GCentroids, l.GBeta, l.GProjections
		}
		Near(t, fmt.Sprintf("%s: layer %d centroids", what, i), centroids, g[i].Centroids.Flat(), tol)
		Near(t, fmt.Sprintf("%s: layer %d β", what, i), beta, g[i].Beta, tol)
		Near(t, fmt.Sprintf("%s: layer %d projections", what, i), projections, g[i].Projections.Flat(), tol)
	}
}
