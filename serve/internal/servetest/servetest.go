// Package servetest makes images and detectors for tests.
package servetest

import (
	"bytes"
	"context"
	"image"
	"image/color"
	"image/png"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// Classes are those of the detectors here.
var Classes = []string{"<b>dark</b>", "light"}

// Image is a small picture of a class, 0 or 1, as a PNG; another one for each seed.
func Image(class int, seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 1))
	img := image.NewNRGBA(image.Rect(0, 0, 4, 3))
	for i := range 12 {
		shade := func() uint8 { return uint8(rng.IntN(100) + 150*class) }
		img.Set(i%4, i/4, color.NRGBA{shade(), shade(), shade(), 255})
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		panic(err) // a buffer takes everything
	}
	return b.Bytes()
}

// Detector trains a detector of the pixels of such images and returns its file; another
// one for each seed.
func Detector(tb testing.TB, seed uint64) string {
	tb.Helper()
	dir := tb.TempDir()
	images, features := filepath.Join(dir, "images"), filepath.Join(dir, "features")
	for i := range 80 {
		folder := filepath.Join(images, strconv.Itoa(i%2))
		if err := os.MkdirAll(folder, 0o777); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, strconv.Itoa(i)+".png"), Image(i%2, uint64(i)), 0o666); err != nil {
			tb.Fatal(err)
		}
	}
	if _, err := pipeline.Extract(context.Background(), pipeline.ExtractOptions{Model: extractor.PixelsName, Images: images, Out: features, Options: extractor.Options{Width: 4, Height: 3}}); err != nil {
		tb.Fatal(err)
	}
	opts := pipeline.TrainOptions{Features: []string{features}, Seeds: []uint64{seed}}
	opts.Train.Epochs = 3
	opts.Calibration.Fraction = 0.4
	d, _, err := pipeline.Train(context.Background(), opts)
	if err != nil {
		tb.Fatal(err)
	}
	d.Classes = Classes
	file := filepath.Join(dir, "detector")
	if err := d.Save(file); err != nil {
		tb.Fatal(err)
	}
	return file
}
