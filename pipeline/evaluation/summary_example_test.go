package evaluation_test

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// What the file of a detector says of it.
func ExampleSummarise() {
	rng := rand.New(rand.NewPCG(1, 2))
	var x []float32
	var labels []int64
	for i := range 400 { // two clouds of points, around 1, 0 and 5, 0
		x = append(x, float32(4*(i%2)+1)+0.2*float32(rng.NormFloat64()), 0.2*float32(rng.NormFloat64()))
		labels = append(labels, int64(i%2))
	}
	rows, err := features.InMemory(x, 2, labels, []string{"cat", "dog"})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	opts := training.Options{Rows: rows}
	opts.Train.Epochs = 20
	d, _, err := training.Train(ctx, opts)
	if err != nil {
		log.Fatal(err)
	}

	s, err := evaluation.Summarise(ctx, evaluation.SummaryOptions{Detector: d, FileOnly: true})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	for _, c := range s.Classes {
		fmt.Println(c.Name, c.Train, c.Right, "of", c.Validation)
	}
	// Output:
	// cat 160 20 of 20
	// dog 160 20 of 20
}
