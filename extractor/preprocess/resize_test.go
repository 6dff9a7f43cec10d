package preprocess

import (
	"image"
	"math/rand/v2"
	"testing"

	"github.com/disintegration/imaging"
	"pgregory.net/rapid"

	_ "mlrbfn/internal/testenv/fixedseed"
)

// noise makes an opaque image of smooth waves with noise on them.
func noise(w, h int, seed uint64) *image.NRGBA {
	rng := rand.New(rand.NewPCG(seed, 0))
	img := image.NewNRGBA(image.Rect(0, 0, w, h))
	for i := range img.Pix {
		img.Pix[i] = uint8(i/7 + rng.IntN(60))
		if i%4 == 3 {
			img.Pix[i] = 255
		}
	}
	return img
}

// resized is resizer.resize into a fresh image.
func resized(t rapid.TB, src *image.NRGBA, width, height int, part image.Rectangle, filter Filter) *image.NRGBA {
	t.Helper()
	dst := image.NewNRGBA(image.Rectangle{Max: part.Size()})
	var r resizer
	if err := r.resize(dst, src, width, height, part, filter); err != nil {
		t.Fatal(err)
	}
	return dst
}

// TestResizeAgainstImaging holds resize against a second witness, which shares
// nothing with Pillow. Each rounds after both of its passes, and so is at most
// one level from the true value; where the first is a tie they may be two apart.
// Bicubic and Lanczos, whose first pass overshoots and is clipped in Pillow,
// differ by dozens of levels there, and Box at ties.
func TestResizeAgainstImaging(t *testing.T) {
	filters := map[Filter]imaging.ResampleFilter{
		Bilinear: imaging.Linear,
		Hamming:  {Support: 1, Kernel: kernels[Hamming].weight},
	}
	rapid.Check(t, func(t *rapid.T) {
		side := rapid.IntRange(1, 90)
		src := noise(side.Draw(t, "w"), side.Draw(t, "h"), rapid.Uint64().Draw(t, "seed"))
		w, h := side.Draw(t, "W"), side.Draw(t, "H")
		for filter, witness := range filters {
			got := resized(t, src, w, h, image.Rect(0, 0, w, h), filter)
			want := imaging.Resize(src, w, h, witness)
			for i, v := range got.Pix {
				if d := int(v) - int(want.Pix[i]); d > 2 || d < -2 {
					t.Fatalf("%s: byte %d is %d, imaging has %d", filter, i, v, want.Pix[i])
				}
			}
		}
	})
}

func BenchmarkResize(b *testing.B) {
	src := noise(500, 375, 1)
	b.Run("ours", func(b *testing.B) {
		dst := image.NewNRGBA(image.Rect(0, 0, 341, 256))
		var r resizer
		for b.Loop() {
			if err := r.resize(dst, src, 341, 256, dst.Rect, Bicubic); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("imaging", func(b *testing.B) {
		for b.Loop() {
			imaging.Resize(src, 341, 256, imaging.CatmullRom)
		}
	})
}
