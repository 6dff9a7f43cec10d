package head

import (
	"fmt"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

func TestGoldenKMeans(t *testing.T) {
	var g struct {
		Iterations []struct {
			K        float64
			Data     Matrix
			Start    Matrix
			After1   Matrix `json:"centroids_after_1"`
			After2   Matrix `json:"centroids_after_2"`
			After5   Matrix `json:"centroids_after_5"`
			After100 Matrix `json:"centroids_after_100"`
		}
		PlusPlus []struct {
			K         float64
			Data      Matrix
			Uniforms  Vector
			Noise     Matrix
			Centroids Matrix
		}
	}
	Golden(t, "kmeans.json", &g)
	for _, c := range g.Iterations {
		for passes, want := range map[int]Matrix{1: c.After1, 2: c.After2, 5: c.After5, 100: c.After100} {
			name := fmt.Sprintf("passes/k=%g/%d", c.K, passes)
			Both(t, name, func(t *testing.T, tol float64) {
				got := Values[float32](c.Start.Flat())
				_ = webScale(t.Context(), got, 2, Values[float32](c.Data.Flat()), norm(c.K), passes)
				Near(t, "centroids", got, want.Flat(), tol)
			}, func(t *testing.T, tol float64) {
				got := Values[float64](c.Start.Flat())
				_ = webScale(t.Context(), got, 2, Values[float64](c.Data.Flat()), norm(c.K), passes)
				Near(t, "centroids", got, want.Flat(), tol)
			})
		}
	}
	for _, c := range g.PlusPlus {
		Both(t, fmt.Sprintf("k-means++/k=%g", c.K), func(t *testing.T, tol float64) {
			got := make([]float32, len(c.Centroids)*2)
			_ = plusPlus(t.Context(), got, 2, Values[float32](c.Data.Flat()), norm(c.K), &Given{Uniforms: c.Uniforms, Normals: c.Noise.Flat()})
			Near(t, "centroids", got, c.Centroids.Flat(), tol)
		}, func(t *testing.T, tol float64) {
			got := make([]float64, len(c.Centroids)*2)
			_ = plusPlus(t.Context(), got, 2, Values[float64](c.Data.Flat()), norm(c.K), &Given{Uniforms: c.Uniforms, Normals: c.Noise.Flat()})
			Near(t, "centroids", got, c.Centroids.Flat(), tol)
		})
	}
}

func TestGoldenInitialBeta(t *testing.T) {
	var cases []struct {
		K         float64
		Data      Matrix
		Centroids Matrix
		Beta      Number
		Softplus  Number `json:"softplus_beta"`
	}
	Golden(t, "beta_init.json", &cases)
	for _, c := range cases {
		name := fmt.Sprintf("k=%g N=%d", c.K, len(c.Centroids))
		Both(t, name, func(t *testing.T, tol float64) {
			got, _ := initialBeta(t.Context(), Values[float32](c.Centroids.Flat()), 3, Values[float32](c.Data.Flat()), norm(c.K), 4)
			Near(t, "β", []float64{got}, Vector{c.Beta}, tol)
		}, func(t *testing.T, tol float64) {
			got, _ := initialBeta(t.Context(), Values[float64](c.Centroids.Flat()), 3, Values[float64](c.Data.Flat()), norm(c.K), 4)
			Near(t, "β", []float64{got}, Vector{c.Beta}, tol)
			Near(t, "β⁺", []float64{kernels.Softplus(got)}, Vector{c.Softplus}, tol)
		})
	}
}
