package preprocess

import (
	"bytes"
	"encoding/json"
	"errors"
	"image"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// filters, in the order of Pillow's numbers.
var filters = []Filter{Nearest, Lanczos, Bilinear, Bicubic, Box, Hamming}

func drawSpec(t *rapid.T) *Spec {
	side := func(name string) int { return rapid.IntRange(1, 40).Draw(t, name) }
	s := &Spec{
		Grey:     rapid.Bool().Draw(t, "grey"),
		Resize:   rapid.SampledFrom([]ResizeMode{None, Squash, Shortest, Cover, Contain}).Draw(t, "resize"),
		Height:   side("height"),
		Width:    side("width"),
		Rounding: rapid.SampledFrom([]Rounding{Floor, HalfEven}).Draw(t, "rounding"),
		Fill:     [3]uint8{1, 2, 3},
		Scale:    1. / 255,
		Mean:     [3]float64{0.4, 0.5, 0.6},
		Std:      [3]float64{0.2, 0.25, 0.3},
	}
	if s.Resize != None {
		s.Filter = rapid.SampledFrom(filters).Draw(t, "filter")
		s.ResizeHeight, s.ResizeWidth = side("resize height"), side("resize width")
	}
	if s.Resize == Shortest {
		s.ResizeWidth = s.ResizeHeight
	}
	return s
}

// drawImage draws an image that is part of a larger one, which has other pixels
// around it and an alpha that must not matter.
func drawImage(t *rapid.T) *image.NRGBA {
	w, h := rapid.IntRange(1, 60).Draw(t, "w"), rapid.IntRange(1, 60).Draw(t, "h")
	whole := image.NewNRGBA(image.Rect(-2, -3, w+4, h+5))
	state := rapid.Uint32().Draw(t, "pixels")
	for i := range whole.Pix {
		state = state*1664525 + 1013904223
		whole.Pix[i] = uint8(state >> 24)
	}
	return whole.SubImage(image.Rect(0, 0, w, h)).(*image.NRGBA)
}

// TestCropIsAlwaysOfItsSize: whatever the image, the crop is H×W and opaque;
// only Contain may refuse, where an edge shrinks to nothing.
func TestCropIsAlwaysOfItsSize(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		spec, img := drawSpec(t), drawImage(t)
		crop, err := spec.Crop(img)
		if err != nil {
			if spec.Resize != Contain {
				t.Fatal(err)
			}
			return
		}
		if crop.Rect != image.Rect(0, 0, spec.Width, spec.Height) || crop.Stride != 4*spec.Width {
			t.Fatalf("crop is %v", crop.Rect)
		}
		for i := 3; i < len(crop.Pix); i += 4 {
			if crop.Pix[i] != 255 {
				t.Fatalf("pixel %d is not opaque", i/4)
			}
		}
	})
}

// TestLayoutsHoldTheSameValues: both layouts are the normalised crop, bit-identical
// to what Normalise makes of it.
func TestLayoutsHoldTheSameValues(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		spec, img := drawSpec(t), drawImage(t)
		crop, err := spec.Crop(img)
		if err != nil {
			return
		}
		n, channels := spec.Height*spec.Width, spec.Channels()
		planes, pixels := make([]float32, channels*n), make([]float32, channels*n)
		if err := spec.Tensor(planes, img, NCHW); err != nil {
			t.Fatal(err)
		}
		if err := spec.Tensor(pixels, img, NHWC); err != nil {
			t.Fatal(err)
		}
		for layout, want := range map[Layout][]float32{NCHW: planes, NHWC: pixels} {
			got := make([]float32, len(want))
			if err := spec.Normalise(got, crop, layout); err != nil || !slices.Equal(got, want) {
				t.Fatalf("layout %d: %v, or other values than Tensor's", layout, err)
			}
		}
		for i := range n {
			for c := range channels {
				want := (float64(crop.Pix[4*i+c])/255 - spec.Mean[c]) / spec.Std[c]
				if got := planes[c*n+i]; got != pixels[channels*i+c] || math.Abs(float64(got)-want) > 1e-6 {
					t.Fatalf("channel %d of pixel %d is %v and %v, want %v", c, i, got, pixels[channels*i+c], want)
				}
			}
		}
	})
}

// TestPartOfResizeIsPartOfWhole: computing only what a crop shows changes
// nothing.
func TestPartOfResizeIsPartOfWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		img := drawImage(t)
		filter := rapid.SampledFrom(filters).Draw(t, "filter")
		w, h := rapid.IntRange(1, 80).Draw(t, "width"), rapid.IntRange(1, 80).Draw(t, "height")
		x, y := rapid.IntRange(0, w-1).Draw(t, "x"), rapid.IntRange(0, h-1).Draw(t, "y")
		part := image.Rect(x, y, rapid.IntRange(x+1, w).Draw(t, "right"), rapid.IntRange(y+1, h).Draw(t, "bottom"))
		whole := resized(t, img, w, h, image.Rect(0, 0, w, h), filter)
		got := resized(t, img, w, h, part, filter)
		for row := range part.Dy() {
			a, b := got.Pix[got.PixOffset(0, row):], whole.Pix[whole.PixOffset(part.Min.X, part.Min.Y+row):]
			for i := range 4 * part.Dx() {
				if a[i] != b[i] {
					t.Fatalf("row %d differs", row)
				}
			}
		}
	})
}

// TestElongatedImages: strips either work in little memory or are refused in
// words, never by running out of it.
func TestElongatedImages(t *testing.T) {
	t.Parallel()
	shortest := &Spec{Resize: Shortest, ResizeHeight: 256, ResizeWidth: 256, Filter: Bicubic, Height: 224, Width: 224,
		Rounding: Floor, Scale: 1, Std: [3]float64{1, 1, 1}}
	squash, contain, nearest, tiny := *shortest, *shortest, *shortest, *shortest
	squash.Resize, contain.Resize, nearest.Filter = Squash, Contain, Nearest
	tiny.ResizeHeight, tiny.ResizeWidth, tiny.Filter = 1, 1, Lanczos
	tests := []struct {
		name string
		spec *Spec
		w, h int
		want string
	}{
		{"wide", shortest, 100_000, 1, ""},
		{"tall", shortest, 1, 100_000, ""},
		{"wide, nearest", &nearest, 100_000, 1, ""},
		{"wide, nearest, too long", &nearest, 2_000_000, 1, "too elongated"},
		{"wide, squashed", &squash, 2_000_000, 1, ""},
		{"tall, squashed", &squash, 1, 2_000_000, ""},
		{"wide, squashed, too long", &squash, 30_000_000, 1, "too elongated"},
		{"tall, squashed, too long", &squash, 1, 30_000_000, "too elongated"},
		{"contained to nothing", &contain, 100_000, 1, "too elongated"},
		{"one row of one pixel each", &tiny, 300_000, 1, ""},
	}
	for _, tt := range tests {
		_, err := tt.spec.Crop(image.NewNRGBA(image.Rect(0, 0, tt.w, tt.h)))
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: error is %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	good := Spec{Resize: Squash, ResizeHeight: 8, ResizeWidth: 9, Filter: Box, Height: 8, Width: 9,
		Rounding: Floor, Scale: 1, Std: [3]float64{1, 1, 1}}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		want  string
		spoil func(s *Spec)
	}{
		{"resize mode", func(s *Spec) { *s = Spec{} }},
		{"resize mode", func(s *Spec) { s.Resize = "stretch" }},
		{"filter", func(s *Spec) { s.Filter = "random" }},
		{"rounding", func(s *Spec) { s.Rounding = "" }},
		{"height is 0", func(s *Spec) { s.Height = 0 }},
		{"width is -1", func(s *Spec) { s.Width = -1 }},
		{"resize width is 8193", func(s *Spec) { s.ResizeWidth = MaxSide + 1 }},
		{"shortest edge is both 8 and 9", func(s *Spec) { s.Resize = Shortest }},
		{"may be 0", func(s *Spec) { s.Std[2] = 0 }},
		{"may be 0", func(s *Spec) { s.Scale = 0 }},
		{"not finite", func(s *Spec) { s.Std[1] = 1e-60 }}, // 0 in float32
		{"not finite", func(s *Spec) { s.Mean[0] = math.NaN() }},
		{"not finite", func(s *Spec) { s.Scale = math.Inf(1) }},
	}
	for _, tt := range tests {
		s := good
		tt.spoil(&s)
		err := s.Validate()
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error is %v, want one about %q", err, tt.want)
		}
		if _, cropErr := s.Crop(image.NewNRGBA(image.Rect(0, 0, 4, 4))); cropErr == nil {
			t.Errorf("Crop accepts a spec with %v", err)
		}
	}
}

func TestTensorArguments(t *testing.T) {
	t.Parallel()
	s := &Spec{Resize: None, Height: 2, Width: 3, Rounding: Floor, Scale: 1, Std: [3]float64{1, 1, 1}}
	img := image.NewNRGBA(image.Rect(0, 0, 5, 5))
	if err := s.Tensor(make([]float32, 17), img, NCHW); err == nil || !strings.Contains(err.Error(), "17") {
		t.Errorf("too short a tensor: %v", err)
	}
	if err := s.Tensor(make([]float32, 18), img, Layout(2)); err == nil || !strings.Contains(err.Error(), "layout") {
		t.Errorf("unknown layout: %v", err)
	}
	if err := s.Tensor(make([]float32, 18), &image.NRGBA{}, NCHW); err == nil || !strings.Contains(err.Error(), "no pixels") {
		t.Errorf("empty image: %v", err)
	}
}

// TestExact: an image is left as it is or refused.
func TestExact(t *testing.T) {
	t.Parallel()
	s := &Spec{Resize: Exact, Height: 2, Width: 3, Rounding: Floor, Scale: 1, Std: [3]float64{1, 1, 1}}
	img := noise(3, 2, 1)
	crop, err := s.Crop(img)
	if err != nil || !bytes.Equal(crop.Pix, img.Pix) {
		t.Errorf("%v, %v", crop, err)
	}
	if _, err := s.Crop(noise(2, 3, 1)); !errors.Is(err, ErrSize) || !strings.Contains(err.Error(), "2×3 pixels, want 3×2") {
		t.Error(err)
	}
}

// TestSpecJSON fixes the description that fingerprints are made of: a change of
// these bytes makes every cached feature set unusable.
func TestSpecJSON(t *testing.T) {
	t.Parallel()
	spec, err := Parse("x", []byte(`{"image_processor_type": "CLIPImageProcessor"}`))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"resize":"shortest","resize_height":224,"resize_width":224,"filter":"bicubic","height":224,"width":224,` +
		`"rounding":"floor","fill":[0,0,0],"scale":0.00392156862745098,` +
		`"mean":[0.48145466,0.4578275,0.40821073],"std":[0.26862954,0.26130258,0.27577711]}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	var back Spec
	if err := json.Unmarshal(got, &back); err != nil || back != *spec {
		t.Errorf("read back as %+v (%v)", back, err)
	}
}
