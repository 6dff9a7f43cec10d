package preprocess

import (
	"bytes"
	"encoding/json"
	"image"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// distance is how far two images are apart, in levels.
type distance struct {
	worst int     // largest difference of any value
	off   float64 // share of values that differ
	mean  float64 // mean absolute difference
}

func compare(t testing.TB, got, want *image.NRGBA) distance {
	t.Helper()
	if got.Rect != want.Rect {
		t.Fatalf("image is %v, want %v", got.Rect, want.Rect)
	}
	var d distance
	values := 0
	for i, v := range got.Pix {
		if i%4 == 3 {
			if v != 255 {
				t.Fatalf("pixel %d is not opaque", i/4)
			}
			continue
		}
		diff := int(v) - int(want.Pix[i])
		diff = max(diff, -diff)
		d.worst = max(d.worst, diff)
		d.mean += float64(diff)
		if diff > 0 {
			d.off++
		}
		values++
	}
	d.off /= float64(values)
	d.mean /= float64(values)
	return d
}

// readPNG reads an expected image with Go's own decoder.
func readPNG(t testing.TB, path string) *image.NRGBA {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	return asNRGBA(img)
}

func asNRGBA(img image.Image) *image.NRGBA {
	dst := image.NewNRGBA(img.Bounds())
	for y := range dst.Rect.Dy() {
		for x := range dst.Rect.Dx() {
			dst.Set(x, y, img.At(x, y))
		}
	}
	return dst
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestGolden compares whole pipelines with transformers 5.23, timm 1.0.31 and
// OpenCLIP 3.3 over Pillow 13: all agree bit by bit.
func TestGolden(t *testing.T) {
	dir := testenv.Shared(t, "oracle/golden/preprocess")
	var golden struct {
		Cases []struct {
			Config, Image, Expected string
			Shape                   []int     `json:"tensor_shape"`
			Mean                    float64   `json:"tensor_mean"`
			Std                     float64   `json:"tensor_std"`
			First                   []float64 // the values of the pixel in the middle
		}
	}
	if err := json.Unmarshal(readFile(t, filepath.Join(dir, "cases.json")), &golden); err != nil {
		t.Fatal(err)
	}
	for _, c := range golden.Cases {
		t.Run(strings.TrimSuffix(filepath.Base(c.Expected), ".png"), func(t *testing.T) {
			t.Parallel()
			config := filepath.Join(dir, c.Config)
			spec, err := Parse(config, readFile(t, config))
			if err != nil {
				t.Fatal(err)
			}
			img, err := Decode(t.Context(), readFile(t, filepath.Join(dir, c.Image)), DecodeOptions{For: spec})
			if err != nil {
				t.Fatal(err)
			}
			crop, err := spec.Crop(img)
			if err != nil {
				t.Fatal(err)
			}
			d := compare(t, (*image.NRGBA)(crop), readPNG(t, filepath.Join(dir, c.Expected)))
			if d.worst > 0 {
				t.Errorf("crop is off by up to %d levels, in %.3f%% of the values", d.worst, 100*d.off)
			}

			if len(c.Shape) != 3 || c.Shape[0] != 3 || c.Shape[1] != spec.Height || c.Shape[2] != spec.Width {
				t.Fatalf("tensor is 3×%d×%d, want %v", spec.Height, spec.Width, c.Shape)
			}
			x := make([]float32, 3*spec.Height*spec.Width)
			if err := spec.Tensor(x, img, NCHW); err != nil {
				t.Fatal(err)
			}
			const value, moment = 2e-6, 1e-5
			middle := spec.Height/2*spec.Width + spec.Width/2
			for ch, want := range c.First {
				if got := float64(x[ch*spec.Height*spec.Width+middle]); math.Abs(got-want) > value {
					t.Errorf("value in the middle of channel %d is %v, want %v", ch, got, want)
				}
			}
			mean, std := moments(x)
			if math.Abs(mean-c.Mean) > moment || math.Abs(std-c.Std) > moment {
				t.Errorf("mean and std of the tensor are %v and %v, want %v and %v", mean, std, c.Mean, c.Std)
			}
		})
	}
}

func moments(x []float32) (mean, std float64) {
	for _, v := range x {
		mean += float64(v)
	}
	mean /= float64(len(x))
	for _, v := range x {
		std += (float64(v) - mean) * (float64(v) - mean)
	}
	return mean, math.Sqrt(std / float64(len(x)))
}

// TestResizeEqualsPillow compares all filters with Pillow 13 (see
// testdata/generate_resize.py): up, down, both at once, and the size as it is.
func TestResizeEqualsPillow(t *testing.T) {
	t.Parallel()
	source := readPNG(t, "testdata/resize/source.png")
	files, err := filepath.Glob("testdata/resize/*_*.png")
	if err != nil || len(files) != 36 {
		t.Fatalf("%d expected images (%v), want 36", len(files), err)
	}
	for _, file := range files {
		want := readPNG(t, file)
		filter, _, _ := strings.Cut(filepath.Base(file), "_")
		got := resized(t, source, want.Rect.Dx(), want.Rect.Dy(), want.Rect, Filter(filter))
		if d := compare(t, got, want); d.worst > 0 {
			t.Errorf("%s: off by up to %d levels", file, d.worst)
		}
	}
}

// TestDecodeEqualsPillow compares every kind of pixel with Pillow 13.
func TestDecodeEqualsPillow(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/decode/*.png")
	if err != nil {
		t.Fatal(err)
	}
	for _, expected := range files {
		file := strings.TrimSuffix(expected, ".png")
		if filepath.Ext(file) == "" {
			continue // an image, not an expected one
		}
		name := filepath.Base(file)
		upright := strings.HasPrefix(name, "exif")
		img, err := Decode(t.Context(), readFile(t, file), DecodeOptions{Reading: Reading{ApplyEXIF: upright}})
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		d := compare(t, img, readPNG(t, expected))
		if d.worst > 0 {
			t.Errorf("%s: off by up to %d levels, %.3f in the mean", file, d.worst, d.mean)
		}
	}
}

// TestPipelinesEqualPython compares sizes that are not square, where height and
// width are easily swapped, and margins that round either way.
func TestPipelinesEqualPython(t *testing.T) {
	t.Parallel()
	var cases []struct {
		Config   json.RawMessage
		Tall     bool
		Expected string
	}
	if err := json.Unmarshal(readFile(t, "testdata/pipelines.json"), &cases); err != nil {
		t.Fatal(err)
	}
	source := readPNG(t, "testdata/resize/source.png")
	for _, c := range cases {
		spec, err := Parse(c.Expected, c.Config)
		if err != nil {
			t.Fatal(err)
		}
		img := source
		if c.Tall {
			var err error
			if img, err = Upright(t.Context(), source, 8); err != nil { // a quarter turn to the left
				t.Fatal(err)
			}
		}
		got, err := spec.Crop(img)
		if err != nil {
			t.Fatal(err)
		}
		if d := compare(t, (*image.NRGBA)(got), readPNG(t, filepath.Join("testdata", c.Expected))); d.worst > 0 {
			t.Errorf("%s: off by up to %d levels, %.1f%% of values", c.Expected, d.worst, 100*d.off)
		}
	}
}

// TestProcessorsEqualPython compares configurations drawn at random, as the
// libraries save them, with what their processors make of images of random sizes
// (testdata/generate_processors.py). MLRBFN_PROCESSORS names a file with others.
func TestProcessorsEqualPython(t *testing.T) {
	t.Parallel()
	file := "testdata/processors.json"
	if other := os.Getenv("MLRBFN_PROCESSORS"); other != "" {
		file = other
	}
	var golden struct {
		Cases []struct {
			File          string
			Config        json.RawMessage
			Width, Height int
			Seed          uint32
			Crop          []byte
			Values        [][4]float64
		}
	}
	if err := json.Unmarshal(readFile(t, file), &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden.Cases) == 0 {
		t.Fatal("no cases")
	}
	for i, c := range golden.Cases {
		spec, err := Parse(c.File, c.Config)
		if err != nil {
			t.Errorf("case %d: %v\n%s", i, err, c.Config)
			continue
		}
		img := image.NewNRGBA(image.Rect(0, 0, c.Width, c.Height))
		state := c.Seed
		for at := range img.Pix {
			if img.Pix[at] = 255; at%4 < 3 {
				state = state*1664525 + 1013904223
				img.Pix[at] = uint8(state >> 24)
			}
		}
		crop, err := spec.Crop(img)
		if err != nil {
			t.Errorf("case %d, %d×%d: %v\n%s", i, c.Width, c.Height, err, c.Config)
			continue
		}
		want, err := png.Decode(bytes.NewReader(c.Crop))
		if err != nil {
			t.Fatal(err)
		}
		levels := 0
		if strings.Contains(string(c.Config), "DINOv3") { // which resizes in floating point
			levels = 1
		}
		if d := compare(t, (*image.NRGBA)(crop), asNRGBA(want)); d.worst > levels {
			t.Errorf("case %d, %d×%d: off by up to %d levels\n%s", i, c.Width, c.Height, d.worst, c.Config)
		}
		x := make([]float32, 3*spec.Height*spec.Width)
		if err := spec.Tensor(x, img, NCHW); err != nil {
			t.Fatal(err)
		}
		for _, v := range c.Values {
			ch, at := int(v[0]), int(v[1])*spec.Width+int(v[2])
			if got := float64(x[ch*spec.Height*spec.Width+at]); math.Abs(got-v[3]) > 1e-5*max(1, math.Abs(v[3]))+float64(levels)*1.01*spec.Scale/spec.Std[ch] {
				t.Errorf("case %d: value at %v is %v, want %v\n%s", i, v[:3], got, v[3], c.Config)
			}
		}
	}
}
