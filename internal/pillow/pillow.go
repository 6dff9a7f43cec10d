// Package pillow reads BMP, GIF, PNG and TIFF files as Pillow 13 does: the same
// variants, the same tolerance of broken files and the same pixels as
//
//	Image.open(file).convert("RGB")
//
// has them. Alpha is dropped, not blended; an animation is represented by its first
// frame. Go's own decoders refuse many of these files, or give other colours.
//
// A file for which Pillow raises an error is an error here. Each format names the
// readers whose behaviour it copies.
package pillow

import (
	"context"
	"errors"
	"fmt"
	"image"
)

// A Picture is an image whose file's header has been read.
type Picture interface {
	// Size returns the width and height in pixels, both at least 1 and below 2³²,
	// as the file states them. Bound them before calling Pixels, which takes memory
	// for that many pixels.
	Size() (width, height int)
	// Pixels decodes the image, opaque and beginning at 0, 0. Once ctx is
	// cancelled it returns ctx.Err(), within a few rows.
	Pixels(ctx context.Context) (*image.NRGBA, error)
}

var errTruncated = errors.New("the file is cut short")

// rectangle is the part of an image that a frame covers, in pixels.
type rectangle struct{ x0, y0, x1, y1 int }

// within returns an error if r is empty or not inside an image of the given size.
func (r rectangle) within(width, height int) error {
	if r.x0 < 0 || r.y0 < 0 || r.x1 <= r.x0 || r.y1 <= r.y0 || r.x1 > width || r.y1 > height {
		return fmt.Errorf("the frame from %d, %d to %d, %d does not lie in the image of %d×%d", r.x0, r.y0, r.x1, r.y1, width, height)
	}
	return nil
}

// palette is the RGB of each index; entries that a file does not give are black.
type palette [256][3]uint8

// newPalette reads entries of the given number of bytes, of which red, green
// and blue are at the given places.
func newPalette(data []byte, entry, red, green, blue int) (*palette, error) {
	if len(data)/entry > len(palette{}) {
		return nil, fmt.Errorf("a palette of %d colours; it can have 256", len(data)/entry)
	}
	p := new(palette)
	for i := range len(data) / entry {
		c := data[i*entry:]
		p[i] = [3]uint8{c[red], c[green], c[blue]}
	}
	return p, nil
}

// greys is the palette of an image of greys.
func greys() *palette {
	p := new(palette)
	for i := range p {
		p[i] = [3]uint8{uint8(i), uint8(i), uint8(i)}
	}
	return p
}

// set writes pixel x of a row of NRGBA.
func set(dst []uint8, x int, r, g, b uint8) {
	pixel := dst[4*x : 4*x+4 : 4*x+4]
	pixel[0], pixel[1], pixel[2], pixel[3] = r, g, b, 255
}

// paint writes the colours of a row of indices.
func (p *palette) paint(dst, indices []uint8) {
	for x, i := range indices {
		c := &p[i]
		set(dst, x, c[0], c[1], c[2])
	}
}

// row returns the bytes of row y of an image.
func row(img *image.NRGBA, y int) []uint8 { return img.Pix[y*img.Stride:][:img.Stride] }

// unpackBits widens samples of 1, 2, 4 or 8 bits, the highest bits first, to a
// byte each; n of them from src to dst.
func unpackBits(dst, src []uint8, n, bits int) {
	if bits == 8 {
		copy(dst[:n], src)
		return
	}
	mask := uint8(1)<<bits - 1
	for i := range n {
		at := i * bits
		dst[i] = src[at/8] >> (8 - bits - at%8) & mask
	}
}

// clip16 converts a 16-bit grey (Pillow's mode "I;16") to 8 bits as Pillow does.
func clip16(v uint16) uint8 { return uint8(min(v, 255)) }

// A Grey16 is a picture that may have greys of more than 8 and up to 16 bits, which Pillow
// clips at 255.
type Grey16 interface {
	// Grey16 tells whether it has.
	Grey16() bool
	// Scale has Pixels give the high byte of such greys, as of those of 16-bit RGB.
	Scale()
}
