//go:build amd64 && !noasm

package preprocess

import (
	"bytes"
	"image"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

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
				filter := rapid.SampledFrom(filters).Draw(t, "filter")
				// Even odds for all sizes, where rapid prefers those that are too
				// small for the assembly.
				rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "sizes"), 0))
				img := noise(1+rng.IntN(400), 1+rng.IntN(60), rng.Uint64())
				for range rng.IntN(2) * len(img.Pix) {
					img.Pix[rng.IntN(len(img.Pix))] = uint8(-rng.IntN(2)) // whose sums are clipped
				}
				w, h := 1+rng.IntN(90), 1+rng.IntN(90)
				x, y := rng.IntN(w), rng.IntN(h)
				part := image.Rect(x, y, x+1+rng.IntN(w-x), y+1+rng.IntN(h-y))
				// The image is part of a wider one, of which the last row ends with it.
				stride := img.Stride + 4*rng.IntN(3)
				pixels := guarded(t, (img.Rect.Dy()-1)*stride+img.Stride, atEnd)
				for y := range img.Rect.Dy() {
					copy(pixels[y*stride:], img.Pix[y*img.Stride:][:img.Stride])
				}
				img.Pix, img.Stride = pixels, stride
				want := image.NewNRGBA(part.Sub(part.Min))
				got := &image.NRGBA{Pix: guarded(t, len(want.Pix), atEnd), Stride: want.Stride, Rect: want.Rect}
				fastest = m
				if err := fast.resize(got, img, w, h, part, filter); err != nil {
					t.Fatal(err)
				}
				if l := &fast.columns.recent[0].layout; l.fits() && l.near {
					near++
				} else if l.fits() {
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

// TestManyWeightsAreNotLaidOut: a strip of a million pixels takes no memory
// beyond its weights.
func TestManyWeightsAreNotLaidOut(t *testing.T) {
	t.Parallel()
	for _, lay := range []func(*layout, *windows, *machine){(*layout).setColumns, (*layout).setRows} {
		for _, m := range machines() {
			for in, want := range map[int]bool{1 << 18: true, 1 << 20: false} {
				var k axis
				k.set(ask{in, 32, 0, 32, Bilinear})
				lay(&k.layout, &k.windows, m)
				if k.fits() != want || want == (cap(k.parts)+cap(k.sources) == 0) {
					t.Errorf("%s: %d weights have %d words (fit: %t), want some: %t", m.name, len(k.weights), cap(k.parts)+cap(k.sources), k.fits(), want)
				}
			}
		}
	}
}

// TestWeightsFitTheirParts: no window has weights that are too large for how
// they are split.
func TestWeightsFitTheirParts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		filter := rapid.SampledFrom(filters).Draw(t, "filter")
		in, out := rapid.IntRange(4, 3000).Draw(t, "in"), rapid.IntRange(1, 600).Draw(t, "out")
		var w windows
		w.set(ask{in, out, 0, out, filter})
		for ; len(w.weights) >= 4; w.weights = w.weights[4:] {
			four := [4]int32(w.weights)
			small, large := bytesOf(four), wordsOf(four)
			for k, want := range four {
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

// TestValuesEqualLevels: normalising gives the bits of the table, whatever the
// numbers, and writes nothing around them.
func TestValuesEqualLevels(t *testing.T) {
	defer func(before *machine) { fastest = before }(fastest)
	for _, m := range machines() {
		t.Run(m.name, func(t *testing.T) {
			fastest = m
			exact, inexact := 0, 0
			rapid.Check(t, func(t *rapid.T) {
				number := func(name string) float64 {
					x := rapid.Float64Range(-1, 1).Draw(t, name)
					return math.Ldexp(x, rapid.SampledFrom([]int{0, 0, 0, -60, -130, 60}).Draw(t, name+" exponent"))
				}
				s := &Spec{Resize: None, Rounding: Floor, Grey: rapid.Bool().Draw(t, "grey"),
					Width: rapid.IntRange(1, 300).Draw(t, "width"), Height: rapid.IntRange(1, 3).Draw(t, "height"), Scale: number("scale")}
				for c := range 3 {
					s.Mean[c], s.Std[c] = number("mean"), number("std")
				}
				var n normaliser
				if n.set(s) != nil {
					return
				}
				if n.machine != nil {
					exact++
				} else {
					inexact++
				}
				atEnd, plane := rapid.Bool().Draw(t, "at end"), s.Width*s.Height
				pixels := guarded(t, 4*plane, atEnd)
				rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "pixels"), 0))
				for i := range pixels {
					pixels[i] = uint8(rng.Uint32())
				}
				memory := guarded(t, 4*s.Channels()*plane, atEnd)
				dst := unsafe.Slice((*float32)(unsafe.Pointer(&memory[0])), s.Channels()*plane)
				n.normalise(dst, pixels, NCHW)
				for i, got := range dst {
					level := pixels[i%plane*4+i/plane]
					if want := n.levels[i/plane][level]; math.Float32bits(got) != math.Float32bits(want) {
						t.Fatalf("value %d, of level %d, is %v, want %v", i, level, got, want)
					}
				}
			})
			if exact == 0 || inexact == 0 {
				t.Errorf("%d were calculated, %d looked up: want some of both", exact, inexact)
			}
			for _, usual := range [][3][3]float64{ // scale, mean, std
				{{1. / 255}, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}},
				{{1. / 255}, {0.48145466, 0.4578275, 0.40821073}, {0.26862954, 0.26130258, 0.27577711}},
				{{1. / 255}, {0.5, 0.5, 0.5}, {0.5, 0.5, 0.5}},
				{{1. / 255}, {0, 0, 0}, {1, 1, 1}},
				{{1. / 127.5}, {1, 1, 1}, {1, 1, 1}},
				{{1}, {127, 127, 127}, {128, 128, 128}},
			} {
				s := &Spec{Resize: None, Rounding: Floor, Width: 1, Height: 1, Scale: usual[0][0], Mean: usual[1], Std: usual[2]}
				var n normaliser
				if err := n.set(s); err != nil || n.machine == nil {
					t.Errorf("scale, mean and std of %v are looked up (error %v)", usual, err)
				}
			}
		})
	}
}
