package pillow

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"hash/crc32"
	"strings"
	"testing"
)

// TestBombs: files that ask for work out of all proportion to their bytes are refused, and
// files that ask for as much as those of other programs are not.
func TestBombs(t *testing.T) {
	chunk := func(kind string, data []byte) []byte {
		b := append(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), kind...), data...)
		return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[4:]))
	}
	var packed bytes.Buffer
	z := zlib.NewWriter(&packed)
	_, _ = z.Write(make([]byte, maxText-1))
	z.Close()
	profiles := func(n int) []byte {
		b := append([]byte("\x89PNG\r\n\x1a\n"), chunk("IHDR", []byte{0, 0, 0, 1, 0, 0, 0, 1, 8, 0, 0, 0, 0})...)
		b = append(b, bytes.Repeat(chunk("iCCP", append([]byte("a\x00\x00"), packed.Bytes()...)), n)...)
		return append(b, chunk("IDAT", nil)...)
	}
	strips := func(n int, bytes uint32) []byte {
		counts := make([]uint32, n)
		for i := range counts {
			counts[i] = bytes
		}
		return append(tiffFile(map[uint16][]uint32{
			tagWidth: {8}, tagHeight: {uint32(n)}, tagBits: {8}, tagCompression: {tiffPackBits}, tagPhotometric: {1},
			tagStripOffsets: make([]uint32, n), tagRowsPerStrip: {1}, tagStripByteCounts: counts,
		}), make([]byte, 1<<20)...)
	}
	for name, tt := range map[string]struct {
		open func() (Picture, error)
		want string // "" for none
	}{
		"some profiles":  {func() (Picture, error) { return OpenPNG(profiles(50)) }, ""},
		"many profiles":  {func() (Picture, error) { return OpenPNG(profiles(100)) }, "compressed texts and profiles"},
		"strips":         {func() (Picture, error) { return OpenTIFF(strips(40_000, 9)) }, ""},
		"overlapping":    {func() (Picture, error) { return OpenTIFF(strips(40_000, 1<<20)) }, "and the file has"},
		"too many of it": {func() (Picture, error) { return OpenTIFF(strips(70_000, 9)) }, "are too many"},
	} {
		if _, err := tt.open(); (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
