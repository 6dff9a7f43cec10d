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

// Two clouds of points in the plane: near each cloud the head predicts its class,
// and far from both it is confident of none.
func ExamplePaper() {
	rng := rand.New(rand.NewPCG(1, 2))
	data := features.Rows{D: 2}
	for i := range 400 {
		class := i % 2
		data.X = append(data.X, float32(4*class)+0.3*float32(rng.NormFloat64()), 0.3*float32(rng.NormFloat64()))
		data.Labels = append(data.Labels, int64(class))
		data.Index = append(data.Index, i)
	}
	m, _, err := head.Train(context.Background(), head.Paper{Layers: 2, Centroids: 50}, data, features.Rows{}, 2,
		head.TrainOptions{Epochs: 300, LR: 0.01})
	if err != nil {
		log.Fatal(err)
	}
	logConfidences := m.Outputs([]float32{
		0, 0, // in the first cloud
		4, 0, // in the second
		2, 9, // far from both
	}).LogConfidences
	for i, where := range []string{"first cloud:", "second cloud:", "elsewhere:"} {
		a, b := math.Exp(logConfidences[2*i]), math.Exp(logConfidences[2*i+1])
		switch {
		case max(a, b) < 0.01:
			fmt.Println(where, "neither")
		case a > b:
			fmt.Println(where, "class 0")
		default:
			fmt.Println(where, "class 1")
		}
	}
	// Output:
	// first cloud: class 0
	// second cloud: class 1
	// elsewhere: neither
}
