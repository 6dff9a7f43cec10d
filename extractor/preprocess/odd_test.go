package preprocess

import (
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"image"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// unsupportedFormats are formats that Pillow reads and Decode does not: none in
// which photographs are kept.
var unsupportedFormats = map[string]bool{"ICO": true, "PPM": true, "TGA": true}

// unsupportedFiles are files that Pillow decodes and Decode refuses, with what
// the error says and why that is so.
var unsupportedFiles = map[string]struct{ says, why string }{
	"pillow/hopper_lzma.tif": {"compression 34925 is not supported", "LZMA is a compression that libtiff alone writes, and Go has none"},
}

// TestOddImages compares with what Pillow 13 makes of 1,077 odd images, as
// testdata/generate_odd.py wrote it down: what Pillow decodes is decoded, to
// the bit, and what it refuses is refused.
func TestOddImages(t *testing.T) {
	t.Parallel()
	f, err := os.Open("testdata/odd.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, row := range rows[1:] {
		path, format, sum := row[0], row[1], row[4]
		img, err := Decode(t.Context(), readFile(t, testenv.Shared(t, "data", "odd", path)), DecodeOptions{})
		unsupported, listed := unsupportedFiles[path]
		seen[path] = listed
		switch {
		case err != nil && strings.Contains(err.Error(), "the decoder failed"):
			t.Errorf("%s: %v", path, err)
		case sum == "":
			if err == nil {
				t.Errorf("%s decodes, which Pillow refuses", path)
			}
		case unsupportedFormats[format]:
			if !errors.Is(err, ErrUnknownFormat) {
				t.Errorf("%s: error is %v, want %v", path, err, ErrUnknownFormat)
			}
		case listed:
			if err == nil || !strings.Contains(err.Error(), unsupported.says) {
				t.Errorf("%s is listed as one that is refused, for %q; the error is %v", path, unsupported.says, err)
			}
		case err != nil:
			t.Errorf("%s: %v, but Pillow decodes it", path, err)
		case strconv.Itoa(img.Rect.Dx()) != row[2] || strconv.Itoa(img.Rect.Dy()) != row[3]:
			t.Errorf("%s is %v, want %s×%s", path, img.Rect.Max, row[2], row[3])
		case rgbHash(img) != sum:
			t.Errorf("%s: pixels differ from Pillow's", path)
		}
	}
	for path := range unsupportedFiles {
		if !seen[path] {
			t.Errorf("%s is listed, but none of the images", path)
		}
	}
}

// rgbHash is the beginning of the hash of an image's pixels as RGB.
func rgbHash(img *image.NRGBA) string {
	rgb := make([]byte, 0, 3*len(img.Pix)/4)
	for i := 0; i < len(img.Pix); i += 4 {
		rgb = append(rgb, img.Pix[i:i+3]...)
	}
	sum := sha256.Sum256(rgb)
	return hex.EncodeToString(sum[:8])
}
