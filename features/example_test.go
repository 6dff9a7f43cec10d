package features_test

import (
	"fmt"
	"log"

	"github.com/mlrbfn/mlrbfn/features"
)

// Split divides rows so that each class is in each part, and so that rows of one group
// are never on two sides.
func ExampleSplit() {
	labels := make([]int64, 100)
	for i := range labels {
		labels[i] = int64(i % 2)
	}
	parts, err := features.Split(labels, nil, 2, 0.1, 0.2, 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(parts.Train), len(parts.Validation), len(parts.Calibration))
	// Output:
	// 70 10 20
}
