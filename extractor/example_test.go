package extractor_test

import (
	"context"
	"fmt"
	"image"
	"image/color"
	"log"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/images"
)

// Pixels takes the pixels of an image as its features, channel by channel. The model of
// an ONNX file, which [extractor.OpenModel] opens, has the same methods.
func ExampleNewPixels() {
	ctx := context.Background()
	spec, err := extractor.Options{Width: 2, Height: 1}.PixelSpec(ctx, &images.Listing{})
	if err != nil {
		log.Fatal(err)
	}
	pixels, err := extractor.NewPixels(spec, preprocess.Reading{})
	if err != nil {
		log.Fatal(err)
	}
	defer pixels.Close()
	img := image.NewNRGBA(image.Rect(0, 0, 2, 1))
	img.Set(0, 0, color.NRGBA{255, 0, 0, 255})
	img.Set(1, 0, color.NRGBA{0, 0, 255, 255})
	items := []images.Item{images.PixelsItem("red and blue", img), images.EncodedItem("text", []byte("no image"))}
	_, err = pixels.Extract(ctx, images.Of(items...), extractor.Options{Workers: 1}, func(r extractor.Row) error {
		if r.Err != nil {
			fmt.Println(r.Item.Path, "has no features")
		} else {
			fmt.Println(r.Item.Path, r.Features)
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Unordered output:
	// red and blue [1 0 0 0 0 1]
	// text has no features
}
