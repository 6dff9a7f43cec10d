package images_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/parquet-go/parquet-go"

	"github.com/mlrbfn/mlrbfn/images"
)

// A program that imports this package reads Parquet files as it reads tars.
func Example() {
	dir, err := os.MkdirTemp("", "parquet")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	type pictures struct {
		JPG []byte `parquet:"jpg"`
		Key string `parquet:"key"`
	}
	file := filepath.Join(dir, "00000.parquet")
	if err := parquet.WriteFile(file, []pictures{{[]byte("first"), "a"}, {[]byte("second"), "b"}}); err != nil {
		log.Fatal(err)
	}

	ctx := context.Background()
	listing, err := images.ListSources(ctx, file)
	if err != nil {
		log.Fatal(err)
	}
	var members []images.Member
	stream := listing.Stream(ctx, []int{0}, images.StreamOptions{Ended: func(_ int, c images.Contents) { members = c.Images }})
	defer stream.Close()
	for {
		if _, err := stream.Next(ctx); err != nil { // io.EOF
			break
		}
	}
	for _, image := range members {
		fmt.Println(image.Path, image.Bytes, "bytes")
	}
	// Output:
	// 00000.parquet#0 5 bytes
	// 00000.parquet#1 6 bytes
}
