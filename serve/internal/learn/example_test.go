package learn_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
	"github.com/mlrbfn/mlrbfn/serve/internal/learn"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// Twenty images that the detector flagged are foxes, says a person. A new detector learns
// the class from the features that were stored with the verdicts.
func ExampleRun() {
	dir, err := os.MkdirTemp("", "learn")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(1, 2))
	point := func(x, y float32) []float32 {
		return []float32{x + 0.2*float32(rng.NormFloat64()), y + 0.2*float32(rng.NormFloat64())}
	}

	var rows []float32
	var labels []int64
	for i := range 400 {
		rows = append(rows, point(float32(4*(i%2)+1), 0)...)
		labels = append(labels, int64(i%2))
	}
	err = errors.Join(npy.WriteFile(filepath.Join(dir, "features.npy"), rows, 400, 2), npy.WriteFile(filepath.Join(dir, "labels.npy"), labels, 400))
	if err != nil {
		log.Fatal(err)
	}
	opts := training.Options{Features: []string{dir}}
	opts.Train.Epochs = 20
	old, _, err := training.Train(ctx, opts)
	if err != nil {
		log.Fatal(err)
	}

	db, err := store.Open(ctx, filepath.Join(dir, "verdicts.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	var verdicts []store.Verdict
	var reviews []store.Review
	for range 20 {
		x := point(3, 6)
		v, err := old.Verdicts(ctx, x)
		if err != nil {
			log.Fatal(err)
		}
		id := store.NewID()
		verdicts = append(verdicts, store.Verdict{ID: id, Source: "gate", Detector: "the file's hash", Model: old.Source.Fingerprint, Verdict: v[0], Features: x})
		reviews = append(reviews, store.Review{ID: id, By: "Ada", Decision: store.IsNew, Class: "fox"})
	}
	if err := db.Add(ctx, verdicts); err != nil {
		log.Fatal(err)
	}
	if err := db.Review(ctx, reviews); err != nil {
		log.Fatal(err)
	}

	result, err := learn.Run(ctx, db, nothing{}, learn.Task{
		Subject: learn.Subject{Name: "animals", Classes: old.Classes, Model: old.Source.Fingerprint, Dim: old.Dim(), Files: map[string]bool{"the file's hash": true}},
		Base:    old, Now: old, Dir: filepath.Join(dir, "learned"),
		Stage: func(string) {}, Ready: func(*learn.Learned) error { return nil },
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("classes:", result.Classes)
	foxes := result.Compare.Reviews.All
	fmt.Printf("of %d foxes that were set aside %d were right, and %d are\n", foxes.Images, foxes.RightBefore, foxes.RightAfter)
	// Output:
	// classes: [0 1 fox]
	// of 3 foxes that were set aside 0 were right, and 3 are
}

// nothing keeps no images.
type nothing struct{}

func (nothing) Has(string) bool { return false }

func (nothing) Features(context.Context, string, string) ([]float32, error) {
	return nil, os.ErrNotExist
}
