package images_test

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/images"
)

// Images of tars are read from start to end, and nothing is unpacked.
func ExampleList() {
	dir, err := os.MkdirTemp("", "source")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for _, name := range []string{"train-00", "train-01"} {
		if err := pack(filepath.Join(dir, name+".tar"), "cat.png", "cat.cls", "dog.png", "dog.cls"); err != nil {
			log.Fatal(err)
		}
	}

	ctx := context.Background()
	listing, err := images.ListSources(ctx, filepath.Join(dir, "train-{00..01}.tar"))
	if err != nil {
		log.Fatal(err)
	}
	stream := listing.Stream(ctx, []int{0, 1}, images.StreamOptions{})
	defer stream.Close()
	for {
		image, err := stream.Next(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(image.Unit, image.Path)
	}
	// Output:
	// 0 train-00.tar#cat.png
	// 0 train-00.tar#dog.png
	// 1 train-01.tar#cat.png
	// 1 train-01.tar#dog.png
}

// pack writes a tar of small files.
func pack(file string, names ...string) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := tar.NewWriter(f)
	for _, name := range names {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o666, Size: int64(len(name))}); err != nil {
			return err
		}
		if _, err := io.WriteString(w, name); err != nil {
			return err
		}
	}
	return w.Close()
}
