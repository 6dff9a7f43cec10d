package pillow

import (
	"context"
	"errors"
	"fmt"
	"image"
)

// gif is the first frame of a GIF on its canvas, read as Pillow's GifImagePlugin
// and GifDecode.c read it.
type gif struct {
	width, height int
	frame         rectangle
	palette       *palette // greys if there is none
	background    uint8    // the index that the canvas is filled with
	codeBits      int
	interlaced    bool
	data          []byte // that is not read yet: at last, from the first block of pixels on
}

func little(b []byte) int { return int(b[0]) | int(b[1])<<8 }

// next takes n bytes of the data, fewer at the file's end.
func (g *gif) next(n int) []byte {
	n = min(n, len(g.data))
	taken := g.data[:n:n]
	g.data = g.data[n:]
	return taken
}

// block takes a block; nil is the last one.
func (g *gif) block() []byte {
	if length := g.next(1); len(length) == 1 && length[0] > 0 {
		return g.next(int(length[0]))
	}
	return nil
}

// readPalette reads the palette if the flags say that there is one, and has greys otherwise
// unless there was one before.
func (g *gif) readPalette(flags byte) (err error) {
	const hasPalette = 0x80
	if g.palette == nil {
		g.palette = greys()
	}
	if flags&hasPalette == 0 {
		return nil
	}
	entries := g.next(3 << (1 + flags&7))
	g.palette = greys()
	for i, v := range entries {
		if int(v) != i/3 {
			g.palette, err = newPalette(entries, 3, 0, 1, 2)
			return err
		}
	}
	return nil
}

// readDescriptor reads what stands before the pixels of the first frame.
func (g *gif) readDescriptor() error {
	const interlace = 0x40
	descriptor := g.next(9)
	if len(descriptor) < 9 {
		return errTruncated
	}
	g.frame = rectangle{x0: little(descriptor), y0: little(descriptor[2:])}
	g.frame.x1 = g.frame.x0 + little(descriptor[4:])
	g.frame.y1 = g.frame.y0 + little(descriptor[6:])
	g.width, g.height = max(g.width, g.frame.x1), max(g.height, g.frame.y1)
	if g.width == 0 || g.height == 0 {
		return fmt.Errorf("its size is %d×%d", g.width, g.height)
	}
	if err := g.readPalette(descriptor[8]); err != nil {
		return err
	}
	g.interlaced = descriptor[8]&interlace != 0
	bits := g.next(1)
	if len(bits) == 0 {
		return errTruncated
	}
	g.codeBits = int(bits[0])
	return nil
}

// OpenGIF reads a GIF up to the pixels of its first frame. The canvas is enlarged
// so that it contains the frame.
func OpenGIF(data []byte) (Picture, error) {
	const header = 13
	if len(data) < header {
		return nil, errTruncated
	}
	g := &gif{width: little(data[6:]), height: little(data[8:]), data: data[header:]}
	if err := g.readPalette(data[10]); err != nil {
		return nil, err
	}
	for {
		introducer := g.next(1)
		if len(introducer) == 0 || introducer[0] == ';' {
			return nil, errors.New("it has no frame")
		}
		switch introducer[0] {
		case '!':
			const graphicControl, comment = 0xf9, 0xfe
			label, first := g.next(1), g.block()
			if len(label) == 0 {
				return nil, errTruncated
			}
			switch {
			case label[0] == graphicControl && first != nil:
				if len(first) < 4 {
					return nil, errTruncated
				}
				if first[0]&1 != 0 {
					g.background = first[3]
				}
			case label[0] == comment && first == nil:
				continue
			}
			for len(g.block()) > 0 {
			}
		case ',':
			if err := g.readDescriptor(); err != nil {
				return nil, err
			}
			return g, nil
		}
	}
}

func (g *gif) Size() (width, height int) { return g.width, g.height }

func (g *gif) Pixels(ctx context.Context) (*image.NRGBA, error) {
	frame := g.frame
	if err := frame.within(g.width, g.height); err != nil {
		return nil, err
	}
	// A code of 12 bits makes at most as many pixels.
	width, height := frame.x1-frame.x0, frame.y1-frame.y0
	if width*height > 8*len(g.data)<<12 {
		return nil, errTruncated
	}
	indices, err := g.codes(ctx, width*height)
	if err != nil {
		return nil, err
	}
	img := image.NewNRGBA(image.Rect(0, 0, g.width, g.height))
	line := make([]uint8, g.width)
	for i := range line {
		line[i] = g.background
	}
	for y := range g.height {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if y < frame.y0 || y >= frame.y1 || width < g.width {
			g.palette.paint(row(img, y), line)
		}
	}
	y, step, pass := 0, 1, 4
	if g.interlaced {
		step, pass = 8, 1
	}
	for i := range height {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for y >= height { // only if interlaced: the next pass
			start := 8 >> pass
			y, step, pass = start, 2*start, pass+1
		}
		g.palette.paint(row(img, frame.y0+y)[4*frame.x0:], indices[i*width:][:width])
		y += step
	}
	return img, nil
}

// codes decodes the first n pixels. As in Pillow, a block of data is used only if
// it is complete.
func (g *gif) codes(ctx context.Context, n int) ([]uint8, error) {
	const maxBits, table = 12, 1 << 12
	if g.codeBits > maxBits {
		return nil, fmt.Errorf("codes of %d bits are not supported", g.codeBits)
	}
	var (
		last   [table]uint8  // the last pixel of a code's string
		prefix [table]uint16 // the code of the pixels before it
		buffer [table]uint8  // a code's string, filled from its end
		clear  = 1 << g.codeBits
		end    = clear + 1
		free   = clear + 2 // the next code to be defined
		size   = g.codeBits + 1
		bits   uint32
		have   int // bits
		block  []byte
		rest   = g.data
		pixels = make([]uint8, 0, n)
		first  uint8 // the first pixel of the last code's string
		before = -1  // the last code; none after a clear code
	)
	for {
		for have < size {
			for len(block) == 0 {
				if len(rest) == 0 || len(rest) < 1+int(rest[0]) {
					return nil, errTruncated
				}
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				block, rest = rest[1:1+int(rest[0])], rest[1+int(rest[0]):]
			}
			bits |= uint32(block[0]) << have
			have, block = have+8, block[1:]
		}
		code := int(bits) & (1<<size - 1)
		bits, have = bits>>size, have-size
		switch {
		case code == clear:
			free, size, before = clear+2, g.codeBits+1, -1
			continue
		case code == end:
			return nil, errTruncated
		case before < 0 && code > clear || before >= 0 && code > free:
			return nil, errors.New("a code that was not defined")
		}
		at, link := len(buffer), code
		if before >= 0 && code == free {
			at--
			buffer[at], link = first, before
		}
		for link >= clear {
			if at == 0 || link >= table {
				return nil, errors.New("an LZW code that never ends")
			}
			at--
			buffer[at], link = last[link], int(prefix[link])
		}
		first = uint8(link)
		if before >= 0 && free < table {
			last[free], prefix[free] = first, uint16(before)
			if free == 1<<size-1 && size < maxBits {
				size++
			}
			free++
		}
		before = code
		pixels = append(pixels, first)
		pixels = append(pixels, buffer[at:]...)
		if len(pixels) >= n {
			return pixels[:n], nil
		}
	}
}
