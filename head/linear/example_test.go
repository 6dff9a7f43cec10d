package linear_test

import (
	"context"
	"fmt"
	"log"

	"github.com/mlrbfn/mlrbfn/dataset"
	"github.com/mlrbfn/mlrbfn/head/linear"
)

// Fit fits a linear classifier on features; post-hoc scores read its logits.
func ExampleFit() {
	var x []float32
	var labels []int64
	for i := range 60 { // two classes beside each other
		class := i % 2
		x = append(x, float32(4*class)+float32(i%5)/10, float32(i%7)/10)
		labels = append(labels, int64(class))
	}
	fitted, err := linear.Fit(context.Background(), dataset.All(x, 2, labels), dataset.Rows{}, 2, linear.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for _, row := range [][]float64{{0, 0}, {4, 0}} {
		logits := make([]float64, 2)
		fitted.Logits(logits, row)
		fmt.Println("class 1 is more likely:", logits[1] > logits[0])
	}
	// Output:
	// class 1 is more likely: false
	// class 1 is more likely: true
}
