package posthoc_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/mlrbfn/mlrbfn/posthoc"
)

func ExampleMaxSoftmax() {
	// Two rows of three logits: a confident one and one that cannot decide.
	scores := make([]float64, 2)
	err := posthoc.MaxSoftmax{}.Score(context.Background(), scores, posthoc.Batch{Logits: []float64{9, 1, 2, 5, 5, 5}})
	fmt.Printf("%.4f %v\n", scores, err)
	// Output: [0.9988 0.3333] <nil>
}

// Two classes of features, a row near one of them and one near neither.
func ExampleFit() {
	ctx := context.Background()
	train := posthoc.NewData([]float32{
		1, 0, 1.2, 0.1, 0.9, -0.1,
		0, 1, 0.1, 1.2, -0.1, 0.9,
	}, 2, []int64{0, 0, 0, 1, 1, 1}, 2)
	s, err := posthoc.Fit(ctx, "mds", posthoc.Input{Train: train})
	if err != nil {
		log.Fatal(err)
	}
	scores := make([]float64, 2)
	if err := s.Score(ctx, scores, posthoc.Batch{Features: []float32{1.1, 0, -1, -1}}); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.1f\n", scores)

	_, err = posthoc.Fit(ctx, "vim", posthoc.Input{Train: train})
	fmt.Println(errors.Is(err, posthoc.ErrMissing), err)
	// Output:
	// [-2.1 -698.4]
	// true score vim: weights of a linear head: missing
}

// The energy of a head with logits (f₁, f₂) on features of which the one that is
// larger than in training is cut off.
func ExampleFitReAct() {
	ctx := context.Background()
	head, err := posthoc.NewLinear([]float32{1, 0, 0, 1}, []float32{0, 0})
	if err != nil {
		log.Fatal(err)
	}
	train := posthoc.NewData([]float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0}, 2, nil, 2)
	react, err := posthoc.FitReAct(ctx, train, head, 90)
	if err != nil {
		log.Fatal(err)
	}
	scores := make([]float64, 1)
	for _, s := range []posthoc.Scorer{react, posthoc.ASH{Head: head, Shape: posthoc.ASHP, Percentile: 50}} {
		if err := s.Score(ctx, scores, posthoc.Batch{Features: []float32{100, 1}}); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%.4f\n", scores[0])
	}
	// Output:
	// 8.9004
	// 100.0000
}

// An MLRBFN's log-confidences are logits like any others.
func ExampleGEN() {
	scores := make([]float64, 2)
	logConfidences := []float64{-0.1, -40, -55, -7, -8, -9}
	if err := (posthoc.GEN{}).Score(context.Background(), scores, posthoc.Batch{Logits: logConfidences}); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.3f\n", scores)
	// Output: [-0.041 -2.484]
}
