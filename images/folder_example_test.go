package images_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/mlrbfn/mlrbfn/images"
)

// Each image that comes to lie in a folder is handed out once.
func ExampleWatched() {
	dir, err := os.MkdirTemp("", "folder")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	f := &images.Watched{
		Dir: dir, Source: "gate", MaxBytes: 1 << 20, Every: time.Millisecond, Settle: time.Millisecond,
		Known: func(context.Context, []string) (map[string]bool, error) { return nil, nil }, // none yet
		Image: func(_ context.Context, img images.WatchedImage) error {
			fmt.Println(img.Path, len(img.Data), "bytes", img.Err)
			cancel() // one is enough here
			return nil
		},
	}
	if err := f.Open(); err != nil {
		log.Fatal(err)
	}
	// A file is written under another name and renamed when it is whole.
	if err := os.WriteFile(filepath.Join(dir, "0001.jpg.part"), make([]byte, 100), 0o666); err != nil {
		log.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "0001.jpg.part"), filepath.Join(dir, "0001.jpg")); err != nil {
		log.Fatal(err)
	}
	f.Run(ctx)
	// Output:
	// 0001.jpg 100 bytes <nil>
}
