package report_test

import (
	"fmt"
	"os"

	"github.com/mlrbfn/mlrbfn/report"
)

func ExampleMarkdown() {
	value := func(mean, std float64) report.Value { return report.Value{Mean: mean / 100, Std: std / 100} }
	err := report.Markdown(os.Stdout, report.Table{
		Benchmarks: []string{"CIFAR10"},
		Sections: []report.Section{{Lines: []report.Line{
			{Method: "MLRBFN", Backbone: "CLIP", Cells: []report.Cell{{Near: value(95.75, .35), Far: value(98.46, .2), Acc: value(95.78, .16)}}},
			{Method: "MSP", Backbone: "CLIP", Cells: []report.Cell{{Near: value(77.67, .24), Far: value(76.56, 1.8), Acc: value(95.92, .09)}}},
		}}},
	})
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// | | CIFAR10 Near-OOD | CIFAR10 Far-OOD | CIFAR10 ID Acc. |
	// |---|---:|---:|---:|
	// | MLRBFN, CLIP | **95.75** ± 0.35 | **98.46** ± 0.20 | 95.78 ± 0.16 |
	// | MSP, CLIP | 77.67 ± 0.24 | 76.56 ± 1.80 | **95.92** ± 0.09 |
}
