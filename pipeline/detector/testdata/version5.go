//go:build ignore

// Version5 writes version5.safetensors, a detector on 300 rows of 6 random features in 3
// classes that overlap, and prints its verdicts on versionRows of versions_test.go:
//
//	go run ./pipeline/detector/testdata/version5.go TRAIN
//
// TRAIN is the program `train` of the version whose file is wanted. The file here stays as
// it is: what was trained once is read for ever.
package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// rows are versionRows; the first three are the middles of the classes.
var rows = []float32{
	-6.5, 5, -1, -3, 3, 4,
	0.5, -1, 2, 2, 6, 4,
	2.5, 5.5, 1.5, -1, 4, 4,
	-3, 2, 0.5, -0.5, 4.5, 4,
	20, -30, 10, 0, 5, -40,
	0, 0, 0, 0, 0, 0,
}

func main() {
	train, err := filepath.Abs(os.Args[1])
	check(err)
	folder, err := os.MkdirTemp("", "")
	check(err)
	defer os.RemoveAll(folder)
	const n, d, classes = 300, 6, 3
	random := rand.New(rand.NewPCG(5, 5))
	x, labels := make([]float32, n*d), make([]int64, n)
	for i := range n {
		labels[i] = int64(i % classes)
		for j := range d {
			x[i*d+j] = rows[i%classes*d+j] + 3*float32(random.NormFloat64())
		}
	}
	check(npy.WriteFile(filepath.Join(folder, "features.npy"), x, n, d))
	check(npy.WriteFile(filepath.Join(folder, "labels.npy"), labels, n))
	c := exec.Command(train, "--features", ".", "--out", "detector", "--centroids", "6", "--epochs", "5", "--checkpoint-every", "0", "--quiet")
	c.Dir = folder
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	check(c.Run())
	made, err := detector.Load(filepath.Join(folder, "detector"))
	check(err)
	made.Training.Sets[0].Path = "/features" // no folder of the machine that made it
	check(made.Save(filepath.Join("pipeline", "detector", "testdata", "version5.safetensors")))
	fmt.Printf("%v %+v\n", made.Threshold, *made.Confidence)
	verdicts, err := made.Verdicts(context.Background(), rows)
	check(err)
	for _, v := range verdicts {
		fmt.Printf("{%q, %d, %v, %v, %t, %v},\n", v.Class, v.Label, v.Confidence, v.Score, v.OOD, v.PValue)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
