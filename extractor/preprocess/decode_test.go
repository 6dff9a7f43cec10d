package preprocess

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/pillow"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

func TestIsImage(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, head string
		want       bool
	}{
		{"cat.jpg", "", true},
		{"ILSVRC2012_val_00000001.JPEG", "not really", true},
		{"photo.heic", "", true},
		{"no-extension", "\xff\xd8\xff\xe0", true},
		{"wrong.txt", "\x89PNG\r\n\x1a\nIHDR", true},
		{"a", "\x00\x00\x00\x18ftypheic\x00\x00\x00\x00", true},
		{"a", "RIFF\x10\x00\x00\x00WEBPVP8 ", true},
		{"a", "RIFF\x10\x00\x00\x00WAVEfmt ", false},
		{"a", "BMW cars, and more", false},
		{"a", "BM\x46\x00\x00\x00\x00\x00\x00\x00\x36\x00", true},
		{".DS_Store", "\x00\x00\x00\x01Bud1", false},
		{"labels.csv", "path,label\n", false},
		{"empty", "", false},
	}
	for _, tt := range tests {
		if got := IsImage(tt.name, []byte(tt.head)); got != tt.want {
			t.Errorf("IsImage(%q, %q) = %v", tt.name, tt.head, got)
		}
	}
}

// decodeFiles are the committed files of every format.
func decodeFiles(t testing.TB) []string {
	t.Helper()
	var files []string
	all, err := filepath.Glob("testdata/decode/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		if _, err := os.Stat(file + ".png"); err == nil {
			files = append(files, file)
		}
	}
	if len(files) < 30 {
		t.Fatalf("only %d files in testdata/decode", len(files))
	}
	return files
}

// TestDecodeRefusesTruncatedFiles cuts every file in its header and in its
// pixels.
func TestDecodeRefusesTruncatedFiles(t *testing.T) {
	t.Parallel()
	for _, file := range decodeFiles(t) {
		data := readFile(t, file)
		cuts := []int{0, 4, 20, len(data) / 2, len(data) * 4 / 5}
		switch name := filepath.Base(file); {
		case strings.HasPrefix(name, "offset"):
			cuts = cuts[:4] // the last cut falls into the second frame, which does not count
		case name == "bilevel.png", strings.HasPrefix(name, "interlaced") && strings.HasSuffix(name, ".png"), name == "no-checksum.png":
			cuts = cuts[:4] // the last cut loses but checksums, which Pillow does not miss either
		}
		for _, n := range cuts {
			if _, err := Decode(t.Context(), data[:n], DecodeOptions{}); err == nil {
				t.Errorf("%s: the first %d of %d bytes decode", file, n, len(data))
			}
		}
	}
}

func TestDecodeErrors(t *testing.T) {
	t.Parallel()
	var picture bytes.Buffer
	if err := png.Encode(&picture, image.NewGray(image.Rect(0, 0, 40, 30))); err != nil {
		t.Fatal(err)
	}
	bomb := bytes.Clone(picture.Bytes())
	copy(bomb[16:], "\x7f\xff\xff\xff\x7f\xff\xff\xff\x08\x00\x00\x00\x00") // 2³¹−1 squared
	tests := []struct {
		name    string
		data    string
		opts    DecodeOptions
		unknown bool
		want    string
	}{
		{"empty", "", DecodeOptions{}, true, "empty"},
		{"text", "path,label\n", DecodeOptions{}, true, "want JPEG"},
		{"HEIC", "\x00\x00\x00\x18ftypheic\x00\x00", DecodeOptions{}, true, "unsupported image format HEIC"},
		{"above the limit", picture.String(), DecodeOptions{MaxPixels: 1199}, false, "40×30 pixels is above the limit of 1199"},
		{"decompression bomb", string(bomb), DecodeOptions{}, false, ""},
		{"animated WebP without a frame", "RIFF\x16\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x02\x00\x00\x00\x07\x00\x00\x07\x00\x00", DecodeOptions{}, false, "its first frame is missing"},
		{"header only", "\xff\xd8\xff\xe0", DecodeOptions{}, false, "cannot read JPEG"},
	}
	for _, tt := range tests {
		_, err := Decode(t.Context(), []byte(tt.data), tt.opts)
		if err == nil || errors.Is(err, ErrUnknownFormat) != tt.unknown || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error is %v, want one about %q (unknown format: %v)", tt.name, err, tt.want, tt.unknown)
		}
	}
	if _, err := Decode(t.Context(), picture.Bytes(), DecodeOptions{MaxPixels: 1200}); err != nil {
		t.Errorf("at the limit: %v", err)
	}
}

// TestDecodeRecovers: a decoder that panics must not take a run of a million
// images down.
func TestDecodeRecovers(t *testing.T) {
	defer func(saved []format) { formats = saved }(formats)
	formats = []format{{"JPEG", "x", func([]byte) (pillow.Picture, error) { panic("index out of range") }}}
	if _, err := Decode(t.Context(), []byte("x"), DecodeOptions{}); err == nil || !strings.Contains(err.Error(), "the decoder failed") {
		t.Errorf("error is %v, want that the decoder failed", err)
	}
}

// TestDecodeStops: wherever the context is cancelled, Decode says so, also where
// a decoder puts its own words around it; and it asks for every row, or row of
// blocks.
func TestDecodeStops(t *testing.T) {
	t.Parallel()
	for _, file := range decodeFiles(t) {
		data := readFile(t, file)
		for asked := 0; ; asked++ {
			img, err := Decode(&testenv.Countdown{Context: t.Context(), Left: asked}, data, DecodeOptions{})
			if err == nil {
				rows := img.Rect.Dy()
				if strings.HasSuffix(file, ".jpg") {
					rows /= 16 // rows of blocks
				}
				if asked < rows {
					t.Errorf("%s: the context was asked %d times for %d rows", file, asked, img.Rect.Dy())
				}
				break
			}
			if img != nil || !errors.Is(err, context.Canceled) {
				t.Fatalf("%s: after %d questions the error is %v, want that the context was cancelled", file, asked, err)
			}
		}
	}
	if _, err := Upright(&testenv.Countdown{Context: t.Context(), Left: 1}, image.NewNRGBA(image.Rect(0, 0, 2, 2)), 6); !errors.Is(err, context.Canceled) {
		t.Errorf("error while turning is %v, want that the context was cancelled", err)
	}
}

// stuck is an image whose pixels never come, whatever its context says.
type stuck struct{ released chan struct{} }

func (stuck) Size() (width, height int) { return 1, 1 }

func (s stuck) Pixels(context.Context) (*image.NRGBA, error) {
	<-s.released
	return nil, errors.New("released")
}

// TestDecodeLeavesAStuckDecoderBehind: an image must not stop a run for ever.
func TestDecodeLeavesAStuckDecoderBehind(t *testing.T) {
	defer func(saved []format) { formats = saved }(formats)
	s := stuck{make(chan struct{})}
	defer close(s.released)
	formats = []format{{"JPEG", "x", func([]byte) (pillow.Picture, error) { return s, nil }}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := Decode(ctx, []byte("x"), DecodeOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error is %v, want that the time is over", err)
	}
}

// TestDecodeIntoOtherImages: what an image leaves in its memory is not seen in the
// next.
func TestDecodeIntoOtherImages(t *testing.T) {
	t.Parallel()
	var opts DecodeOptions
	for _, file := range slices.Repeat(decodeFiles(t), 2) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want, err := Decode(t.Context(), data, DecodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if opts.Reuse, err = Decode(t.Context(), data, opts); err != nil {
			t.Fatal(err)
		}
		if d := compare(t, opts.Reuse, want); d.worst > 0 {
			t.Errorf("%s: %+v from what it is without", file, d)
		}
	}
}

func TestSize(t *testing.T) {
	t.Parallel()
	for _, file := range decodeFiles(t) {
		data := readFile(t, file)
		img, err := Decode(t.Context(), data, DecodeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want := img.Rect.Max
		if filepath.Base(file) == "orientation.tif" {
			want.X, want.Y = want.Y, want.X
		}
		if w, h, err := Size(data); err != nil || (image.Point{X: w, Y: h}) != want {
			t.Errorf("%s: size is %d×%d (%v), want %v", file, w, h, err, want)
		}
	}
	if _, _, err := Size([]byte("path,label\n")); !errors.Is(err, ErrUnknownFormat) {
		t.Errorf("error for text is %v, want %v", err, ErrUnknownFormat)
	}
	if _, _, err := Size([]byte("\xff\xd8\xff\xe0")); err == nil || !strings.Contains(err.Error(), "cannot read JPEG") {
		t.Errorf("error for a JPEG without a header is %v", err)
	}
}

func TestDecodeIgnoresEXIFByDefault(t *testing.T) {
	t.Parallel()
	data := readFile(t, "testdata/decode/exif6.jpg")
	lying, err := Decode(t.Context(), data, DecodeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	upright, err := Decode(t.Context(), data, DecodeOptions{Reading: Reading{ApplyEXIF: true}})
	if err != nil {
		t.Fatal(err)
	}
	if lying.Rect.Max != image.Pt(24, 16) || upright.Rect.Max != image.Pt(16, 24) {
		t.Errorf("sizes are %v and %v, want 24×16 as stored and 16×24 upright", lying.Rect.Max, upright.Rect.Max)
	}
}

// TestCMYK compares with values of Pillow 13's convert("RGB").
func TestCMYK(t *testing.T) {
	t.Parallel()
	var got []uint8
	for _, ink := range [][4]uint8{{0, 128, 255, 0}, {10, 77, 200, 100}, {1, 2, 3, 255}} {
		r, g, b := pillow.CMYK(ink[0], ink[1], ink[2], ink[3])
		got = append(got, r, g, b)
	}
	want := []uint8{255, 127, 0, 149, 108, 33, 0, 0, 0}
	if !bytes.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func FuzzDecode(f *testing.F) {
	for _, file := range decodeFiles(f) {
		f.Add(readFile(f, file), true)
	}
	const limit = 1 << 16
	f.Fuzz(func(t *testing.T, data []byte, exif bool) {
		img, err := Decode(t.Context(), data, DecodeOptions{MaxPixels: limit, Reading: Reading{ApplyEXIF: exif}})
		if err != nil {
			return
		}
		if w, h, err := Size(data); err != nil || w*h != img.Rect.Dx()*img.Rect.Dy() {
			t.Errorf("size is %d×%d (%v), want that of %v", w, h, err, img.Rect)
		}
		if img.Rect.Min != (image.Point{}) || img.Rect.Empty() || img.Rect.Dx()*img.Rect.Dy() > limit {
			t.Errorf("image is %v", img.Rect)
		}
		for i := 3; i < len(img.Pix); i += 4 {
			if img.Pix[i] != 255 {
				t.Fatalf("pixel %d is not opaque", i/4)
			}
		}
	})
}

func FuzzOrientation(f *testing.F) {
	for _, file := range decodeFiles(f) {
		if strings.HasPrefix(filepath.Base(file), "exif") || strings.HasPrefix(filepath.Base(file), "orientation") {
			f.Add(readFile(f, file))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if turn := pillow.Orientation(data); turn < 0 || turn > 8 {
			t.Errorf("EXIF orientation %d", turn)
		}
		if format := sniff(data); format != nil {
			if turn := orientation(format.name, data); turn < 1 || turn > 8 {
				t.Errorf("orientation %d of a %s", turn, format.name)
			}
		}
	})
}

// photograph is a JPEG of 500×375 pixels with 4:2:0 chroma, about the size of
// one of ImageNet.
func photograph(b *testing.B) []byte {
	b.Helper()
	img := image.NewRGBA(image.Rect(0, 0, 500, 375))
	for y := range 375 {
		for x := range 500 {
			wave := 60 * math.Sin(float64(x*y)/900)
			img.SetRGBA(x, y, color.RGBA{uint8(127 + wave), uint8(x / 2), uint8(y/2 + (x^y)&15), 255})
		}
	}
	var file bytes.Buffer
	if err := jpeg.Encode(&file, img, &jpeg.Options{Quality: 90}); err != nil {
		b.Fatal(err)
	}
	return file.Bytes()
}

func BenchmarkDecode(b *testing.B) {
	data := photograph(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(b.Context(), data, DecodeOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// TestCostOf: a file costs at least the memory of its pixels, and none with more pixels than
// allowed.
func TestCostOf(t *testing.T) {
	for _, file := range decodeFiles(t) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		width, height, err := Size(data)
		pixels := int64(width) * int64(height)
		c := CostOf(data, pixels)
		if err == nil && (c.Bytes < 4*pixels || c.Time <= 0) {
			t.Errorf("%s of %d pixels costs %+v (%v)", file, pixels, c, err)
		}
		if c := CostOf(data, pixels-1); c != (Cost{}) {
			t.Errorf("%s is above the limit and costs %+v", file, c)
		}
	}
}

// TestCostOfAPNGIsQuick: whatever chunks follow its header, they are not read for it.
func TestCostOfAPNGIsQuick(t *testing.T) {
	header := []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR\x00\x00\x00\x07\x00\x00\x00\x05\x10\x06\x00\x00\x00")
	if c := CostOf(append(header, "no chunk"...), 35); c.Bytes < 4*35 {
		t.Errorf("%+v", c)
	}
}
