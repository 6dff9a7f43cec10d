//go:build amd64 && !noasm

package preprocess

import (
	"bytes"
	"image"
	"testing"

	"pgregory.net/rapid"
)

// TestAssemblyEqualsGo: what this machine can run makes the same bits, of
// images, parts and filters of all kinds, in the room that the image before has
// left, and reads and writes nothing around them.
func TestAssemblyEqualsGo(t *testing.T) {
	defer func(before *machine) { fastest = before }(fastest)
	for _, m := range machines() {
		t.Run(m.name, func(t *testing.T) {
			var fast, plain resizer
			near, far := 0, 0 // images that the assembly made
			rapid.Check(t, func(t *rapid.T) {
				atEnd := rapid.Bool().Draw(t, "at end")
				img := drawImage(t, 400)
				img.Rect = img.Rect.Sub(img.Rect.Min)
				pixels := img.Pix[:(img.Rect.Dy()-1)*img.Stride+4*img.Rect.Dx()]
				img.Pix = guarded(t, len(pixels), atEnd)
				copy(img.Pix, pixels)
				filter := rapid.SampledFrom(filters).Draw(t, "filter")
				w, h := rapid.IntRange(1, 90).Draw(t, "width"), rapid.IntRange(1, 90).Draw(t, "height")
				x, y := rapid.IntRange(0, w-1).Draw(t, "x"), rapid.IntRange(0, h-1).Draw(t, "y")
				part := image.Rect(x, y, rapid.IntRange(x+1, w).Draw(t, "right"), rapid.IntRange(y+1, h).Draw(t, "bottom"))
				want := image.NewNRGBA(part.Sub(part.Min))
				got := &image.NRGBA{Pix: guarded(t, len(want.Pix), atEnd), Stride: want.Stride, Rect: want.Rect}
				fastest = m
				if err := fast.resize(got, img, w, h, part, filter); err != nil {
					t.Fatal(err)
				}
				if p := &fast.pass; p.fast && p.near {
					near++
				} else if p.fast {
					far++
				}
				fastest = nil
				if err := plain.resize(want, img, w, h, part, filter); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got.Pix, want.Pix) {
					t.Fatal("pixels differ")
				}
			})
			if far == 0 || near == 0 && m.near != nil {
				t.Errorf("%d images were made with near inputs, %d with others: want some of both", near, far)
			}
		})
	}
}

// TestWeightsFitTheirParts: no window has weights that are too large for how
// they are split.
func TestWeightsFitTheirParts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		filter := rapid.SampledFrom(filters).Draw(t, "filter")
		in, out := rapid.IntRange(4, 3000).Draw(t, "in"), rapid.IntRange(1, 600).Draw(t, "out")
		var w windows
		w.set(ask{in, out, 0, out, filter}, 4)
		for ; len(w.weights) >= 4; w.weights = w.weights[4:] {
			var small, large [4]uint32
			bytesOf(small[:], w.weights)
			wordsOf(large[:], w.weights)
			for k, want := range w.weights[:4] {
				part := func(i int) int32 { return int32(int8(small[i] >> (8 * k))) }
				if got := part(0)<<16 + part(1)<<8 + part(2); got != want {
					t.Fatalf("bytes of %d are those of %d", want, got)
				}
				half := func(i int) int32 { return int32(int16(large[i+k%2] >> (k / 2 * 16))) }
				if got := half(0)<<15 + half(2); got != want {
					t.Fatalf("words of %d are those of %d", want, got)
				}
			}
		}
	})
}
