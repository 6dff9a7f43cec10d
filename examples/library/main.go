// Library shows the library with features of one's own, from any model: it trains a
// detector on rows of numbers, saves and loads it, judges new rows, says why, and
// measures how well rows of another kind are told apart.
//
//	library
package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/metrics"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		log.Fatal(err)
	}
}

const dim = 16

// rows draws the features of n images of a class: a cloud around a point of its own.
func rows(class, n int, rng *rand.Rand) []float32 {
	x := make([]float32, n*dim)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
		if i%dim == class {
			x[i] += 8
		}
	}
	return x
}

// write makes a feature set of rows that are there already.
func write(ctx context.Context, dir string, classes []string, each int, rng *rand.Rand) (err error) {
	w, err := features.Create(ctx, dir, features.Header{D: dim, Fingerprint: "drawn"}, features.Options{})
	if err != nil {
		return err
	}
	defer w.Close()
	var images []features.Image
	for label, class := range classes {
		x := rows(label, each, rng)
		for i := range each {
			path := fmt.Sprintf("%s/%d", class, i)
			// A file's hash tells whether it changed; here each row is its own.
			img := features.Image{Path: path, Label: &class, SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(path)))}
			if err := w.Append(img, x[i*dim:(i+1)*dim], nil); err != nil {
				return err
			}
			images = append(images, img)
		}
	}
	_, err = w.Commit(ctx, features.Contents{Units: []features.Unit{{Images: images}}})
	return err
}

func run(ctx context.Context, w io.Writer) error {
	dir, err := os.MkdirTemp("", "library")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	rng := rand.New(rand.NewPCG(1, 2))
	set, file := filepath.Join(dir, "features"), filepath.Join(dir, "detector.safetensors")
	if err := write(ctx, set, []string{"cat", "dog"}, 200, rng); err != nil {
		return err
	}
	trained, result, err := pipeline.Train(ctx, pipeline.TrainOptions{Features: []string{set}})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "trained on %d rows, %d set the threshold\n", result.Rows.Train, result.Rows.Calibration)
	if err := trained.Save(file); err != nil {
		return err
	}

	detector, err := pipeline.LoadDetector(file)
	if err != nil {
		return err
	}
	verdicts, err := detector.Verdicts(ctx, slices.Concat(rows(1, 100, rng), rows(7, 100, rng)))
	if err != nil {
		return err
	}
	known, unknown := verdicts[:100], verdicts[100:]
	scores := func(verdicts []pipeline.Verdict) (all []float64, flagged int) {
		for _, v := range verdicts {
			all = append(all, v.Score)
			if v.OOD {
				flagged++
			}
		}
		return all, flagged
	}
	id, falsely := scores(known)
	ood, caught := scores(unknown)
	fmt.Fprintf(w, "dogs: class %s, %d of %d flagged; others: %d of %d flagged; AUROC %.3f\n", known[0].Class, falsely, len(known), caught, len(unknown), metrics.AUROC(id, ood))

	explainer, err := pipeline.NewExplainer(ctx, detector, pipeline.ExplainOptions{})
	if err != nil {
		return err
	}
	defer explainer.Close()
	other := rows(7, 1, rng)
	if verdicts, err = detector.Verdicts(ctx, other); err != nil {
		return err
	}
	explanations, err := explainer.Explain(ctx, other, verdicts)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, explanations[0].Why)
	return nil
}
