package metrics_test

import (
	"fmt"

	"mlrbfn/metrics"
)

// AUROC is the chance that an in-distribution image scores higher than an OOD image.
func ExampleAUROC() {
	fmt.Println(metrics.AUROC([]float64{3, 2}, []float64{2, 1}))
	// Output:
	// 0.875
}

// FPRAtTPR is the share of OOD images that pass a threshold which keeps a share of the
// in-distribution images.
func ExampleFPRAtTPR() {
	fmt.Println(metrics.FPRAtTPR([]float64{4, 3, 2, 1}, []float64{2.5, 0.5, 0, -1}, 0.75))
	// Output:
	// 0.25
}
