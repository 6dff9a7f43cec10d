package pillow

import (
	"bytes"
	"compress/zlib"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"io"
	"math"
	"math/bits"
	"slices"

	"golang.org/x/image/tiff/lzw"

	"github.com/mlrbfn/mlrbfn/internal/jpeg"
)

// Compressions of TIFF.
const (
	tiffNone       = 1
	tiffLZW        = 5
	tiffJPEG       = 7
	tiffDeflate    = 8
	tiffPackBits   = 32773
	tiffOldDeflate = 32946
)

// PhotometricInterpretations of TIFF.
const (
	tiffWhiteIsZero = 0
	tiffBlackIsZero = 1
	tiffRGB         = 2
	tiffPalette     = 3
	tiffCMYK        = 5
	tiffYCbCr       = 6
)

// SampleFormats of TIFF.
const (
	tiffUnsigned = 1
	tiffSigned   = 2
	tiffFloat    = 3
)

// A TIFF is the first image of a TIFF or BigTIFF file, read as Pillow's
// TiffImagePlugin and libtiff read it.
//
// There are exceptions. Pillow 13 reads two kinds wrongly, which are read correctly
// here: compressed big-endian signed or floating-point samples, whose bytes it
// swaps twice, and uncompressed grey, palette, RGBA or CMYK in one strip with an
// orientation of a quarter turn, whose height it takes for the width. Uncompressed
// YCbCr may differ by one level.
type TIFF struct {
	scale bool // see Grey16
	*ifd
	data          []byte
	width, height int
	compression   int
	photometric   int
	format        int
	bits          int   // of a sample
	samples       int   // of a pixel
	extra         []int // the meaning of the samples after the colours
	planar        bool
	palette       *palette
	// The pixels are cut into strips or tiles; all of one plane come before those
	// of the next.
	tileWidth, tileHeight int
	offsets, counts       []int
}

// OpenTIFF reads the directory of a TIFF file.
func OpenTIFF(data []byte) (*TIFF, error) {
	dir, err := readIFD(data)
	if err != nil {
		return nil, err
	}
	t := &TIFF{
		ifd: dir, data: data,
		width: dir.int(tagWidth, 0), height: dir.int(tagHeight, 0),
		compression: dir.int(tagCompression, tiffNone),
		photometric: dir.int(tagPhotometric, tiffWhiteIsZero),
		planar:      dir.int(tagPlanar, 1) == 2,
		extra:       dir.ints(tagExtraSamples),
	}
	for tag := range dir.tags {
		switch tag {
		case tagWidth, tagHeight, tagBits, tagCompression, tagPhotometric, tagFillOrder, tagStripOffsets, tagSamples, tagRowsPerStrip,
			tagPlanar, tagTileWidth, tagTileHeight, tagTileOffsets, tagExtraSamples, tagSampleFormat:
			if dir.count(tag) == 0 {
				return nil, fmt.Errorf("tag %d is not a whole number", tag)
			}
		}
	}
	if dir.count(tagPhotometric) > 1 {
		t.photometric = tiffWhiteIsZero // as if the tag were missing
	}
	if t.width < 1 || t.height < 1 || t.width > math.MaxUint32 || t.height > math.MaxUint32 {
		return nil, fmt.Errorf("its size is %d×%d", t.width, t.height)
	}
	if err := t.readSamples(); err != nil {
		return nil, err
	}
	if err := t.supported(); err != nil {
		return nil, err
	}
	if t.photometric == tiffPalette {
		if err := t.readPalette(); err != nil {
			return nil, err
		}
	}
	return t, t.readTiles()
}

// readSamples reads the number of samples of a pixel and their bits.
func (t *TIFF) readSamples() error {
	formats := t.ints(tagSampleFormat)
	t.format = t.int(tagSampleFormat, tiffUnsigned)
	if len(formats) > 1 && slices.Max(formats) != slices.Min(formats) {
		return errors.New("samples of several formats are not supported")
	}
	depths := t.ints(tagBits)
	if len(depths) == 0 {
		depths = []int{1}
	}
	t.samples = t.int(tagSamples, 1)
	if t.planar && len(t.extra) > 0 && slices.Max(t.extra) == 0 {
		// Planes without a meaning are ignored.
		t.samples -= len(t.extra)
		depths = depths[:max(0, len(depths)-len(t.extra))]
		t.extra = nil
	}
	if t.samples < 1 || t.samples > 6 || len(depths) == 0 {
		return fmt.Errorf("%d samples a pixel are not supported", t.samples)
	}
	t.bits = depths[0]
	if n := min(len(depths), t.samples); n != t.samples && n != 1 {
		return fmt.Errorf("%d samples a pixel, but the bits of %d", t.samples, n)
	} else if slices.ContainsFunc(depths[:n], func(b int) bool { return b != t.bits }) {
		return fmt.Errorf("samples of %v bits are not supported", depths[:n])
	}
	return nil
}

// supported refuses files that Pillow does not read, by its table OPEN_INFO, and
// the few variants that this package does not support.
func (t *TIFF) supported() error {
	type variant struct {
		photometric, format, samples, bits int
	}
	extra, order := t.extra, t.int(tagFillOrder, 1)
	little := t.order == binary.ByteOrder(binary.LittleEndian)
	ok := false
	switch v := (variant{t.photometric, t.format, t.samples, t.bits}); v {
	case variant{tiffWhiteIsZero, tiffUnsigned, 1, 1}, variant{tiffWhiteIsZero, tiffUnsigned, 1, 2},
		variant{tiffWhiteIsZero, tiffUnsigned, 1, 4}, variant{tiffWhiteIsZero, tiffUnsigned, 1, 8},
		variant{tiffBlackIsZero, tiffUnsigned, 1, 1}, variant{tiffBlackIsZero, tiffUnsigned, 1, 2},
		variant{tiffBlackIsZero, tiffUnsigned, 1, 4}, variant{tiffBlackIsZero, tiffUnsigned, 1, 8},
		variant{tiffPalette, tiffUnsigned, 1, 1}, variant{tiffPalette, tiffUnsigned, 1, 2},
		variant{tiffPalette, tiffUnsigned, 1, 4}, variant{tiffPalette, tiffUnsigned, 1, 8},
		variant{tiffRGB, tiffUnsigned, 3, 8}:
		ok = len(extra) == 0 && (order == 1 || order == 2)
	case variant{tiffBlackIsZero, tiffUnsigned, 1, 16}:
		ok = len(extra) == 0 && (order == 1 || order == 2 && little)
	case variant{tiffBlackIsZero, tiffUnsigned, 1, 12}, variant{tiffWhiteIsZero, tiffUnsigned, 1, 16},
		variant{tiffBlackIsZero, tiffUnsigned, 1, 32}:
		ok = len(extra) == 0 && order == 1 && little
	case variant{tiffBlackIsZero, tiffSigned, 1, 8}, variant{tiffBlackIsZero, tiffSigned, 1, 16}, variant{tiffBlackIsZero, tiffSigned, 1, 32},
		variant{tiffWhiteIsZero, tiffFloat, 1, 32}, variant{tiffBlackIsZero, tiffFloat, 1, 32},
		variant{tiffRGB, tiffUnsigned, 3, 16},
		variant{tiffCMYK, tiffUnsigned, 4, 8}, variant{tiffCMYK, tiffUnsigned, 4, 16},
		variant{tiffYCbCr, tiffUnsigned, 1, 8}, variant{tiffYCbCr, tiffUnsigned, 3, 8}:
		ok = len(extra) == 0 && order == 1
	case variant{tiffBlackIsZero, tiffUnsigned, 2, 8}, variant{tiffPalette, tiffUnsigned, 2, 8}:
		ok = len(extra) == 1 && (extra[0] == 0 || extra[0] == 2) && order == 1
	case variant{tiffRGB, tiffUnsigned, 4, 8}, variant{tiffRGB, tiffUnsigned, 4, 16}:
		ok = order == 1 && (len(extra) == 0 || len(extra) == 1 && (extra[0] <= 2 || extra[0] == 999 && t.bits == 8))
	case variant{tiffRGB, tiffUnsigned, 5, 8}, variant{tiffRGB, tiffUnsigned, 6, 8}:
		ok = order == 1 && len(extra) == t.samples-3 && extra[0] <= 2 && !slices.ContainsFunc(extra[1:], func(e int) bool { return e != 0 })
	case variant{tiffCMYK, tiffUnsigned, 5, 8}, variant{tiffCMYK, tiffUnsigned, 6, 8}:
		ok = order == 1 && len(extra) == t.samples-4 && slices.Max(extra) == 0
	}
	if !ok {
		return fmt.Errorf("PhotometricInterpretation %d with SampleFormat %d, %d samples of %d bits, extra samples %v and FillOrder %d is not supported",
			t.photometric, t.format, t.samples, t.bits, extra, order)
	}
	switch t.compression {
	case tiffNone, tiffLZW, tiffDeflate, tiffOldDeflate, tiffPackBits, tiffJPEG:
	case faxRuns, faxGroup3, faxGroup4:
		if t.bits != 1 || t.samples != 1 {
			return fmt.Errorf("CCITT compression of %d samples of %d bits is not supported", t.samples, t.bits)
		}
	default:
		return fmt.Errorf("compression %d is not supported", t.compression)
	}
	switch {
	case t.compression != tiffNone && t.int(tagPlanar, 1) != 1 && !t.planar:
		return fmt.Errorf("PlanarConfiguration %d is not known", t.int(tagPlanar, 1))
	case t.compression == tiffJPEG && t.bits != 8:
		return fmt.Errorf("JPEG compression of %d bits is not supported", t.bits)
	case t.photometric == tiffYCbCr && t.samples == 3 && (t.planar || t.compression != tiffNone && t.compression != tiffJPEG && !t.usualYCbCr()):
		return errors.New("YCbCr in planes, or with unusual coefficients, is not supported")
	case t.photometric == tiffYCbCr && t.samples == 3 && t.predicted() && t.int(tagPredictor, 1) != 1:
		return errors.New("a predictor of YCbCr is not supported")
	case t.planar && t.samples > 1 && t.bits < 8:
		return fmt.Errorf("planes of %d bits are not supported", t.bits)
	}
	if p := t.int(tagPredictor, 1); t.predicted() && p != 1 {
		if p > 3 || p == 2 && t.bits != 8 && t.bits != 16 && t.bits != 32 || p == 3 && t.format != tiffFloat {
			return fmt.Errorf("predictor %d with %d bits is not supported", p, t.bits)
		}
	}
	return nil
}

// predicted tells whether the compression uses a predictor.
func (t *TIFF) predicted() bool {
	return t.compression == tiffLZW || t.compression == tiffDeflate || t.compression == tiffOldDeflate
}

// readPalette reads the palette: 16 bits for all reds, then greens and blues.
func (t *TIFF) readPalette() error {
	levels := t.ints(tagColourMap)
	n := len(levels) / 3
	if n == 0 {
		return errors.New("it has no palette")
	}
	entries := make([]byte, 0, 3*n)
	for i := range n {
		entries = append(entries, byte(levels[i]>>8), byte(levels[n+i]>>8), byte(levels[2*n+i]>>8))
	}
	var err error
	t.palette, err = newPalette(entries, 3, 0, 1, 2)
	return err
}

// readTiles reads how the pixels are cut.
func (t *TIFF) readTiles() error {
	// Far too many strips, or strips that lie over each other, would be work that is out of
	// proportion to the file.
	const strips, perStrip, overlap, beside = 1 << 16, 1 << 8, 4, 1 << 24
	if n := max(t.count(tagStripOffsets), t.count(tagTileOffsets)); n > max(strips, t.width*t.height/perStrip) {
		return fmt.Errorf("%d strips or tiles are too many for %d×%d pixels", n, t.width, t.height)
	}
	t.offsets, t.counts = t.ints(tagStripOffsets), t.ints(tagStripByteCounts)
	t.tileWidth, t.tileHeight = t.width, t.int(tagRowsPerStrip, t.height)
	if len(t.offsets) == 0 {
		t.offsets, t.counts = t.ints(tagTileOffsets), t.ints(tagTileByteCounts)
		t.tileWidth, t.tileHeight = t.int(tagTileWidth, 0), t.int(tagTileHeight, 0)
	}
	// A tile may be larger than the image, but not so large that it takes much
	// memory.
	const slack = 1 << 22
	if len(t.offsets) == 0 || t.tileWidth < 1 || t.tileHeight < 1 || t.tileWidth > (2*t.width*t.height+slack)/min(t.tileHeight, t.height) {
		return fmt.Errorf("%d strips or tiles of %d×%d pixels are not supported", len(t.offsets), t.tileWidth, t.tileHeight)
	}
	var bytes int
	for _, n := range t.counts {
		bytes += max(0, min(n, len(t.data)))
	}
	if t.compression != tiffNone && bytes > overlap*len(t.data)+beside {
		return fmt.Errorf("its strips or tiles have %d bytes, and the file has %d", bytes, len(t.data))
	}
	if size, direct := t.mapped(); direct && len(t.offsets) == 1 && t.offsets[0] >= 0 && t.offsets[0] <= len(t.data)-size {
		t.tileHeight = t.height
	}
	t.tileHeight = min(t.tileHeight, t.height)
	return nil
}

// mapped tells whether Pillow maps the image into memory, beginning at its only
// strip, and how many bytes it then has, whatever number of rows the strip claims.
func (t *TIFF) mapped() (size int, direct bool) {
	size = t.width * t.height * t.samples * t.bits / 8
	little := t.order == binary.ByteOrder(binary.LittleEndian)
	switch {
	case t.compression != tiffNone || t.tileWidth != t.width || t.int(tagFillOrder, 1) != 1:
	case t.samples == 1 && t.bits == 8:
		direct = t.photometric != tiffWhiteIsZero
	case t.samples == 1 && t.bits == 16:
		direct = t.format == tiffUnsigned && little || t.photometric == tiffBlackIsZero && t.format == tiffUnsigned
	case t.samples == 4 && t.bits == 8:
		direct = len(t.extra) == 0 || t.extra[0] > 1
	}
	return size, direct
}

// Size returns the width and height as stored, before the orientation is applied.
func (t *TIFF) Size() (width, height int) { return t.width, t.height }

// Depth is the bits of a pixel in the file, and Compressed tells whether they are
// compressed.
func (t *TIFF) Depth() int       { return t.samples * t.bits }
func (t *TIFF) Compressed() bool { return t.compression != tiffNone }

// Orientation is the EXIF orientation of the image; 1 is upright.
func (t *TIFF) Orientation() int { return t.orientation() }

// Pixels decodes the image as it is stored.
func (t *TIFF) Pixels(ctx context.Context) (*image.NRGBA, error) {
	across := (t.width + t.tileWidth - 1) / t.tileWidth
	tiles := across * ((t.height + t.tileHeight - 1) / t.tileHeight) // of a plane
	planes, perPlane := 1, t.samples
	if t.planar {
		planes, perPlane = t.samples, 1
	}
	if t.planar && t.compression == tiffNone && len(t.offsets) > tiles*planes {
		return nil, fmt.Errorf("%d strips or tiles, of which %d are too many", len(t.offsets), len(t.offsets)-tiles*planes)
	}
	img := image.NewNRGBA(image.Rect(0, 0, t.width, t.height))
	stride := (t.tileWidth*perPlane*t.bits + 7) / 8
	line := make([]byte, stride*planes)
	for i := range tiles {
		x, y := i%across*t.tileWidth, i/across*t.tileHeight
		width, height := min(t.tileWidth, t.width-x), min(t.tileHeight, t.height-y)
		var sources []io.Reader
		for plane := range planes {
			source, err := t.source(ctx, plane*tiles+i, tiles*planes, stride, height, perPlane)
			if err == nil && t.photometric == tiffYCbCr && t.samples == 3 && t.compression != tiffJPEG {
				source, err = t.readYCbCr(source, stride, height)
			}
			if err != nil {
				return nil, early(err)
			}
			sources = append(sources, source)
		}
		for dy := range height {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			for plane, source := range sources {
				part := line[plane*stride:][:stride]
				if _, err := io.ReadFull(source, part); err != nil {
					return nil, early(err)
				}
				t.unpredict(part, perPlane)
			}
			pixels := line
			if planes > 1 {
				pixels = t.interleave(line, stride, width)
			}
			t.convert(row(img, y+dy)[4*x:], pixels, width)
		}
	}
	return img, nil
}

// source returns the bytes of a strip or tile, decompressed; number is its index.
// As in Pillow, missing data of an uncompressed image are blank, and if the image
// is stored several times, the last one is used.
func (t *TIFF) source(ctx context.Context, number, all, stride, rows, perPlane int) (io.Reader, error) {
	if number >= len(t.offsets) {
		if t.compression != tiffNone {
			return nil, fmt.Errorf("strip or tile %d is missing", number)
		}
		return blank(t.photometric == tiffWhiteIsZero && t.bits <= 8), nil
	}
	for t.compression == tiffNone && number+all < len(t.offsets) {
		number += all
	}
	if t.offsets[number] < 0 || t.offsets[number] > len(t.data) {
		return nil, errTruncated
	}
	data := t.data[t.offsets[number]:]
	if t.compression != tiffNone && number < len(t.counts) {
		if t.counts[number] < 0 || t.counts[number] > len(data) {
			return nil, errTruncated
		}
		data = data[:t.counts[number]]
	}
	if t.int(tagFillOrder, 1) == 2 && t.compression != tiffJPEG {
		data = bytes.Clone(data[:min(len(data), t.stored(stride*rows))])
		for i, v := range data {
			data[i] = bits.Reverse8(v)
		}
	}
	switch t.compression {
	case tiffNone:
		return bytes.NewReader(data), nil
	case tiffLZW:
		if len(data) > 1 && data[0] == 0 && data[1]&1 == 1 {
			return nil, errors.New("LZW compression of TIFF versions before 5 is not supported")
		}
		return lzw.NewReader(bytes.NewReader(data), lzw.MSB, 8), nil
	case tiffDeflate, tiffOldDeflate:
		inflated, err := zlib.NewReader(bytes.NewReader(data))
		return &checked{inflated, stride * rows}, err
	case tiffPackBits:
		return bytes.NewReader(unpackRuns(data, stride*rows)), nil
	case tiffJPEG:
		return t.readJPEG(ctx, data, stride, rows, perPlane)
	}
	decoded, err := decodeFax(ctx, data, t.compression, t.tileWidth, rows, t.int(tagGroup3Options, 0)&1 != 0)
	return bytes.NewReader(decoded), err
}

// early returns err, but errTruncated if it says that the data end too early.
func early(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return errTruncated
	}
	return err
}

// checked reads a number of bytes from a zlib stream. It fails before the last of
// them if the stream ends there and its checksum is wrong.
type checked struct {
	inflated io.Reader
	left     int
}

func (c *checked) Read(p []byte) (int, error) {
	n, err := c.inflated.Read(p)
	if c.left -= n; c.left == 0 && err == nil {
		_, err = c.inflated.Read(make([]byte, 1))
	}
	if err == zlib.ErrChecksum {
		return 0, err
	}
	return n, err
}

// blank reads as an endless sequence of zeros or of ones.
type blank bool

func (b blank) Read(p []byte) (int, error) {
	clear(p)
	for i := range p {
		if b {
			p[i] = 0xff
		}
	}
	return len(p), nil
}

// stored bounds how many bytes of the file are needed for n bytes of a strip.
func (t *TIFF) stored(n int) int {
	if t.compression == tiffNone {
		return n
	}
	return len(t.data)
}

// unpackRuns undoes the PackBits compression, for at most n bytes.
func unpackRuns(data []byte, n int) []byte {
	var out []byte
	for len(data) > 1 && len(out) < n {
		count := int(int8(data[0]))
		data = data[1:]
		switch {
		case count == -128:
		case count < 0:
			out = append(out, bytes.Repeat(data[:1], 1-count)...)
			data = data[1:]
		default:
			count = min(count+1, len(data))
			out = append(out, data[:count]...)
			data = data[count:]
		}
	}
	return out[:min(n, len(out))]
}

// readJPEG decodes a strip or tile that is a JPEG, whose tables may be stored separately.
func (t *TIFF) readJPEG(ctx context.Context, data []byte, stride, rows, perPlane int) (io.Reader, error) {
	const marker = 2 // bytes of the SOI and EOI markers
	if tables := t.tags[tagJPEGTables].data; len(tables) > 2*marker && len(data) > marker {
		data = slices.Concat(data[:marker], tables[marker:len(tables)-marker], data[marker:])
	}
	const slack = 64 // by how much a JPEG may be larger
	maxPixels := (stride/perPlane + slack) * (rows + slack)
	samples, c, err := jpeg.Samples(ctx, data, t.photometric == tiffYCbCr, maxPixels)
	if err != nil {
		return nil, fmt.Errorf("the JPEG in it: %w", err)
	}
	if c.Components != perPlane || c.Width*c.Components < stride {
		return nil, fmt.Errorf("the JPEG in it has %d×%d pixels of %d samples, too few for %d×%d of %d", c.Width, c.Height, c.Components, stride/perPlane, rows, perPlane)
	}
	out := make([]byte, rows*stride) // libtiff leaves missing data at the end of a JPEG blank
	for y := range min(rows, c.Height) {
		copy(out[y*stride:][:stride], samples[y*c.Width*c.Components:])
	}
	return bytes.NewReader(out), nil
}

// unpredict adds to each sample of a row the one before it.
func (t *TIFF) unpredict(line []byte, perPixel int) {
	if !t.predicted() {
		return
	}
	switch t.int(tagPredictor, 1) {
	case 2:
		size := t.bits / 8
		for at := perPixel * size; at+size <= len(line); at += size {
			this, last := line[at:], line[at-perPixel*size:]
			switch size {
			case 1:
				this[0] += last[0]
			case 2:
				t.order.PutUint16(this, t.order.Uint16(this)+t.order.Uint16(last))
			case 4:
				t.order.PutUint32(this, t.order.Uint32(this)+t.order.Uint32(last))
			}
		}
	case 3: // the highest bytes of all samples, then the next, each added up
		for at := perPixel; at < len(line); at++ {
			line[at] += line[at-perPixel]
		}
		planes, n := bytes.Clone(line), len(line)/4
		for i := range n {
			t.order.PutUint32(line[4*i:], uint32(planes[i])<<24|uint32(planes[n+i])<<16|uint32(planes[2*n+i])<<8|uint32(planes[3*n+i]))
		}
	}
}

// interleave interleaves the samples of a row's planes.
func (t *TIFF) interleave(planes []byte, stride, width int) []byte {
	size := t.bits / 8
	pixels := make([]byte, 0, width*t.samples*size)
	for x := range width {
		for s := range t.samples {
			pixels = append(pixels, planes[s*stride+x*size:][:size]...)
		}
	}
	return pixels
}

// convert writes a row of n pixels.
func (t *TIFF) convert(dst, src []byte, n int) {
	switch {
	case t.photometric == tiffRGB:
		size := t.bits / 8
		high := t.high(size)
		premultiplied := len(t.extra) > 0 && t.extra[0] == 1
		for x := range n {
			pixel := src[x*t.samples*size:]
			r, g, b := pixel[high], pixel[size+high], pixel[2*size+high]
			if premultiplied {
				r, g, b = straight(r, g, b, pixel[3*size+high])
			}
			set(dst, x, r, g, b)
		}
	case t.photometric == tiffCMYK:
		size := t.bits / 8
		high := t.high(size)
		for x := range n {
			pixel := src[x*t.samples*size:]
			r, g, b := CMYK(pixel[high], pixel[size+high], pixel[2*size+high], pixel[3*size+high])
			set(dst, x, r, g, b)
		}
	case t.photometric == tiffYCbCr && t.samples == 3:
		for x := range n {
			set(dst, x, src[3*x], src[3*x+1], src[3*x+2])
		}
	case t.bits <= 8:
		t.convertIndices(dst, src, n)
	default:
		for x := range n {
			v := t.grey(src, x)
			set(dst, x, v, v, v)
		}
	}
}

// high returns the offset of the highest byte of a sample.
func (t *TIFF) high(size int) int {
	if t.order == binary.ByteOrder(binary.LittleEndian) {
		return size - 1
	}
	return 0
}

// convertIndices writes a row of greys or palette colours of up to 8 bits.
func (t *TIFF) convertIndices(dst, src []byte, n int) {
	scale := uint8(255 / (1<<t.bits - 1))
	var sample [1]uint8
	for x := range n {
		if t.bits == 8 {
			sample[0] = src[x*t.samples]
		} else {
			at := x * t.bits
			sample[0] = src[at/8] >> (8 - t.bits - at%8) & (1<<t.bits - 1)
		}
		v := sample[0] * scale
		switch t.photometric {
		case tiffPalette:
			c := &t.palette[sample[0]]
			set(dst, x, c[0], c[1], c[2])
			continue
		case tiffWhiteIsZero:
			v = ^v
		}
		set(dst, x, v, v, v)
	}
}

// Grey16 and Scale make it a [Grey16].
func (t *TIFF) Grey16() bool {
	return t.samples == 1 && (t.bits == 12 || t.bits == 16) && t.format == tiffUnsigned && t.photometric != tiffPalette
}
func (t *TIFF) Scale() { t.scale = true }

// grey returns the grey of pixel x, of more than 8 bits, clipped to 0 and 255 as in
// Pillow's modes "I;16", "I" and "F".
func (t *TIFF) grey(src []byte, x int) uint8 {
	switch {
	case t.bits == 12:
		at := 12 * x
		v := uint16(src[at/8])<<8 | uint16(src[at/8+1])
		v = v >> (4 - at%8) & 0xfff
		if t.scale {
			return uint8(v >> 4)
		}
		return clip16(v)
	case t.bits == 16:
		v := t.order.Uint16(src[2*x:])
		if t.format == tiffSigned {
			return uint8(max(0, min(int16(v), 255)))
		}
		if t.scale {
			return uint8(v >> 8)
		}
		return clip16(v)
	}
	v := t.order.Uint32(src[4*x:])
	if t.format == tiffFloat {
		f := math.Float32frombits(v)
		if f != f {
			return 0
		}
		return uint8(max(0, min(f, 255)))
	}
	return uint8(max(0, min(int32(v), 255)))
}

// straight undoes the multiplication of a colour with its alpha. As in Pillow,
// fully transparent pixels are black.
func straight(r, g, b, a uint8) (uint8, uint8, uint8) {
	if a == 0 {
		return 0, 0, 0
	}
	divide := func(v uint8) uint8 { return uint8(min(255*int(v)/int(a), 255)) }
	return divide(r), divide(g), divide(b)
}

// CMYK converts amounts of ink as Pillow does without a colour profile, rounded as
// in its cmyk2rgb.
func CMYK(c, m, y, k uint8) (r, g, b uint8) {
	light := 255 - int(k) // the light that black lets through
	lit := func(ink uint8) uint8 {
		product := int(ink)*light + 128
		return uint8(light - (product+product>>8)>>8)
	}
	return lit(c), lit(m), lit(y)
}
