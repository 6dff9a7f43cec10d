package head_test

import (
	"context"
	"fmt"
	"log"
	"math"
	"math/rand/v2"

	"mlrbfn/conditioning"
	"mlrbfn/head"
)

// Two clouds of points in the plane: near either the head says its class, and
// far from both it is confident of none.
func ExampleTrain() {
	rng := rand.New(rand.NewPCG(1, 2))
	data := head.Data{D: 2}
	for i := range 400 {
		class := i % 2
		data.X = append(data.X, float32(4*class)+0.3*float32(rng.NormFloat64()), 0.3*float32(rng.NormFloat64()))
		data.Labels = append(data.Labels, int64(class))
		data.Rows = append(data.Rows, i)
	}
	m, _, err := head.Train(context.Background(), head.Config{Layers: 2, Centroids: 50}, data, head.Data{}, 2,
		head.TrainOptions{Epochs: 300, LR: 0.01})
	if err != nil {
		log.Fatal(err)
	}
	logConfidences := m.LogConfidences([]float32{
		0, 0, // in the first cloud
		4, 0, // in the second
		2, 9, // far from both
	})
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

// The open head reads conditioned features. Most of these eight say nothing of
// the class, and far more loudly than the two that do.
func ExampleTrain_open() {
	rng := rand.New(rand.NewPCG(1, 2))
	features := func(a, b float32) []float32 {
		row := []float32{a + 0.1*float32(rng.NormFloat64()), b + 0.1*float32(rng.NormFloat64())}
		for range 6 {
			row = append(row, 5+3*float32(rng.NormFloat64()))
		}
		return row
	}
	data := head.Data{D: 8}
	var train, validation []int
	for i := range 400 {
		class := i % 2
		data.X = append(data.X, features(float32(class), 1)...)
		data.Labels = append(data.Labels, int64(class))
		if i < 320 {
			train = append(train, i)
		} else {
			validation = append(validation, i)
		}
	}
	ctx := context.Background()
	rows := func(index []int) conditioning.Data {
		return conditioning.Data{X: data.X, D: data.D, Labels: data.Labels, Rows: index, Classes: 2}
	}
	whitening, err := conditioning.Fit(ctx, rows(train), rows(validation), conditioning.Options{Kind: conditioning.Whiten})
	if err != nil {
		log.Fatal(err)
	}
	conditioned := head.Data{D: whitening.Out(), Labels: data.Labels, Rows: train}
	if conditioned.X, err = whitening.Rows(ctx, data.X, append(train, validation...)); err != nil {
		log.Fatal(err)
	}
	held := conditioned
	held.Rows = validation
	m, _, err := head.Train(ctx, head.Config{Open: true, Layers: 2}, conditioned, held, 2,
		head.TrainOptions{Epochs: 20, LR: 0.003, Schedule: head.Cosine})
	if err != nil {
		log.Fatal(err)
	}
	m.Conditioning = whitening // from here on it reads features as they are

	for _, row := range [][]float32{features(0, 1), features(1, 1), features(0, 3)} {
		logConfidences, scores := m.Outputs(row)
		switch a, b := math.Exp(logConfidences[0]), math.Exp(logConfidences[1]); {
		case max(a, b) < 0.01:
			fmt.Println("neither, score below −3:", scores[0] < -3)
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
