//go:build ignore

// Generate writes detectors of this folder, and their verdicts on the rows of
// rows.json into verdicts.json: one for each post-hoc score, and ensembles, trained on 150
// rows of 6 random features in 3 classes.
//
//	go run ./pipeline/detector/testdata/scores/generate.go TRAIN NAME...
//
// TRAIN is the program `train` of the version whose files are wanted. The
// detectors here are by the `train` of commit c08d7a4, or of the commit that added the
// score. They stay as they are, and so do their verdicts: what was written
// once is read for ever.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
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
	scores := filepath.Join("pipeline", "detector", "testdata", "scores")
	verdicts := filepath.Join(scores, "verdicts.json")
	var rows []float32
	text, err := os.ReadFile(filepath.Join(scores, "rows.json"))
	check(err)
	check(json.Unmarshal(text, &rows))
	text, err = os.ReadFile(verdicts)
	check(err)
	all := map[string]struct {
		Threshold json.RawMessage
		Verdicts  []json.RawMessage
	}{}
	check(json.Unmarshal(text, &all))
	for _, name := range names {
		out := filepath.Join(folder, "detector")
		c := exec.Command(train, "--features", ".", "--out", "detector", "--scores", name, "--centroids", "3", "--epochs", "2", "--checkpoint-every", "0", "--calibration", "0.2", "--quiet")
		c.Dir = folder
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		check(c.Run())
		text, err := os.ReadFile(out)
		check(err)
		file := filepath.Join(scores, name+".safetensors")
		check(os.WriteFile(file, text, 0o666))
		check(os.Remove(out))
		d, err := detector.Load(file)
		check(err)
		entry := all[name]
		entry.Threshold, entry.Verdicts = marshal(d.Threshold), nil
		verdicts, err := d.Verdicts(context.Background(), rows)
		check(err)
		for _, v := range verdicts {
			entry.Verdicts = append(entry.Verdicts, marshal(frozen(v)))
		}
		all[name] = entry
	}
	var entries []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		entries = append(entries, fmt.Sprintf(" %q: {\"Threshold\": %s, \"Verdicts\": [\n  %s\n ]}",
			name, all[name].Threshold, bytes.Join(raw(all[name].Verdicts), []byte(",\n  "))))
	}
	check(os.WriteFile(verdicts, []byte("{\n"+strings.Join(entries, ",\n")+"\n}\n"), 0o666))
}

// frozen is a verdict as the file has it.
type frozen struct {
	Class             string
	Label             int
	Confidence, Score float64
	OOD               bool
	PValue            float64
}

// marshal returns a value as JSON in the style of verdicts.json.
func marshal(v any) json.RawMessage {
	text, err := json.Marshal(v)
	check(err)
	text = bytes.ReplaceAll(text, []byte(`,"`), []byte(`, "`))
	return bytes.ReplaceAll(text, []byte(`":`), []byte(`": `))
}

func raw(values []json.RawMessage) [][]byte {
	lines := make([][]byte, len(values))
	for i, v := range values {
		lines[i] = v
	}
	return lines
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
