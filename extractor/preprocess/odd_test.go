package preprocess

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"image"
	"os"
	"strconv"
	"strings"
	"testing"

	"mlrbfn/internal/testenv"
)

// unsupportedFormats are formats that Pillow reads and Decode does not: none in
// which photographs are kept.
var unsupportedFormats = map[string]bool{"ICO": true, "PPM": true, "TGA": true}

// unsupportedFiles are files that Pillow decodes and Decode refuses, with what
// the error says and why that is so.
var unsupportedFiles = map[string]struct{ says, why string }{
	"pillow/hopper_lzma.tif": {"compression 34925 is not supported", "LZMA is a compression that libtiff alone writes, and Go has none"},

	"imagetestsuite/jpg/1cbb1bb37d62c44f67374cd451643dc4.jpg": {"missing 0xff00 sequence", "image/jpeg does not step over broken entropy-coded data, as libjpeg does"},
	"imagetestsuite/jpg/8e5e74dbf9b68a322fbb9512db837329.jpg": {"missing 0xff00 sequence", "image/jpeg does not step over broken entropy-coded data, as libjpeg does"},
	"libjpeg_turbo/testimgari.jpg":                            {"unknown marker", "image/jpeg has no arithmetic coding"},
}

// tolerated are JPEGs that differ by more than jpegTolerance levels, and why.
var tolerated = map[string]struct {
	levels int
	why    string
}{
	"go_stdlib/testdata/video-001.progressive.truncated.jpeg": {4, "image/jpeg leaves the blocks as they are where libjpeg smooths between those whose coefficients are missing"},
	"go_stdlib/testdata/video-001.rgb.jpeg":                   {94, "subsampled RGB, which Pillow interpolates"},
}

// jpegTolerance is by how many levels JPEG decoders may differ.
const jpegTolerance = 3

// TestOddImages compares with what Pillow 13 makes of 1,077 odd images, as
// scripts/gen_odd_golden.py wrote it down: what Pillow decodes is decoded, to
// the bit but for JPEG, and what it refuses is refused.
func TestOddImages(t *testing.T) {
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
		path, format, sum, levels := row[0], row[1], row[4], row[5]
		img, err := Decode(t.Context(), readFile(t, testenv.Shared(t, "data", "odd", path)), DecodeOptions{})
		unsupported, listed := unsupportedFiles[path]
		tolerance, excused := tolerated[path]
		seen[path] = listed || excused
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
		case levels == "":
			if got := rgbHash(img); got != sum {
				t.Errorf("%s: pixels differ from Pillow's", path)
			}
		default:
			worst, most := farthest(t, img, levels), max(jpegTolerance, tolerance.levels)
			if worst > most {
				t.Errorf("%s: pixels differ from Pillow's by %d, want at most %d", path, worst, most)
			}
		}
	}
	for path := range unsupportedFiles {
		if !seen[path] {
			t.Errorf("%s is listed, but none of the images", path)
		}
	}
	for path := range tolerated {
		if !seen[path] {
			t.Errorf("%s is tolerated, but none of the images", path)
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

// farthest is the largest difference of an image from the levels of some of its
// pixels.
func farthest(t *testing.T, img *image.NRGBA, levels string) int {
	t.Helper()
	want, err := base64.StdEncoding.DecodeString(levels)
	if err != nil {
		t.Fatal(err)
	}
	worst, n := 0, uint64(img.Rect.Dx()*img.Rect.Dy())
	for i := range len(want) / 3 {
		at := uint64(uint32(i+1)*2654435761) * n >> 32
		for c := range 3 {
			d := int(img.Pix[4*int(at)+c]) - int(want[3*i+c])
			worst = max(worst, d, -d)
		}
	}
	return worst
}
