package testenv

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"math/rand/v2"
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

// DrawnPNG returns a PNG of 6×6 pixels of mostly one colour: 0 is red, 1 green, 2 blue.
func DrawnPNG(channel int, seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, uint64(channel)))
	img := image.NewNRGBA(image.Rect(0, 0, 6, 6))
	for at := range 36 {
		c := [3]uint8{uint8(20 + rng.IntN(60)), uint8(20 + rng.IntN(60)), uint8(20 + rng.IntN(60))}
		c[channel] += 150
		img.SetNRGBA(at%6, at/6, color.NRGBA{c[0], c[1], c[2], 255})
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		panic(err) // a buffer takes all
	}
	return b.Bytes()
}

// DrawnFolder writes n images of a colour into a folder.
func DrawnFolder(dir string, channel, n int) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	for i := range n {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.png", i)), DrawnPNG(channel, uint64(i)), 0o666); err != nil {
			return err
		}
	}
	return nil
}
