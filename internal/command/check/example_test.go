package check_test

import (
	"context"
	"fmt"
	"log"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/command/check"
)

// Some images of all classes tell most of what there is to find.
func ExampleSample() {
	var all []images.Item
	for i := range 20 {
		item := images.EncodedItem(fmt.Sprintf("%02d.jpg", i), nil)
		item.Label = i / 18 // the second class has two images
		all = append(all, item)
	}
	for _, item := range check.Sample(all, 4) {
		fmt.Println(item.Path, item.Label)
	}
	// Output:
	// 00.jpg 0
	// 18.jpg 1
	// 05.jpg 0
	// 10.jpg 0
}

// A check runs a model on images of the folder, and says what is probably wrong.
func ExampleRun() {
	ctx := context.Background()
	model, err := extractor.OpenModel(ctx, "models/vit-tiny", extractor.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	photos, err := images.List(ctx, images.ListOptions{Root: "photos"})
	if err != nil {
		log.Fatal(err)
	}
	report, err := check.Run(ctx, model, check.Options{Images: check.Sample(photos.Items, check.DefaultImages)})
	if err != nil {
		log.Fatal(err)
	}
	for _, warning := range report.Warnings {
		fmt.Println(warning)
	}
}
