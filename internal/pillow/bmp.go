package pillow

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"slices"
)

// Compressions of BMP.
const (
	bmpRaw       = 0
	bmpRLE8      = 1
	bmpRLE4      = 2
	bmpBitfields = 3
)

// bmp is a Windows or OS/2 bitmap, read as Pillow's BmpImagePlugin reads it.
type bmp struct {
	data          []byte
	width, height int
	bits          int
	compression   uint32
	topDown       bool
	pixels        int      // offset of the pixels
	palette       *palette // nil if pixels are colours
	// indexBits is the size of an index into the palette. For a palette of greys,
	// Pillow assumes 1 bit for 2 colours and 8 bits for more, whatever the header
	// says.
	indexBits int
	// colour converts one pixel if there is no palette.
	colour func(pixel []byte) (r, g, b uint8)
}

// OpenBMP reads the header of a BMP file.
func OpenBMP(data []byte) (Picture, error) {
	const fileHeader = 14
	if len(data) < fileHeader+4 || data[0] != 'B' || data[1] != 'M' {
		return nil, errTruncated
	}
	little := binary.LittleEndian
	b := &bmp{data: data, pixels: int(little.Uint32(data[10:]))}
	size := int(little.Uint32(data[fileHeader:]))
	if !slices.Contains([]int{12, 40, 52, 56, 64, 108, 124}, size) {
		return nil, fmt.Errorf("a header of %d bytes is not supported", size)
	}
	end := fileHeader + size
	if end > len(data) {
		return nil, errTruncated
	}
	header := data[fileHeader+4 : end]
	colours, entry := uint32(0), 4
	if size == 12 {
		b.width, b.height = int(little.Uint16(header)), int(little.Uint16(header[2:]))
		b.bits, entry = int(little.Uint16(header[6:])), 3
	} else {
		b.width = int(little.Uint32(header))
		height := little.Uint32(header[4:])
		if b.topDown = header[7] == 0xff; b.topDown {
			height = -height
		}
		b.height = int(height)
		b.bits = int(little.Uint16(header[10:]))
		b.compression = little.Uint32(header[12:])
		colours = little.Uint32(header[28:])
	}
	if b.width == 0 || b.height == 0 {
		return nil, fmt.Errorf("its size is %d×%d", b.width, b.height)
	}
	var masks [4]uint32
	if b.compression == bmpBitfields {
		known := 3
		at := header[min(36, len(header)):]
		switch {
		case size >= 56:
			known = 4
		case size < 52:
			at = data[end:]
			end += 12
		}
		if len(at) < 4*known {
			return nil, errTruncated
		}
		for i := range known {
			masks[i] = little.Uint32(at[4*i:])
		}
	}
	if colours == 0 && b.bits <= 32 {
		colours = uint32(uint64(1) << b.bits)
	}
	if b.pixels == fileHeader+size && b.bits <= 8 {
		b.pixels += entry * int(colours)
	}
	if b.bits <= 8 {
		if err := b.readPalette(data[end:], colours, entry); err != nil {
			return nil, err
		}
		if b.pixels == 0 {
			b.pixels = min(end+int(colours)*entry, len(data))
		}
	} else if b.pixels == 0 {
		b.pixels = end
	}
	return b, b.check(masks)
}

// readPalette reads the palette, of entries of 3 or 4 bytes.
func (b *bmp) readPalette(data []byte, colours uint32, entry int) (err error) {
	if colours == 0 || colours > 1<<16 {
		return fmt.Errorf("a palette of %d colours is not supported", colours)
	}
	data = data[:min(int(colours)*entry, len(data))]
	grey := len(data) >= int(colours)*entry-(entry-3)
	for i := 0; grey && i < int(colours); i++ {
		level := i
		if colours == 2 {
			level = 255 * i
		}
		grey = level < 256 && bytes.Equal(data[i*entry:][:3], []byte{byte(level), byte(level), byte(level)})
	}
	b.indexBits = b.bits
	if !grey {
		b.palette, err = newPalette(data, entry, 2, 1, 0)
		return err
	}
	b.palette, b.indexBits = greys(), 8
	if colours <= 2 {
		b.palette[1], b.indexBits = [3]uint8{255, 255, 255}, 1
	}
	return nil
}

// check refuses files that Pillow does not read, and chooses how pixels become
// colours.
func (b *bmp) check(masks [4]uint32) error {
	order := func(red, green, blue int) func([]byte) (r, g, b uint8) {
		return func(p []byte) (uint8, uint8, uint8) { return p[red], p[green], p[blue] }
	}
	switch b.bits {
	case 1, 4, 8:
	case 16:
		b.colour = colour555
	case 24, 32:
		b.colour = order(2, 1, 0)
	default:
		return fmt.Errorf("%d bits a pixel are not supported", b.bits)
	}
	switch b.compression {
	case bmpRaw:
		return nil
	case bmpRLE8, bmpRLE4:
		if b.palette == nil {
			return fmt.Errorf("run-length coding of %d bits a pixel is not supported", b.bits)
		}
		return nil
	case bmpBitfields:
	default:
		return fmt.Errorf("compression %d is not supported", b.compression)
	}
	rgb := [3]uint32(masks[:])
	switch {
	case b.bits == 16 && rgb == [3]uint32{0xf800, 0x7e0, 0x1f}:
		b.colour = colour565
	case b.bits == 16 && rgb == [3]uint32{0x7c00, 0x3e0, 0x1f}:
	case b.bits == 24 && rgb == [3]uint32{0xff0000, 0xff00, 0xff}:
	case b.bits != 32:
		return errors.New("this layout of bit fields is not supported")
	default:
		switch masks {
		case [4]uint32{}, [4]uint32{0xff0000, 0xff00, 0xff, 0}, [4]uint32{0xff0000, 0xff00, 0xff, 0xff000000}:
		case [4]uint32{0xff000000, 0xff0000, 0xff00, 0}, [4]uint32{0xff000000, 0xff0000, 0xff00, 0xff}:
			b.colour = order(3, 2, 1)
		case [4]uint32{0xff000000, 0xff00, 0xff, 0}, [4]uint32{0xff000000, 0xff00, 0xff, 0xff0000}:
			b.colour = order(3, 1, 0)
		case [4]uint32{0xff, 0xff00, 0xff0000, 0xff000000}:
			b.colour = order(0, 1, 2)
		default:
			return errors.New("this layout of bit fields is not supported")
		}
	}
	return nil
}

func colour555(p []byte) (r, g, b uint8) {
	v := int(binary.LittleEndian.Uint16(p))
	return uint8(v >> 10 & 31 * 255 / 31), uint8(v >> 5 & 31 * 255 / 31), uint8(v & 31 * 255 / 31)
}

func colour565(p []byte) (r, g, b uint8) {
	v := int(binary.LittleEndian.Uint16(p))
	return uint8(v >> 11 & 31 * 255 / 31), uint8(v >> 5 & 63 * 255 / 63), uint8(v & 31 * 255 / 31)
}

func (b *bmp) Size() (width, height int) { return b.width, b.height }

func (b *bmp) Pixels(ctx context.Context) (*image.NRGBA, error) {
	if b.compression == bmpRLE8 || b.compression == bmpRLE4 {
		return b.runs(ctx)
	}
	stride := (b.width*b.bits + 31) / 32 * 4
	bits := b.bits
	if b.palette != nil {
		bits = b.indexBits
	}
	used := (b.width*bits + 7) / 8
	if used > stride {
		return nil, fmt.Errorf("%d bits a pixel do not fit its palette of greys", b.bits)
	}
	if (b.height-1)*stride+used > len(b.data)-b.pixels {
		return nil, errTruncated
	}
	img := image.NewNRGBA(image.Rect(0, 0, b.width, b.height))
	indices := make([]uint8, b.width)
	for i := range b.height {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		src, dst := b.data[b.pixels+i*stride:][:used], row(img, b.fromTop(i))
		if b.palette != nil {
			unpackBits(indices, src, b.width, bits)
			b.palette.paint(dst, indices)
			continue
		}
		for x := range b.width {
			red, green, blue := b.colour(src[x*bits/8:])
			set(dst, x, red, green, blue)
		}
	}
	return img, nil
}

// fromTop returns the row of the image that row i of the file holds.
func (b *bmp) fromTop(i int) int {
	if b.topDown {
		return i
	}
	return b.height - 1 - i
}

// runs decodes run-length coded pixels.
func (b *bmp) runs(ctx context.Context) (*image.NRGBA, error) {
	want := b.width * b.height
	pixels := make([]uint8, 0, min(want, 256*len(b.data))+255)
	at, x := b.pixels, 0
	next := func(n int) []byte { // fewer at the file's end
		from := min(at, len(b.data))
		at = min(from+n, len(b.data))
		return b.data[from:at]
	}
	for codes := 0; len(pixels) < want; codes++ {
		if codes&0xffff == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		code := next(2)
		if len(code) < 2 {
			break
		}
		count, value := int(code[0]), code[1]
		if count > 0 {
			count = max(0, min(count, b.width-x))
			for i := range count {
				pixels = append(pixels, b.half(value, i))
			}
			x += count
			continue
		}
		const endOfLine, endOfBitmap, delta = 0, 1, 2
		switch value {
		case endOfLine:
			if rest := len(pixels) % b.width; rest > 0 {
				pixels = append(pixels, make([]uint8, b.width-rest)...)
			}
			x = 0
			continue
		case endOfBitmap:
		case delta:
			move := next(2)
			if len(move) < 2 {
				break
			}
			pixels = append(pixels, make([]uint8, min(want-len(pixels), int(move[0])+int(move[1])*b.width))...)
			x = len(pixels) % b.width
			continue
		default:
			count := min(want-len(pixels), int(value))
			size := count
			if b.compression == bmpRLE4 {
				size = (count + 1) / 2
			}
			literal := next(size)
			for i := range min(count, len(literal)*count/size) {
				if b.compression == bmpRLE4 {
					pixels = append(pixels, b.half(literal[i/2], i))
				} else {
					pixels = append(pixels, literal[i])
				}
			}
			if len(literal) < size || len(pixels) == want {
				break
			}
			x += int(value)
			at += at % 2
			continue
		}
		break
	}
	if len(pixels) < want {
		return nil, errTruncated
	}
	img := image.NewNRGBA(image.Rect(0, 0, b.width, b.height))
	for i := range b.height {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b.palette.paint(row(img, b.fromTop(i)), pixels[i*b.width:][:b.width])
	}
	return img, nil
}

// half returns pixel i of a run: of 4-bit pixels, alternately the high and the low
// bits of value.
func (b *bmp) half(value uint8, i int) uint8 {
	switch {
	case b.compression != bmpRLE4:
		return value
	case i%2 == 0:
		return value >> 4
	}
	return value & 15
}
