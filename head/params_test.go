package head

import (
	"fmt"
	"testing"

	"github.com/mlrbfn/mlrbfn/head/internal/headtest"
	"github.com/mlrbfn/mlrbfn/head/internal/numeric"
)

// goldenParams are the parameters of a golden network, or their gradients, layer by
// layer.
type goldenParams []struct {
	Centroids   headtest.Matrix
	Beta        headtest.Vector
	Projections headtest.Matrix
}

// setParams gives a network these parameters, not rounded to float32.
func setParams[T numeric.Real](net *rbfNetwork[T], g goldenParams) {
	for i, l := range net.Layers {
		copy(l.Centroids, headtest.Values[T](g[i].Centroids.Flat()))
		copy(l.Beta, headtest.Values[T](g[i].Beta))
		copy(l.Projections, headtest.Values[T](g[i].Projections.Flat()))
	}
}

// nearParams compares the network's parameters, or its gradients, with g.
func nearParams[T numeric.Real](t *testing.T, what string, net *rbfNetwork[T], grads bool, g goldenParams, tol float64) {
	t.Helper()
	for i, l := range net.Layers {
		centroids, beta, projections := l.Centroids, l.Beta, l.Projections
		if grads {
			centroids, beta, projections = l.GCentroids, l.GBeta, l.GProjections
		}
		headtest.Near(t, fmt.Sprintf("%s: layer %d centroids", what, i), centroids, g[i].Centroids.Flat(), tol)
		headtest.Near(t, fmt.Sprintf("%s: layer %d β", what, i), beta, g[i].Beta, tol)
		headtest.Near(t, fmt.Sprintf("%s: layer %d projections", what, i), projections, g[i].Projections.Flat(), tol)
	}
}
