package evaluation_test

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// One image of a hundred has the label of the other class.
func ExampleInspect() {
	dir, err := os.MkdirTemp("", "inspection")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	rng := rand.New(rand.NewPCG(1, 2))
	var x []float32
	var labels []int64
	for i := range 100 {
		for j := range 32 {
			x = append(x, float32(rng.NormFloat64()))
			if j == i%2 {
				x[len(x)-1] += 10
			}
		}
		labels = append(labels, int64(i%2))
	}
	labels[42] = 1
	if err := npy.WriteFile(filepath.Join(dir, "features.npy"), x, 100, 32); err != nil {
		log.Fatal(err)
	}
	if err := npy.WriteFile(filepath.Join(dir, "labels.npy"), labels, 100); err != nil {
		log.Fatal(err)
	}

	found, err := evaluation.Inspect(context.Background(), evaluation.InspectOptions{Features: []string{dir}, NoImages: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, i := range found.Issues {
		fmt.Printf("row %d: %s, labelled %s, rather %s\n", i.Row, i.Kind, i.Label, i.Suggested)
	}
	// Output:
	// row 42: label, labelled 1, rather 0
}
