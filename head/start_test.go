package head

import (
	"fmt"
	"testing"

	"github.com/mlrbfn/mlrbfn/head/internal/headtest"
	"github.com/mlrbfn/mlrbfn/head/internal/numeric"
)

func TestGoldenKMeans(t *testing.T) {
	var g struct {
		Iterations []struct {
			K        float64
			Data     headtest.Matrix
			Start    headtest.Matrix
			After1   headtest.Matrix `json:"centroids_after_1"`
			After2   headtest.Matrix `json:"centroids_after_2"`
			After5   headtest.Matrix `json:"centroids_after_5"`
			After100 headtest.Matrix `json:"centroids_after_100"`
		}
		PlusPlus []struct {
			K         float64
			Data      headtest.Matrix
			Uniforms  headtest.Vector
			Noise     headtest.Matrix
			Centroids headtest.Matrix
		}
	}
	headtest.Golden(t, "kmeans.json", &g)
	for _, c := range g.Iterations {
		for passes, want := range map[int]headtest.Matrix{1: c.After1, 2: c.After2, 5: c.After5, 100: c.After100} {
			name := fmt.Sprintf("passes/k=%g/%d", c.K, passes)
			headtest.Both(t, name, func(t *testing.T, tol float64) {
				got := headtest.Values[float32](c.Start.Flat())
				_ = webScale(t.Context(), got, 2, headtest.Values[float32](c.Data.Flat()), norm(c.K), passes)
				headtest.Near(t, "centroids", got, want.Flat(), tol)
			}, func(t *testing.T, tol float64) {
				got := headtest.Values[float64](c.Start.Flat())
				_ = webScale(t.Context(), got, 2, headtest.Values[float64](c.Data.Flat()), norm(c.K), passes)
				headtest.Near(t, "centroids", got, want.Flat(), tol)
			})
		}
	}
	for _, c := range g.PlusPlus {
		headtest.Both(t, fmt.Sprintf("k-means++/k=%g", c.K), func(t *testing.T, tol float64) {
			got := make([]float32, len(c.Centroids)*2)
			_ = plusPlus(t.Context(), got, 2, headtest.Values[float32](c.Data.Flat()), norm(c.K), &headtest.Given{Uniforms: c.Uniforms, Normals: c.Noise.Flat()})
			headtest.Near(t, "centroids", got, c.Centroids.Flat(), tol)
		}, func(t *testing.T, tol float64) {
			got := make([]float64, len(c.Centroids)*2)
			_ = plusPlus(t.Context(), got, 2, headtest.Values[float64](c.Data.Flat()), norm(c.K), &headtest.Given{Uniforms: c.Uniforms, Normals: c.Noise.Flat()})
			headtest.Near(t, "centroids", got, c.Centroids.Flat(), tol)
		})
	}
}

func TestGoldenInitialBeta(t *testing.T) {
	var cases []struct {
		K         float64
		Data      headtest.Matrix
		Centroids headtest.Matrix
		Beta      headtest.Number
		Softplus  headtest.Number `json:"softplus_beta"`
	}
	headtest.Golden(t, "beta_init.json", &cases)
	for _, c := range cases {
		name := fmt.Sprintf("k=%g N=%d", c.K, len(c.Centroids))
		headtest.Both(t, name, func(t *testing.T, tol float64) {
			got, _ := initialBeta(t.Context(), headtest.Values[float32](c.Centroids.Flat()), 3, headtest.Values[float32](c.Data.Flat()), norm(c.K), 4)
			headtest.Near(t, "β", []float64{got}, headtest.Vector{c.Beta}, tol)
		}, func(t *testing.T, tol float64) {
			got, _ := initialBeta(t.Context(), headtest.Values[float64](c.Centroids.Flat()), 3, headtest.Values[float64](c.Data.Flat()), norm(c.K), 4)
			headtest.Near(t, "β", []float64{got}, headtest.Vector{c.Beta}, tol)
			headtest.Near(t, "β⁺", []float64{numeric.Softplus(got)}, headtest.Vector{c.Softplus}, tol)
		})
	}
}
