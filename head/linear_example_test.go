package head_test

import (
	"context"
	"fmt"
	"log"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
)

// Fit fits a linear classifier on features; post-hoc scores read its logits.
func ExampleFitLinear() {
	var x []float32
	var labels []int64
	for i := range 60 { // two classes beside each other
		class := i % 2
		x = append(x, float32(4*class)+float32(i%5)/10, float32(i%7)/10)
		labels = append(labels, int64(class))
	}
	fitted, err := head.FitLinear(context.Background(), features.All(x, 2, labels), features.Rows{}, 2, head.LinearOptions{})
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
