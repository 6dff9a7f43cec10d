package pillow

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"strings"
	"testing"
)

// TestTIFFUnsupported lists the kinds of TIFF that Pillow reads and this package
// does not, with the reason, and those that neither reads.
func TestTIFFUnsupported(t *testing.T) {
	t.Parallel()
	type tags map[uint16][]uint32
	grey := tags{tagWidth: {4}, tagHeight: {3}, tagBits: {8}, tagPhotometric: {tiffBlackIsZero}, tagStripOffsets: {8}}
	colour := tags{tagWidth: {4}, tagHeight: {3}, tagBits: {8, 8, 8}, tagSamples: {3}, tagPhotometric: {tiffYCbCr}, tagStripOffsets: {8}}
	tiled := tags{tagWidth: {4}, tagHeight: {3}, tagBits: {8}, tagPhotometric: {tiffBlackIsZero}, tagTileOffsets: {8}, tagTileWidth: {16}, tagTileHeight: {16}}
	tests := []struct {
		name string
		base tags
		more tags
		says string
		why  string // if Pillow reads it
	}{
		{"supported", grey, nil, "", ""},
		{"supported tiles", tiled, nil, "", ""},
		{"LZMA", grey, tags{tagCompression: {34925}}, "compression 34925", "only libtiff writes it"},
		{"Zstandard", grey, tags{tagCompression: {50000}}, "compression 50000", "it is rare, and Go's library of it large"},
		{"JPEG of before TIFF 6", grey, tags{tagCompression: {6}}, "compression 6", "its specification was withdrawn"},
		{"ThunderScan", grey, tags{tagCompression: {32809}}, "compression 32809", "a scanner of the 1980s"},
		{"L*a*b*", colour, tags{tagPhotometric: {8}}, "PhotometricInterpretation 8", "it needs a colour management system"},
		{"YCbCr with a predictor", colour, tags{tagCompression: {tiffLZW}, tagPredictor: {2}}, "a predictor of YCbCr", "nobody writes it"},
		{"YCbCr in planes", colour, tags{tagPlanar: {2}}, "YCbCr in planes", "nobody writes it"},

		{"several formats", colour, tags{tagSampleFormat: {1, 2, 1}}, "several formats", ""},
		{"64 bits", grey, tags{tagBits: {64}}, "1 samples of 64 bits", ""},
		{"premultiplied grey", grey, tags{tagBits: {8, 8}, tagSamples: {2}, tagExtraSamples: {1}}, "extra samples [1]", ""},
		{"bits of too few", colour, tags{tagBits: {8, 8}}, "the bits of 2", ""},
		{"many samples", grey, tags{tagSamples: {60000}}, "60000 samples", ""},
		{"no strips", grey, tags{tagStripOffsets: nil}, "tag 273 is not a whole number", ""},
		{"no palette", grey, tags{tagPhotometric: {tiffPalette}}, "no palette", ""},
		{"tiles wider than sense", tiled, tags{tagTileWidth: {1 << 30}}, "tiles of 1073741824×16", ""},
		{"tiles that take memory for many", tiled, tags{tagWidth: {1}, tagHeight: {1 << 20}, tagTileWidth: {1 << 16}, tagTileHeight: {1 << 20}}, "tiles of 65536×", ""},
		{"no size", grey, tags{tagWidth: {0}}, "0×3", ""},
	}
	for _, tt := range tests {
		all := tags{}
		for _, from := range []tags{tt.base, tt.more} {
			for tag, values := range from {
				all[tag] = values
			}
		}
		file := tiffFile(all)
		_, err := OpenTIFF(file)
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: error is %v, want one about %q", tt.name, err, tt.says)
		}
	}
}

// tiffFile is a TIFF with only the tags, each a LONG.
func tiffFile(tags map[uint16][]uint32) []byte {
	little := binary.LittleEndian
	file := little.AppendUint32([]byte("II*\x00"), 8)
	file = little.AppendUint16(file, uint16(len(tags)))
	values := []byte{}
	behind := len(file) + 12*len(tags)
	for tag, list := range tags {
		file = little.AppendUint16(file, tag)
		file = little.AppendUint16(file, typeLong)
		file = little.AppendUint32(file, uint32(len(list)))
		var field []byte
		for _, v := range list {
			field = little.AppendUint32(field, v)
		}
		if len(field) > 4 {
			field, values = little.AppendUint32(nil, uint32(behind+len(values))), append(values, field...)
		}
		file = append(file, append(field, 0, 0, 0, 0)[:4]...)
	}
	return append(file, values...)
}

// TestTIFFDirectory: a directory with wrong sizes is read as by Pillow.
func TestTIFFDirectory(t *testing.T) {
	t.Parallel()
	file := tiffFile(map[uint16][]uint32{tagBits: {8, 8, 8}})
	d, err := readIFD(file)
	if err != nil || len(d.ints(tagBits)) != 3 {
		t.Fatalf("%v, %v", d, err)
	}
	if d, err = readIFD(file[:len(file)-1]); err != nil || d.ints(tagBits) != nil {
		t.Errorf("a value beyond the end is %v, %v", d, err)
	}
	huge := append([]byte{}, file...)
	binary.LittleEndian.PutUint32(huge[14:], 1<<31) // its number of values
	if d, err = readIFD(huge); err != nil || d.ints(tagBits) != nil {
		t.Errorf("a tag of 8 GiB is %v, %v", d, err)
	}
	if _, err = readIFD(file[:9]); err == nil {
		t.Error("a file without a directory has one")
	}
}

// TestTIFFChecksum: as in libtiff, pixels with a wrong checksum are an error; a
// stream that ends before its checksum, or continues after it, is not.
func TestTIFFChecksum(t *testing.T) {
	t.Parallel()
	const width, height = 10, 10
	deflated := func(n int) []byte {
		var b bytes.Buffer
		w := zlib.NewWriter(&b)
		for i := range n {
			w.Write([]byte{byte(i)})
		}
		w.Close()
		return b.Bytes()
	}
	good := deflated(width * height)
	altered := bytes.Clone(good)
	altered[len(altered)-1] ^= 1
	for name, tt := range map[string]struct {
		strip []byte
		says  string
	}{
		"whole":            {good, ""},
		"without checksum": {good[:len(good)-4], ""},
		"longer":           {deflated(3 * width * height), ""},
		"another checksum": {altered, "checksum"},
	} {
		tags := map[uint16][]uint32{tagWidth: {width}, tagHeight: {height}, tagBits: {8}, tagPhotometric: {tiffBlackIsZero},
			tagCompression: {tiffDeflate}, tagStripOffsets: {0}, tagStripByteCounts: {uint32(len(tt.strip))}}
		tags[tagStripOffsets] = []uint32{uint32(len(tiffFile(tags)))}
		picture, err := OpenTIFF(append(tiffFile(tags), tt.strip...))
		if err != nil {
			t.Fatal(err)
		}
		if _, err = picture.Pixels(t.Context()); tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: error is %v, want one about %q", name, err, tt.says)
		}
	}
}
