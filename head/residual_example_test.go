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

// The residual network reads conditioned features. Most of these eight carry no
// information about the class, and vary far more than the two that do.
func ExampleResidual() {
	rng := rand.New(rand.NewPCG(1, 2))
	sample := func(a, b float32) []float32 {
		row := []float32{a + 0.1*float32(rng.NormFloat64()), b + 0.1*float32(rng.NormFloat64())}
		for range 6 {
			row = append(row, 5+3*float32(rng.NormFloat64()))
		}
		return row
	}
	data := features.Rows{D: 8}
	var train, validation []int
	for i := range 400 {
		class := i % 2
		data.X = append(data.X, sample(float32(class), 1)...)
		data.Labels = append(data.Labels, int64(class))
		if i < 320 {
			train = append(train, i)
		} else {
			validation = append(validation, i)
		}
	}
	ctx := context.Background()
	whitening, err := head.FitConditioning(ctx, data.With(train), data.With(validation), 2, head.ConditioningOptions{Kind: head.Whiten})
	if err != nil {
		log.Fatal(err)
	}
	conditioned := features.Rows{D: whitening.Out(), Labels: data.Labels}
	if conditioned.X, err = whitening.Rows(ctx, data.With(append(train, validation...))); err != nil {
		log.Fatal(err)
	}
	m, _, err := head.Train(ctx, head.Residual{}, conditioned.With(train), conditioned.With(validation), 2, head.TrainOptions{})
	if err != nil {
		log.Fatal(err)
	}
	m.Conditioning = whitening // now it reads unconditioned features

	for _, row := range [][]float32{sample(0, 1), sample(1, 1), sample(0, 3)} {
		o := m.Outputs(row)
		switch a, b := math.Exp(o.LogConfidences[0]), math.Exp(o.LogConfidences[1]); {
		case max(a, b) < 0.01:
			fmt.Println("neither, score below −3:", o.Scores[0] < -3)
		case a > b:
			fmt.Println("class 0")
		default:
			fmt.Println("class 1")
		}
	}
	// Output:
	// class 0
	// class 1
	// neither, score below −3: true
}
