//go:build amd64 && !noasm

package preprocess

import (
	"bytes"
	"image"
	"testing"

	"pgregory.net/rapid"
)

// TestAssemblyEqualsGo: both make the same bits, of images, parts and filters of
// all kinds, in the room that the image before has left.
func TestAssemblyEqualsGo(t *testing.T) {
	if !assembled {
		t.Skip("this machine cannot run the assembly")
	}
	defer func() { assembled = true }()
	var fast, plain resizer
	rapid.Check(t, func(t *rapid.T) {
		img := drawImage(t)
		img.Rect = img.Rect.Sub(img.Rect.Min)
		filter := rapid.SampledFrom(filters).Draw(t, "filter")
		w, h := rapid.IntRange(1, 90).Draw(t, "width"), rapid.IntRange(1, 90).Draw(t, "height")
		x, y := rapid.IntRange(0, w-1).Draw(t, "x"), rapid.IntRange(0, h-1).Draw(t, "y")
		part := image.Rect(x, y, rapid.IntRange(x+1, w).Draw(t, "right"), rapid.IntRange(y+1, h).Draw(t, "bottom"))
		got, want := image.NewNRGBA(part.Sub(part.Min)), image.NewNRGBA(part.Sub(part.Min))
		assembled = true
		if err := fast.resize(got, img, w, h, part, filter); err != nil {
			t.Fatal(err)
		}
		assembled = false
		if err := plain.resize(want, img, w, h, part, filter); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Pix, want.Pix) {
			t.Fatal("pixels differ")
		}
	})
}
