package testenv

import (
	"errors"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"testing"
)

// SavePNG writes an image to a file, in folders that it makes.
func SavePNG(tb testing.TB, file string, img image.Image) {
	tb.Helper()
	err := os.MkdirAll(filepath.Dir(file), 0o777)
	if err != nil {
		tb.Fatal(err)
	}
	f, err := os.Create(file)
	if err != nil {
		tb.Fatal(err)
	}
	if err := errors.Join(png.Encode(f, img), f.Close()); err != nil {
		tb.Fatal(err)
	}
}
