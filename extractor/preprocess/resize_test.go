package preprocess

import (
	"fmt"
	"image"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/disintegration/imaging"
	"pgregory.net/rapid"

	_ "github.com/mlrbfn/mlrbfn/internal/testenv"
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
	t.Parallel()
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

// BenchmarkTensor goes from an image to the normalised crop of its middle.
func BenchmarkTensor(b *testing.B) {
	for _, size := range []image.Point{{X: 500, Y: 375}, {X: 640, Y: 480}, {X: 1024, Y: 768}, {X: 3000, Y: 2000}} {
		img := noise(size.X, size.Y, 1)
		for _, filter := range []Filter{Bicubic, Bilinear, Lanczos} {
			b.Run(fmt.Sprintf("%dx%d/%s", size.X, size.Y, filter), func(b *testing.B) {
				spec := &Spec{Resize: Shortest, ResizeHeight: 256, ResizeWidth: 256, Filter: filter, Height: 224, Width: 224, Rounding: Floor,
					Scale: 1. / 255, Mean: [3]float64{0.485, 0.456, 0.406}, Std: [3]float64{0.229, 0.224, 0.225}}
				dst := make([]float32, 3*224*224)
				b.ReportAllocs()
				for b.Loop() {
					if err := spec.Tensor(dst, img, NCHW); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// TestAxesAreRemembered: what was asked for last is there still, but few axes
// are kept, and large ones only until the next is asked for.
func TestAxesAreRemembered(t *testing.T) {
	t.Parallel()
	var x axes
	for i := range 3 * maxRecent {
		a := ask{100 + i, 50, 0, 50, Bicubic}
		if i%5 == 0 {
			a = ask{maxRecentWeights + 1 + i, 1, 0, 1, Box}
		}
		k := x.of(a, (*layout).setColumns)
		if k.ask != a || x.of(a, (*layout).setColumns) != k {
			t.Fatalf("axis is %v and not there twice, want %v", k.ask, a)
		}
		if len(x.recent) > 1 {
			before := x.recent[1]
			if x.of(before.ask, (*layout).setColumns) != before {
				t.Fatalf("%v is not remembered", before.ask)
			}
		}
		large := 0
		for _, k := range x.recent {
			if cap(k.whole) > maxRecentWeights {
				large++
			}
		}
		if len(x.recent) > maxRecent || large > 1 {
			t.Fatalf("%d axes are kept, %d of them large; want at most %d and 1", len(x.recent), large, maxRecent)
		}
	}
}

// BenchmarkAxes computes the columns and the rows of one size after the other.
func BenchmarkAxes(b *testing.B) {
	for _, filter := range []Filter{Bicubic, Bilinear, Lanczos} {
		b.Run(string(filter), func(b *testing.B) {
			var columns, rows axes
			for i := 0; b.Loop(); i++ {
				i %= 2 * maxRecent
				columns.of(ask{500, 341 + i, 58, 58 + 224, filter}, (*layout).setColumns)
				rows.of(ask{375, 256 + i, 16, 16 + 224, filter}, (*layout).setRows)
			}
		})
	}
}

// TestWindowsLackOnlyZeros: what windows leave out weighs nothing, and none
// begins before the one before.
func TestWindowsLackOnlyZeros(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		filter := rapid.SampledFrom(filters[1:]).Draw(t, "filter")
		in, out := rapid.IntRange(1, 300).Draw(t, "in"), rapid.IntRange(1, 300).Draw(t, "out")
		lo := rapid.IntRange(0, out-1).Draw(t, "lo")
		var w windows
		w.set(ask{in, out, lo, rapid.IntRange(lo+1, out).Draw(t, "hi"), filter})
		whole := windows{ask: w.ask, first: w.first}
		room := taps(in, out, filter)
		whole.weigh(room)
		for i, b := range whole.bounds {
			want, got := make([]int32, in), make([]int32, in)
			copy(want[b.from:b.to], whole.whole[i*room:])
			copy(got[w.first[i]:], w.weights[i*w.taps:][:w.taps])
			if !slices.Equal(got, want) || i > 0 && w.first[i] < w.first[i-1] {
				t.Fatalf("weights of output %d, from input %d, are %v, want %v", i, w.first[i], got, want)
			}
		}
	})
}
