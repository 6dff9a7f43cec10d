package s3_test

import (
	"context"
	"fmt"
	"log"

	_ "github.com/mlrbfn/mlrbfn/bucket/s3"
	"github.com/mlrbfn/mlrbfn/internal/bucket"
)

// A program that imports this package knows s3:// and gs://.
func Example() {
	// No request is sent until something is read.
	photos, err := bucket.Open(context.Background(), "s3://photos/2026")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(photos.Sub("november").URL("cat.jpg"))
	// Output:
	// s3://photos/2026/november/cat.jpg
}

// It lists and reads what the credentials of the environment may see.
func Example_list() {
	ctx := context.Background()
	photos, err := bucket.Open(ctx, "s3://photos/2026")
	if err != nil {
		log.Fatal(err)
	}
	for object, err := range photos.List(ctx, "november/") {
		if err != nil {
			log.Fatal(err)
		}
		data, _, err := photos.Read(ctx, object.Name, 1<<30)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(object.Name, len(data))
	}
}
