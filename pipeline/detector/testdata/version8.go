//go:build ignore

// Version8 writes version7.safetensors and version8.safetensors, detectors on 300 rows of 6
// random numbers in 3 classes that overlap, and prints their verdicts on versionRows of
// versions_test.go:
//
//	go run ./pipeline/detector/testdata/version8.go TRAIN
//
// Two numbers are the embedding, and four a layer (7) or of a model of patches that was fitted
// on 24 of the images (8). TRAIN is the program `train` of the version
// whose files are wanted. The files here stay as they are: what was trained once is read for
// ever.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/safetensors"
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
	const n, d, classes, fitted = 300, 6, 3, 24
	random := rand.New(rand.NewPCG(8, 8))
	x, images, hashes := make([]float32, n*d), make([]features.Image, n), []int64(nil)
	for i := range n {
		for j := range d {
			noise := float32(6) // so that the others are worth to be read
			if j >= 2 {
				noise = 1
			}
			x[i*d+j] = rows[i%classes*d+j] + noise*float32(random.NormFloat64())
		}
		label, path := strconv.Itoa(i%classes), fmt.Sprintf("%d/%03d.png", i%classes, i)
		hash := sha256.Sum256([]byte(path))
		images[i] = features.Image{Path: path, Label: &label, SHA256: hex.EncodeToString(hash[:])}
		if i < fitted {
			first, err := strconv.ParseUint(images[i].SHA256[:16], 16, 64)
			check(err)
			hashes = append(hashes, int64(first))
		}
	}
	slices.Sort(hashes)
	tensors := []safetensors.Tensor{{Name: "images", Shape: []int{fitted}, Data: hashes}}
	for _, node := range []string{"0", "1"} {
		tensors = append(tensors, safetensors.Tensor{Name: node + ".mean", Shape: []int{2}, Data: []float32{1, -1}},
			safetensors.Tensor{Name: node + ".whiten", Shape: []int{2, 2}, Data: []float32{2, 0, 0, 0.5}},
			safetensors.Tensor{Name: node + ".usual", Shape: []int{1}, Data: []float32{9}},
			safetensors.Tensor{Name: node + ".shape", Shape: []int{3}, Data: []int64{2, 4, 4}})
	}
	var file bytes.Buffer
	check(safetensors.Write(&file, map[string]string{"patches": "1", "nodes": "block.0\nblock.1"}, tensors))
	patches, err := extractor.ReadPatches(file.Bytes())
	check(err)
	for version := 7; version <= 8; version++ {
		header := features.Header{D: 2, Layers: []features.Layer{{Name: "block.1", D: 4, Pool: "mean"}}, Model: "model", ModelSHA256: "a", Output: "features", Embedding: "embedding", Tool: "made up"}
		if version == 8 {
			header.Layers, header.Patches = []features.Layer{patches.Layer()}, patches.File()
		}
		header.Fingerprint = features.LayersFingerprint(header.Embedding, header.Layers)
		folder, err := os.MkdirTemp("", "")
		check(err)
		defer os.RemoveAll(folder)
		w, err := features.Create(context.Background(), filepath.Join(folder, "features"), header, features.Options{})
		check(err)
		for i, image := range images {
			check(w.Append(image, x[i*d:(i+1)*d], nil))
		}
		_, err = w.Commit(context.Background(), features.Contents{Units: []features.Unit{{Images: images}}})
		check(err)
		c := exec.Command(train, "--features", "features", "--out", "detector", "--centroids", "6", "--epochs", "5", "--checkpoint-every", "0", "--quiet")
		c.Dir = folder
		c.Stdout, c.Stderr = os.Stderr, os.Stderr
		check(c.Run())
		made, err := detector.Load(filepath.Join(folder, "detector"))
		check(err)
		made.Training.Sets[0].Path = "/features" // no folder of the machine that made it
		check(made.Save(filepath.Join("pipeline", "detector", "testdata", fmt.Sprintf("version%d.safetensors", version))))
		fmt.Printf("%v %v %+v\n", made.Threshold, made.PartNames(), *made.Confidence)
		verdicts, err := made.Verdicts(context.Background(), rows)
		check(err)
		for _, v := range verdicts {
			fmt.Printf("{%q, %d, %v, %v, %t, %v},\n", v.Class, v.Label, v.Confidence, v.Score, v.OOD, v.PValue*31)
		}
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
