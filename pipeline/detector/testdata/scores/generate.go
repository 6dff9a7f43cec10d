//go:build ignore

// Generate writes the detectors of this folder: one for each post-hoc score, and
// ensembles, trained on 150 rows of 6 random features in 3 classes.
//
//	go run ./pipeline/detector/testdata/scores/generate.go TRAIN NAME...
//
// TRAIN is the program `train` of the version whose files are wanted. The
// detectors here are of format 3, by the `train` of commit c08d7a4. They stay as
// they are: what was written once is read for ever.
package main

import (
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"

	"mlrbfn/internal/npy"
)

func main() {
	train, err := filepath.Abs(os.Args[1])
	check(err)
	names := os.Args[2:]
	folder, err := os.MkdirTemp("", "")
	check(err)
	defer os.RemoveAll(folder)
	const n, d, classes = 150, 6, 3
	random := rand.New(rand.NewPCG(13, 4))
	means := make([]float32, classes*d)
	for i := range means {
		means[i] = 2 * float32(random.NormFloat64())
	}
	x, labels := make([]float32, n*d), make([]int64, n)
	for i := range n {
		labels[i] = int64(i % classes)
		for j := range d {
			x[i*d+j] = max(means[i%classes*d+j]+float32(random.NormFloat64()), 0) // some overlap, as ReLU gives it
		}
	}
	check(npy.WriteFile(filepath.Join(folder, "features.npy"), x, n, d))
	check(npy.WriteFile(filepath.Join(folder, "labels.npy"), labels, n))
	for _, name := range names {
		out := filepath.Join(folder, "detector")
		c := exec.Command(train, "--features", ".", "--out", "detector", "--scores", name, "--centroids", "3", "--epochs", "2", "--checkpoint-every", "0", "--calibration", "0.2", "--quiet")
		c.Dir = folder
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		check(c.Run())
		text, err := os.ReadFile(out)
		check(err)
		check(os.WriteFile(filepath.Join("pipeline", "detector", "testdata", "scores", name+".safetensors"), text, 0o666))
		check(os.Remove(out))
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
