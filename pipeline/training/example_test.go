package training_test

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// A detector of rows in memory, of which nothing is written to a disk.
func ExampleTrain() {
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
	opts := training.Options{Rows: rows}
	opts.Train.Epochs = 20
	d, result, err := training.Train(context.Background(), opts)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Rows.Train, "rows to train,", result.Rows.Validation, "to validate,", result.Rows.Calibration, "to calibrate")
	verdicts, err := d.Verdicts(context.Background(), []float32{5, 0.2, 3, 40})
	if err != nil {
		log.Fatal(err)
	}
	for _, v := range verdicts {
		if v.OOD {
			fmt.Println("out of distribution")
		} else {
			fmt.Println(v.Class)
		}
	}
	// Output:
	// 320 rows to train, 40 to validate, 40 to calibrate
	// dog
	// out of distribution
}
