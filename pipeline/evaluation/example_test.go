package evaluation_test

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// Two scores on the same features: which tells images of other classes apart better?
func ExampleEvaluate() {
	dir, err := os.MkdirTemp("", "evaluation")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	in := func(name string) string { return filepath.Join(dir, name) }
	rng := rand.New(rand.NewPCG(1, 2))
	for name, class := range map[string]int{"train": -1, "test": -1, "textures": 2} {
		if err := cloud(rng, in(name), class); err != nil {
			log.Fatal(err)
		}
	}
	opts := evaluation.Options{
		ID:      in("test"),
		OOD:     []evaluation.OODSet{{Group: metrics.Far, Name: "textures", Features: in("textures")}},
		Methods: []string{"msp", "knn"}, Bootstrap: -1, Out: in("report"),
	}
	opts.Train.Features, opts.Train.Seeds = []string{in("train")}, []uint64{0}
	results, err := evaluation.Evaluate(context.Background(), opts)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range results {
		if r.Seed == "0" && r.Dataset == "textures" {
			fmt.Printf("%s: AUROC above 0.95: %v\n", r.Method, r.AUROC > 0.95)
		}
	}
	// Output:
	// msp: AUROC above 0.95: true
	// knn: AUROC above 0.95: true
}

// cloud writes features of two classes in turn, or of a class that is neither.
func cloud(rng *rand.Rand, dir string, class int) error {
	if err := os.Mkdir(dir, 0o777); err != nil {
		return err
	}
	const n, d = 300, 4
	x, labels := make([]float32, n*d), make([]int64, n)
	for i := range labels {
		labels[i] = int64(i % 2)
		at := i % 2
		if class >= 0 {
			labels[i], at = -1, class
		}
		for j := range d {
			x[i*d+j] = float32(rng.NormFloat64())
		}
		x[i*d+at] += 8
	}
	if err := npy.WriteFile(filepath.Join(dir, "features.npy"), x, n, d); err != nil {
		return err
	}
	return npy.WriteFile(filepath.Join(dir, "labels.npy"), labels, n)
}
