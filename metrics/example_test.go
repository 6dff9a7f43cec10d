package metrics_test

import (
	"fmt"

	"github.com/mlrbfn/mlrbfn/metrics"
)

// AUROC is the chance that an in-distribution image scores higher than an OOD image.
func ExampleAUROC() {
	fmt.Println(metrics.AUROC([]float64{3, 2}, []float64{2, 1}))
	// Output:
	// 0.875
}
