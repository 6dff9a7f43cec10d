// Gate is the shortest use of the library. It trains a detector on a folder of images, one
// subfolder per class, and prints for other images their class and whether they
// are out of distribution.
//
//	gate MODEL TRAINING-IMAGES NEW-IMAGE…
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/mlrbfn/mlrbfn/pipeline"
)

func main() {
	if len(os.Args) < 4 {
		log.Fatal("usage: gate MODEL TRAINING-IMAGES NEW-IMAGE…")
	}
	if err := gate(context.Background(), os.Stdout, os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		log.Fatal(err)
	}
}

func gate(ctx context.Context, w io.Writer, model, images string, unseen []string) error {
	if _, err := pipeline.Extract(ctx, pipeline.ExtractOptions{Model: model, Images: images, Out: "gate.features"}); err != nil {
		return err
	}
	detector, _, err := pipeline.Train(ctx, pipeline.TrainOptions{Features: []string{"gate.features"}})
	if err != nil {
		return err
	}
	_, err = pipeline.Detect(ctx, pipeline.DetectOptions{Detector: detector, Paths: unseen}, func(j pipeline.Judgement) error {
		fmt.Fprintln(w, j.Path, j.Class, j.Confidence, j.OOD, j.PValue, j.Err)
		return nil
	})
	return err
}
