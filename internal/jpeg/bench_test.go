package jpeg

import (
	"image"
	"os"
	"path/filepath"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// photographs are JPEGs of 500×375 pixels, of ImageNet.
func photographs(b *testing.B) [][]byte {
	b.Helper()
	dir := testenv.Shared(b, "data/images/imagenet_samples")
	files, err := filepath.Glob(filepath.Join(dir, "*", "*", "*"))
	if err != nil {
		b.Fatal(err)
	}
	var found [][]byte
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			b.Fatal(err)
		}
		if c, err := DecodeConfig(data); err == nil && c == (Config{Width: 500, Height: 375, Components: 3}) {
			found = append(found, data)
		}
	}
	if len(found) == 0 {
		b.Skip("no photograph of 500×375 in " + dir)
	}
	return found
}

func BenchmarkDecode(b *testing.B) {
	files := photographs(b)
	size := 0
	for _, f := range files {
		size += len(f)
	}
	b.Logf("%d files, %d bytes on average", len(files), size/len(files))
	for _, wanted := range []image.Rectangle{{}, image.Rect(82, 19, 82+336, 19+336)} {
		b.Run(wanted.Size().String(), func(b *testing.B) {
			var img *image.NRGBA
			var err error
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if img, err = Decode(b.Context(), files[i%len(files)], Options{Wanted: wanted, Reuse: img}); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}
