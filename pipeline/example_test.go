package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// twoClouds writes a folder with features.npy and labels.npy: two clouds of points in
// the plane, around 1, 0 and 5, 0.
func twoClouds() string {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	x, y := make([]float32, 0, 2*400), make([]int64, 0, 400)
	for i := range 400 {
		x = append(x, float32(4*(i%2)+1)+0.2*float32(rng.NormFloat64()), 0.2*float32(rng.NormFloat64()))
		y = append(y, int64(i%2))
	}
	if err := npy.WriteFile(filepath.Join(dir, "features.npy"), x, 400, 2); err != nil {
		log.Fatal(err)
	}
	if err := npy.WriteFile(filepath.Join(dir, "labels.npy"), y, 400); err != nil {
		log.Fatal(err)
	}
	return dir
}

// A detector trains on features from anywhere: a folder with features.npy and
// labels.npy. Here they are two clouds of points in the plane.
func ExampleTrain() {
	dir := twoClouds()
	defer os.RemoveAll(dir)

	opts := pipeline.TrainOptions{Features: []string{dir}}
	opts.Train.Epochs = 100
	detector, result, err := pipeline.Train(context.Background(), opts)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Rows.Train, "rows trained on")
	verdicts, err := detector.Verdicts(context.Background(), []float32{
		1, 0, // in the middle of the first cloud
		5, 0, // of the second
		3, 4, // of neither
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, v := range verdicts {
		if v.OOD {
			fmt.Println("out of distribution")
		} else {
			fmt.Println("class", v.Class)
		}
	}
	// Output:
	// 320 rows trained on
	// class 0
	// class 1
	// out of distribution
}

// An explainer says why features were judged as they were. For images, give it to
// Detect or to Judge.Explain.
func ExampleNewExplainer() {
	dir := twoClouds()
	defer os.RemoveAll(dir)
	ctx := context.Background()
	detector, _, err := pipeline.Train(ctx, pipeline.TrainOptions{Features: []string{dir}})
	if err != nil {
		log.Fatal(err)
	}

	explainer, err := pipeline.NewExplainer(ctx, detector, pipeline.ExplainOptions{Nearest: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer explainer.Close()
	rows := []float32{
		1, 0, // in the middle of the first cloud
		3, 4, // in none
	}
	verdicts, err := detector.Verdicts(ctx, rows)
	if err != nil {
		log.Fatal(err)
	}
	explanations, err := explainer.Explain(ctx, rows, verdicts)
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range explanations {
		fmt.Println(e.Why)
		fmt.Printf("%s: %s; nearest: class %s\n", e.Parts[0].Name, e.Parts[0].Meaning, e.Nearest[0].Class)
	}
	// Output:
	// Not flagged: no part of the score is unusual beside the calibration images.
	// density: near to a class; nearest: class 0
	// Flagged: farther from every class than all 40 calibration images.
	// density: far from every class; nearest: class 1
}

// Add teaches a detector a class more: only the new images go through its model, which
// is pixels here.
func ExampleAdd() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	in := func(name string) string { return filepath.Join(dir, name) }
	for i, name := range []string{"images/red", "images/green", "blue"} {
		if err := paint(in(name), i); err != nil {
			log.Fatal(err)
		}
	}
	ctx := context.Background()
	extract := pipeline.ExtractOptions{Model: "pixels", Images: in("images"), Out: in("features")}
	if _, err := pipeline.Extract(ctx, extract); err != nil {
		log.Fatal(err)
	}
	opts := pipeline.TrainOptions{Features: []string{in("features")}}
	opts.Train.Epochs = 5
	old, _, err := pipeline.Train(ctx, opts)
	if err != nil {
		log.Fatal(err)
	}

	detector, _, change, err := pipeline.Add(ctx, pipeline.AddOptions{
		Detector: old,
		Images:   []pipeline.AddedImages{{Class: "blue", Folder: in("blue"), Features: in("blue.features")}},
	})
	if err != nil {
		log.Fatal(err)
	}
	blue := change.Added[0]
	fmt.Println("classes:", detector.Classes)
	fmt.Printf("the old detector flagged %d of %d images of %s\n", blue.FlaggedBefore, blue.Images, blue.Class)
	fmt.Printf("the new one knows %d of %d that it was not trained on\n", blue.Right, blue.HeldOut)
	fmt.Printf("of the known classes %d of %d were right, and are %d\n", change.All.RightBefore, change.All.Images, change.All.RightAfter)
	// Output:
	// classes: [blue green red]
	// the old detector flagged 100 of 100 images of blue
	// the new one knows 10 of 10 that it was not trained on
	// of the known classes 20 of 20 were right, and are 20
}

// A Judge keeps a detector and its model open, and judges images from anywhere: here
// files, for a detector whose features are pixels.
func ExampleOpenJudge() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	in := func(name string) string { return filepath.Join(dir, name) }
	for i, name := range []string{"images/red", "images/green", "blue"} {
		if err := paint(in(name), i); err != nil {
			log.Fatal(err)
		}
	}
	ctx := context.Background()
	if _, err := pipeline.Extract(ctx, pipeline.ExtractOptions{Model: "pixels", Images: in("images"), Out: in("features")}); err != nil {
		log.Fatal(err)
	}
	opts := pipeline.TrainOptions{Features: []string{in("features")}}
	opts.Train.Epochs = 5
	detector, _, err := pipeline.Train(ctx, opts)
	if err != nil {
		log.Fatal(err)
	}
	if err := detector.Save(in("colours.safetensors")); err != nil {
		log.Fatal(err)
	}

	judge, err := pipeline.OpenJudge(ctx, in("colours.safetensors"), extractor.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer judge.Close()
	for _, name := range []string{"images/red/0.png", "blue/0.png"} {
		verdict, err := judge.Image(ctx, pipeline.File(in(name)))
		switch {
		case err != nil:
			log.Fatal(err)
		case verdict.OOD:
			fmt.Println(name, "is of no class that is known")
		default:
			fmt.Println(name, "is", verdict.Class)
		}
	}
	// Output:
	// images/red/0.png is red
	// blue/0.png is of no class that is known
}

// paint writes a hundred images of mostly one colour.
func paint(folder string, channel int) error {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(3, uint64(channel)))
	for i := range 100 {
		img := image.NewNRGBA(image.Rect(0, 0, 4, 4))
		for at := range img.Pix {
			img.Pix[at] = uint8(20 + rng.IntN(60))
			if at%4 == channel || at%4 == 3 {
				img.Pix[at] += 150
			}
			if at%4 == 3 {
				img.Pix[at] = 255
			}
		}
		f, err := os.Create(filepath.Join(folder, fmt.Sprintf("%d.png", i)))
		if err != nil {
			return err
		}
		if err := errors.Join(png.Encode(f, img), f.Close()); err != nil {
			return err
		}
	}
	return nil
}
