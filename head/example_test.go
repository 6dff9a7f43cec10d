package head_test

import (
	"context"
	"fmt"
	"log"
	"math"
	"math/rand/v2"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
)

// Whitening makes the images of one class vary alike in all directions: here features
// vary ten times as much in the first as in the second.
func ExampleFit() {
	rng := rand.New(rand.NewPCG(1, 2))
	var x []float32
	labels := make([]int64, 400)
	for range labels {
		x = append(x, float32(10*rng.NormFloat64()), float32(rng.NormFloat64()))
	}
	fitted, err := head.FitConditioning(context.Background(), features.All(x, 2, labels), features.Rows{}, 1, head.ConditioningOptions{Kind: head.Whiten, Shrinkage: 1e-6})
	if err != nil {
		log.Fatal(err)
	}
	origin, first, second := make([]float64, 2), make([]float64, 2), make([]float64, 2)
	fitted.Apply(origin, []float64{0, 0})
	fitted.Apply(first, []float64{10, 0})
	fitted.Apply(second, []float64{0, 1})
	length := func(v []float64) float64 { return math.Hypot(v[0]-origin[0], v[1]-origin[1]) }
	fmt.Printf("%.1f %.1f\n", length(first), length(second))
	// Output:
	// 1.0 1.0
}
