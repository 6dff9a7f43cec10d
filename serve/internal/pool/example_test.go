package pool_test

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
	"github.com/mlrbfn/mlrbfn/serve/internal/pool"
)

// A detector serves while its file is replaced.
func ExampleSet() {
	dir, err := os.MkdirTemp("", "detectors")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "animals.safetensors")
	if err := train(file, "cat", "dog"); err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	set, err := pool.Open(ctx, pool.Options{Detectors: []pool.Named{{Name: "animals", File: file}}})
	if err != nil {
		log.Fatal(err)
	}
	defer set.Close()

	for _, classes := range [][]string{{"cat", "dog"}, {"cat", "fox"}} {
		if err := train(file, classes...); err != nil {
			log.Fatal(err)
		}
		if err := set.Reload(ctx, "animals"); err != nil {
			log.Fatal(err)
		}
		animals := set.Use("animals")
		verdicts, err := animals.Judge(ctx, []float32{5, 0.2})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(verdicts[0].Class, verdicts[0].OOD)
		animals.Release()
	}
	// Output:
	// dog false
	// fox false
}

// train writes a detector of two clouds of points, around 1, 0 and 5, 0.
func train(file string, classes ...string) error {
	rng := rand.New(rand.NewPCG(1, 2))
	var x []float32
	var labels []int64
	for i := range 400 {
		x = append(x, float32(4*(i%2)+1)+0.2*float32(rng.NormFloat64()), 0.2*float32(rng.NormFloat64()))
		labels = append(labels, int64(i%2))
	}
	rows, err := features.InMemory(x, 2, labels, classes)
	if err != nil {
		return err
	}
	opts := training.Options{Rows: rows}
	opts.Train.Epochs = 5
	d, _, err := training.Train(context.Background(), opts)
	if err != nil {
		return err
	}
	return d.Save(file)
}
