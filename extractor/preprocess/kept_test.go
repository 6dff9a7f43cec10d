package preprocess

import (
	"bytes"
	"fmt"
	"image"
	"testing"

	"pgregory.net/rapid"
)

// anySpec draws a pipeline with sides up to limit.
func anySpec(t *rapid.T, limit int) *Spec {
	side := rapid.IntRange(1, limit)
	s := &Spec{
		Grey:         rapid.Bool().Draw(t, "grey"),
		Resize:       rapid.SampledFrom([]ResizeMode{None, Squash, Shortest, Cover, Contain}).Draw(t, "resize"),
		ResizeHeight: side.Draw(t, "resize height"), ResizeWidth: side.Draw(t, "resize width"),
		Filter: rapid.SampledFrom([]Filter{Nearest, Lanczos, Bilinear, Bicubic, Box, Hamming}).Draw(t, "filter"),
		Height: side.Draw(t, "height"), Width: side.Draw(t, "width"),
		Rounding: rapid.SampledFrom([]Rounding{Floor, HalfEven}).Draw(t, "rounding"),
		Scale:    1, Std: [3]float64{1, 1, 1},
	}
	if s.Resize == Shortest {
		s.ResizeWidth = s.ResizeHeight
	}
	return s
}

// TestCropReadsOnlyWhatIsKept: the pixels outside the part that kept names have
// no influence on a crop.
func TestCropReadsOnlyWhatIsKept(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := anySpec(t, 90)
		w, h := rapid.IntRange(1, 90).Draw(t, "w"), rapid.IntRange(1, 90).Draw(t, "h")
		img := noise(w, h, rapid.Uint64().Draw(t, "seed"))
		want, err := s.Crop(img)
		if err != nil {
			return // too elongated
		}
		part := s.kept(w, h)
		for i := range img.Pix {
			if at := i / 4; !image.Pt(at%w, at/w).In(part) {
				img.Pix[i] ^= 0xff
			}
		}
		got, err := s.Crop(img)
		if err != nil || !bytes.Equal(got.Pix, want.Pix) {
			t.Fatalf("pixels outside %v of %d×%d have influence (%v)", part, w, h, err)
		}
	})
}

// TestDecodeForACrop: of an image that is decoded for a pipeline it makes what
// it does of one that is decoded wholly, also of those that are turned.
func TestDecodeForACrop(t *testing.T) {
	t.Parallel()
	files := decodeFiles(t)
	rapid.Check(t, func(rt *rapid.T) {
		file := rapid.SampledFrom(files).Draw(rt, "file")
		s := anySpec(rt, 50)
		data, opts := readFile(t, file), DecodeOptions{Reading: Reading{ApplyEXIF: rapid.Bool().Draw(rt, "exif")}}
		img, err := Decode(t.Context(), data, opts)
		if err != nil {
			rt.Fatal(err)
		}
		want, wantErr := s.Crop(img)
		opts.For, opts.Reuse = s, noise(200, 200, 1)
		if img, err = Decode(t.Context(), data, opts); err != nil {
			rt.Fatal(err)
		}
		got, err := s.Crop(img)
		if fmt.Sprint(err) != fmt.Sprint(wantErr) {
			rt.Fatalf("error is %v, want %v", err, wantErr)
		}
		if err == nil && !bytes.Equal(got.Pix, want.Pix) {
			rt.Fatalf("the crop of %s differs", file)
		}
	})
}

// TestKeptIsSmall: of a photograph that is resized to 256 and cropped to 224 by
// 224 only that square and what the filter reaches is kept.
func TestKeptIsSmall(t *testing.T) {
	t.Parallel()
	s := Spec{Resize: Shortest, ResizeHeight: 256, ResizeWidth: 256, Filter: Bicubic,
		Height: 224, Width: 224, Rounding: Floor, Scale: 1, Std: [3]float64{1, 1, 1}}
	// 375/256 = 1.46: the square is 328 pixels of the photograph wide.
	const side, reach = 329, 2 * 4
	if part := s.kept(500, 375); part.Dx() > side+reach || part.Dy() > side+reach {
		t.Errorf("%v of 500×375 is kept, want %d×%d and %d more", part, side, side, reach)
	}
}
