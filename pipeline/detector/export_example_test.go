package detector_test

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// A detector becomes a graph that any ONNX runtime runs, from features to verdicts.
func ExampleExport() {
	rng := rand.New(rand.NewPCG(1, 2))
	var x []float32
	var labels []int64
	for i := range 400 {
		x = append(x, float32(4*(i%2)+1)+0.2*float32(rng.NormFloat64()), 0.2*float32(rng.NormFloat64()))
		labels = append(labels, int64(i%2))
	}
	rows, err := features.InMemory(x, 2, labels, []string{"cat", "dog"})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	opts := training.Options{Rows: rows}
	opts.Train.Epochs = 5
	d, _, err := training.Train(ctx, opts)
	if err != nil {
		log.Fatal(err)
	}

	dir, err := os.MkdirTemp("", "export")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "detector.onnx")
	if err := detector.Export(ctx, detector.ExportOptions{Detector: d, Out: file}); err != nil {
		log.Fatal(err)
	}
	info, err := os.Stat(file)
	fmt.Println(filepath.Base(file), "is written:", err == nil && info.Size() > 1000)
	// Output:
	// detector.onnx is written: true
}
