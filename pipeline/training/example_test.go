package training_test

import (
	"context"
	"fmt"
	"log"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// A detector of rows in memory, of which nothing is written to a disk.
func ExampleTrain() {
	var x []float32
	var labels []int64
	for i := range 400 { // two clouds of points, around 1, 0 and 5, 0
		x = append(x, float32(4*(i%2)+1)+float32(i%9)/20, float32(i%11)/20)
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
	for _, v := range d.Verdicts([]float32{5, 0.2, 3, 40}) {
		fmt.Println(v.Class, v.OOD)
	}
	// Output:
	// 320 rows to train, 40 to validate, 40 to calibrate
	// dog false
	// cat true
}
