package preprocess

import (
	"bytes"
	"image"
	"testing"

	"pgregory.net/rapid"
)

// TestUpsamplingReadsOnlyTheImage: what a decoder's planes hold beyond the
// image, to whole blocks, has no influence.
func TestUpsamplingReadsOnlyTheImage(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const ratio = image.YCbCrSubsampleRatio420
		w, h := rapid.IntRange(1, 40).Draw(t, "width"), rapid.IntRange(1, 40).Draw(t, "height")
		exact := image.NewYCbCr(image.Rect(0, 0, w, h), ratio)
		state := rapid.Uint32().Draw(t, "samples")
		for _, plane := range [][]uint8{exact.Y, exact.Cb, exact.Cr} {
			for i := range plane {
				state = state*1664525 + 1013904223
				plane[i] = uint8(state >> 24)
			}
		}
		padded := image.NewYCbCr(image.Rect(0, 0, w+32, h+32), ratio)
		for _, planes := range []struct {
			to, from         []uint8
			stride, original int
		}{
			{padded.Y, exact.Y, padded.YStride, exact.YStride},
			{padded.Cb, exact.Cb, padded.CStride, exact.CStride},
			{padded.Cr, exact.Cr, padded.CStride, exact.CStride},
		} {
			for y := 0; y*planes.original < len(planes.from); y++ {
				copy(planes.to[y*planes.stride:], planes.from[y*planes.original:][:planes.original])
			}
		}
		want, err := rgb(t.Context(), exact)
		if err != nil {
			t.Fatal(err)
		}
		got, err := rgb(t.Context(), padded.SubImage(exact.Rect))
		if err != nil {
			t.Fatal(err)
		}
		if got.Rect != want.Rect || !bytes.Equal(got.Pix, want.Pix) {
			t.Errorf("%v of %d×%d depends on what lies beyond it", ratio, w, h)
		}
	})
}
