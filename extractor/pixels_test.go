package extractor

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"image"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/npy"
)

// pixelFeatures extracts the pixels of a listing's images, in its order; those
// that failed have an error instead.
func pixelFeatures(t *testing.T, l *images.Listing, opts Options) (rows [][]float32, errs []error) {
	t.Helper()
	spec, err := opts.PixelSpec(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPixels(spec, opts.Reading)
	if err != nil {
		t.Fatal(err)
	}
	rows, errs = make([][]float32, len(l.Items)), make([]error, len(l.Items))
	_, err = p.Extract(t.Context(), images.Of(l.Items...), Options{}, func(r Row) error {
		rows[r.Index], errs[r.Index] = slices.Clone(r.Features), r.Err
		if r.Err == nil && (len(r.Features) != p.Dim() || r.Logits != nil) {
			t.Errorf("%s: %d features, want %d; logits %v", r.Item.Path, len(r.Features), p.Dim(), r.Logits)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rows, errs
}

// TestPixels compares features with Pillow's and numpy's
// (testdata/generate_pixels.py).
func TestPixels(t *testing.T) {
	dir := filepath.Join("testdata", "pixels")
	l, err := images.List(t.Context(), images.ListOptions{Root: dir})
	if err != nil || len(l.Items) != 1 {
		t.Fatalf("%+v, %v", l, err)
	}
	mean, std := []float64{0.4, 0.5, 0.3}, []float64{0.2, 0.3, 0.25}
	for _, size := range []struct {
		name          string
		width, height int
	}{{"keep", 0, 0}, {"6x6", 6, 6}, {"7x4", 7, 4}, {"13x15", 13, 15}} {
		for channels, n := range map[string]int{"rgb": 3, "grey": 1} {
			want, _, err := npy.Read[float32](filepath.Join(dir, channels+"_"+size.name+".npy"))
			if err != nil {
				t.Fatal(err)
			}
			rows, errs := pixelFeatures(t, l, Options{Width: size.width, Height: size.height, Channels: channels, Mean: mean[:n], Std: std[:n]})
			if errs[0] != nil || len(rows[0]) != len(want) {
				t.Fatalf("%s %s: %d features, want %d; %v", channels, size.name, len(rows[0]), len(want), errs[0])
			}
			for i, v := range rows[0] {
				if math.Abs(float64(v-want[i])) > 1e-6 {
					t.Fatalf("%s %s: feature %d is %g, Pillow has %g", channels, size.name, i, v, want[i])
				}
			}
		}
	}
}

// idxFile writes n images of the given size, whose pixels count up, gzipped, and
// returns them.
func idxFile(t *testing.T, path string, n, rows, cols int) []byte {
	t.Helper()
	pixels := make([]byte, n*rows*cols)
	for i := range pixels {
		pixels[i] = byte(i)
	}
	writeIDX(t, path, 3, pixels, n, rows, cols)
	return pixels
}

func writeIDX(t *testing.T, path string, dimensions byte, values []byte, sizes ...int) {
	t.Helper()
	data := []byte{0, 0, 8, dimensions}
	for _, size := range sizes {
		data = binary.BigEndian.AppendUint32(data, uint32(size))
	}
	data = append(data, values...)
	if !strings.HasSuffix(path, ".gz") {
		write(t, path, string(data))
		return
	}
	var b strings.Builder
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, path, b.String())
}

func TestListIDX(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "t10k-images-idx3-ubyte.gz")
	pixels := idxFile(t, file, 3, 2, 4)
	writeIDX(t, filepath.Join(dir, "t10k-labels-idx1-ubyte"), 1, []byte{7, 2, 7}, 3)
	write(t, filepath.Join(dir, "LICENSE"), "no image")
	for _, root := range []string{dir, file} {
		l, err := images.List(t.Context(), images.ListOptions{Root: root})
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"t10k-images-idx3-ubyte.gz#0 7", "t10k-images-idx3-ubyte.gz#1 2", "t10k-images-idx3-ubyte.gz#2 7"}
		got := []string{}
		for _, item := range l.Items {
			got = append(got, item.Path+" "+l.Classes[item.Label])
		}
		if !slices.Equal(got, want) || !slices.Equal(l.Classes, []string{"2", "7"}) || l.Root != dir || !l.Grey {
			t.Errorf("%v, classes %v, root %s, grey %v", got, l.Classes, l.Root, l.Grey)
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if item := l.Items[1]; item.Bytes != 8 || item.MTime != info.ModTime().UnixNano() {
			t.Errorf("%d bytes, time %d", item.Bytes, item.MTime)
		}
		p, err := NewPixels(&preprocess.Spec{Grey: true, Resize: preprocess.Exact, Height: 2, Width: 4, Rounding: preprocess.Floor, Scale: 1, Std: [3]float64{1, 1, 1}}, preprocess.Reading{})
		if err != nil {
			t.Fatal(err)
		}
		for _, noHash := range []bool{false, true} {
			_, err = p.Extract(t.Context(), images.Of(l.Items...), Options{NoHash: noHash}, func(r Row) error {
				part := pixels[8*r.Index:][:8]
				want := ""
				if sum := sha256.Sum256(part); !noHash {
					want = hex.EncodeToString(sum[:])
				}
				if r.Err != nil || r.SHA256 != want {
					t.Errorf("%s: SHA-256 %q, want %q (%v)", r.Item.Path, r.SHA256, want, r.Err)
				}
				for i, v := range r.Features {
					if v != float32(part[i]) {
						t.Errorf("%s: %v, want %v", r.Item.Path, r.Features, part)
						break
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, errs := pixelFeatures(t, l, Options{}); errs[0] != nil {
			t.Error(errs[0])
		}
	}
}

func TestListIDXRefuses(t *testing.T) {
	const pictures, labels = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
	for name, c := range map[string]struct {
		make func(dir string)
		root string
		list bool
		is   error
		says string
	}{
		"two in a folder": {func(dir string) {
			idxFile(t, filepath.Join(dir, pictures), 1, 1, 1)
			idxFile(t, filepath.Join(dir, "t10k-images-idx3-ubyte.gz"), 1, 1, 1)
		}, "", false, nil, "t10k-images-idx3-ubyte.gz, train-images-idx3-ubyte; name one"},
		"broken":         {func(dir string) { write(t, filepath.Join(dir, pictures), "no idx") }, pictures, false, images.ErrIDX, pictures},
		"without images": {func(dir string) { idxFile(t, filepath.Join(dir, pictures), 0, 2, 2) }, pictures, false, images.ErrNoImages, pictures},
		"broken labels": {func(dir string) {
			idxFile(t, filepath.Join(dir, pictures), 1, 1, 1)
			write(t, filepath.Join(dir, labels), "no idx")
		}, pictures, false, images.ErrIDX, labels},
		"labels of others": {func(dir string) {
			idxFile(t, filepath.Join(dir, pictures), 2, 1, 1)
			writeIDX(t, filepath.Join(dir, labels), 1, []byte{1, 2, 3}, 3)
		}, pictures, false, nil, labels + " has 3 for the 2 images"},
		"list": {func(dir string) { idxFile(t, filepath.Join(dir, pictures), 1, 1, 1) }, pictures, true, nil, "list"},
	} {
		dir := t.TempDir()
		c.make(dir)
		opts := images.ListOptions{Root: filepath.Join(dir, c.root)}
		if c.list {
			opts.ListFile = "list.txt"
		}
		_, err := images.List(t.Context(), opts)
		if err == nil || !strings.Contains(err.Error(), c.says) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
}

// TestPixelsOfOtherSizes: an image that does not fit is an error of its own, and
// none with a size to resize to.
func TestPixelsOfOtherSizes(t *testing.T) {
	dir := t.TempDir()
	for i, size := range [][2]int{{0, 0}, {4, 3}, {4, 3}, {3, 4}, {5, 3}} { // the first is no image
		name := filepath.Join(dir, fmt.Sprintf("%d.png", i))
		if i == 0 {
			write(t, name, "broken")
			continue
		}
		writePNG(t, name, size[0], size[1])
	}
	l, err := images.List(t.Context(), images.ListOptions{Root: dir})
	if err != nil {
		t.Fatal(err)
	}
	_, errs := pixelFeatures(t, l, Options{})
	for i, wrong := range []bool{true, false, false, true, true} {
		if (errs[i] != nil) != wrong {
			t.Errorf("image %d: %v", i, errs[i])
		}
		if i > 2 && (!errors.Is(errs[i], preprocess.ErrSize) || !strings.Contains(errs[i].Error(), "Width: ")) {
			t.Errorf("image %d: %v", i, errs[i])
		}
	}
	rows, errs := pixelFeatures(t, l, Options{Width: 2, Height: 5})
	for i := range errs {
		if (errs[i] != nil) != (i == 0) || i > 0 && len(rows[i]) != 3*2*5 {
			t.Errorf("image %d: %v", i, errs[i])
		}
	}
}

func TestPixelsRefuse(t *testing.T) {
	dir := t.TempDir()
	writePNG(t, filepath.Join(dir, "1.png"), 4, 3)
	l, err := images.List(t.Context(), images.ListOptions{Root: dir})
	if err != nil {
		t.Fatal(err)
	}
	for says, o := range map[string]Options{
		"cmyk":         {Channels: "cmyk"},
		"2 values":     {Mean: []float64{1, 2}},
		"3 values":     {Channels: "grey", Std: []float64{1, 2, 3}},
		"std":          {Std: []float64{0}},
		"width":        {Height: 3},
		"9000":         {Width: 9000, Height: 1},
		"not finite":   {Mean: []float64{math.NaN()}},
		"height is -1": {Width: 1, Height: -1},
	} {
		if _, err := o.PixelSpec(t.Context(), l); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", o, err, says)
		}
	}
	if _, err := (Options{}).PixelSpec(t.Context(), &images.Listing{}); !errors.Is(err, images.ErrNoImages) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (Options{}).PixelSpec(ctx, l); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestPixelFingerprint: everything that changes features changes it.
func TestPixelFingerprint(t *testing.T) {
	l := &images.Listing{}
	seen := map[string]Options{}
	for _, o := range []Options{
		{Width: 4, Height: 3}, {Width: 3, Height: 4}, {Width: 4, Height: 3, Channels: "grey"}, {Width: 4, Height: 3, Mean: []float64{0.5}},
		{Width: 4, Height: 3, Std: []float64{0.5}}, {Width: 4, Height: 3, Reading: preprocess.Reading{ApplyEXIF: true}},
	} {
		spec, err := o.PixelSpec(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		p, err := NewPixels(spec, o.Reading)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[p.Fingerprint()]; ok {
			t.Errorf("%+v and %+v have the same fingerprint", o, other)
		}
		seen[p.Fingerprint()] = o
	}
}

func writePNG(t *testing.T, path string, width, height int) {
	t.Helper()
	var b strings.Builder
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, width, height))); err != nil {
		t.Fatal(err)
	}
	write(t, path, b.String())
}
