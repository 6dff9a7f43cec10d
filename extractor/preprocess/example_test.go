package preprocess_test

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"log"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
)

// From the bytes of an image to what a model is given, as its configuration says.
func Example() {
	spec, err := preprocess.Parse("preprocessor_config.json", []byte(`{
		"image_processor_type": "ViTImageProcessor",
		"size": {"height": 2, "width": 2}, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]
	}`))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(spec)

	red := image.NewNRGBA(image.Rect(0, 0, 4, 4))
	for i := range 16 {
		red.Set(i%4, i/4, color.NRGBA{255, 0, 0, 255})
	}
	var file bytes.Buffer
	if err := png.Encode(&file, red); err != nil {
		log.Fatal(err)
	}
	img, err := preprocess.Decode(context.Background(), file.Bytes(), preprocess.DecodeOptions{})
	if err != nil {
		log.Fatal(err)
	}
	tensor := make([]float32, spec.Channels()*spec.Height*spec.Width)
	if err := spec.Tensor(tensor, img, preprocess.NCHW); err != nil {
		log.Fatal(err)
	}
	fmt.Println(tensor)
	// Output:
	// resized to 2×2 whatever their shape (bilinear), cropped or padded in the centre to 2×2, times 0.00392157, minus [0.5 0.5 0.5], divided by [0.5 0.5 0.5]
	// [1 1 1 1 -1 -1 -1 -1 -1 -1 -1 -1]
}
