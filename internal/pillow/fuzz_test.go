package pillow

import (
	"image"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// seeds adds the files of a kind that the golden tests of decoding have.
func seeds(f *testing.F, extensions ...string) {
	added := 0
	err := filepath.WalkDir(filepath.Join("..", "..", "extractor", "preprocess", "testdata"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		for _, extension := range extensions {
			if strings.EqualFold(filepath.Ext(path), extension) {
				data, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				f.Add(data)
				added++
			}
		}
		return nil
	})
	if err != nil || added == 0 {
		f.Fatalf("%d files, %v", added, err)
	}
}

// fuzz checks that no file breaks a decoder, and that what it decodes has the size
// that it said and is opaque.
func fuzz[P Picture](f *testing.F, open func([]byte) (P, error)) {
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := open(data)
		if err != nil {
			return
		}
		width, height := p.Size()
		if width < 1 || height < 1 || width >= 1<<32 || height >= 1<<32 {
			t.Fatalf("%d×%d pixels", width, height)
		}
		if width > 1<<16/height {
			return
		}
		img, err := p.Pixels(t.Context())
		if err != nil {
			return
		}
		if img.Rect != image.Rect(0, 0, width, height) {
			t.Fatalf("the image is %v, want %d×%d", img.Rect, width, height)
		}
		for i := 3; i < len(img.Pix); i += 4 {
			if img.Pix[i] != 255 {
				t.Fatalf("pixel %d is not opaque", i/4)
			}
		}
	})
}

func FuzzBMP(f *testing.F) {
	seeds(f, ".bmp")
	fuzz(f, OpenBMP)
}

func FuzzGIF(f *testing.F) {
	seeds(f, ".gif")
	fuzz(f, OpenGIF)
}

func FuzzPNG(f *testing.F) {
	seeds(f, ".png")
	fuzz(f, func(data []byte) (Picture, error) {
		exif, _ := PNGMetadata(data)
		_ = Orientation(exif)
		return OpenPNG(data)
	})
}

func FuzzTIFF(f *testing.F) {
	seeds(f, ".tif", ".tiff")
	fuzz(f, OpenTIFF)
}
