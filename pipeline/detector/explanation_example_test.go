package detector_test

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// Why features were judged as they were. Of rows in memory no training images are named.
func ExampleExplainer_Explain() {
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

	explainer, err := detector.NewExplainer(ctx, d, detector.ExplainOptions{Nearest: -1})
	if err != nil {
		log.Fatal(err)
	}
	defer explainer.Close()
	asked := []float32{5, 0.2, 3, 40}
	verdicts, err := d.Verdicts(ctx, asked)
	if err != nil {
		log.Fatal(err)
	}
	explanations, err := explainer.Explain(ctx, asked, verdicts)
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range explanations {
		fmt.Println(e.Why)
	}
	// Output:
	// Not flagged: no part of the score is unusual beside the calibration images.
	// Flagged: farther from every class than all 40 calibration images.
}
