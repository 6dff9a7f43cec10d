package pillow

import (
	"bytes"
	"fmt"
	"io"
)

// Tags of a TIFF whose colours are YCbCr.
const (
	tagLuma        = 529
	tagSubsampling = 530
	tagBlackWhite  = 532
)

// usualYCbCr tells whether the coefficients and the levels of black and white are
// the defaults of TIFF.
func (t *TIFF) usualYCbCr() bool {
	equal := func(tag uint16, usual ...float64) bool {
		data := t.tags[tag].data
		for i, v := range usual {
			if len(data) < 8*(i+1) || t.tags[tag].kind != typeRational ||
				float64(t.order.Uint32(data[8*i:]))/float64(t.order.Uint32(data[8*i+4:])) != v {
				return data == nil
			}
		}
		return true
	}
	return equal(tagLuma, .299, .587, .114) && equal(tagBlackWhite, 0, 255, 128, 255, 128, 255)
}

// clip8 clips v to 0 and 255.
func clip8(v int) uint8 { return uint8(max(0, min(v, 255))) }

// readYCbCr turns a strip or tile of YCbCr, without its compression, to RGB, in
// rows of stride bytes. Pillow converts the colours of uncompressed data, libtiff
// those of compressed data, whose chroma may have a lower resolution.
func (t *TIFF) readYCbCr(source io.Reader, stride, rows int) (io.Reader, error) {
	right, down := 1, 1 // pixels that share a sample of chroma
	if t.compression != tiffNone {
		right, down = 2, 2
		if factors := t.ints(tagSubsampling); len(factors) > 1 {
			right, down = factors[0], factors[1]
		}
		for _, n := range []int{right, down} {
			if n != 1 && n != 2 && n != 4 {
				return nil, fmt.Errorf("chroma subsampled by %d×%d is not supported", right, down)
			}
		}
	}
	across := (t.tileWidth + right - 1) / right
	block := make([]byte, (right*down+2)*across) // a row of blocks: each luma, Cb and Cr
	out := make([]byte, rows*stride)
	for y := 0; y < rows; y += down {
		if _, err := io.ReadFull(source, block); err != nil {
			return nil, err
		}
		for x := range t.tileWidth {
			b := block[(right*down+2)*(x/right):]
			cb, cr := int(b[right*down])-128, int(b[right*down+1])-128
			for dy := range min(down, rows-y) {
				luma := int(b[dy*right+x%right])
				pixel := out[(y+dy)*stride+3*x:]
				if t.compression == tiffNone {
					pixel[0], pixel[1], pixel[2] = ycc(luma, cb, cr)
				} else {
					pixel[0], pixel[1], pixel[2] = yccTIFF(luma, cb, cr)
				}
			}
		}
	}
	return bytes.NewReader(out), nil
}

// yccTIFF is libtiff's conversion (tif_color.c) for the usual coefficients.
func yccTIFF(y, cb, cr int) (r, g, b uint8) {
	const half = 1 << 15
	red := (91881*cr + half) >> 16
	green := (-22553*cb - 46802*cr + half) >> 16
	blue := (116130*cb + half) >> 16
	return clip8(y + red), clip8(y + green), clip8(y + blue)
}

// ycc is Pillow's conversion (ConvertYCbCr.c), whose tables have six bits after
// the point; it is up to one level off.
func ycc(y, cb, cr int) (r, g, b uint8) {
	scaled := func(v int, by float64) int { return int(float64(v) * by * 64) }
	red := scaled(cr, 1.402) >> 6
	green := (scaled(cb, -0.344136) + scaled(cr, -0.714136)) >> 6
	blue := scaled(cb, 1.772) >> 6
	return clip8(y + red), clip8(y + green), clip8(y + blue)
}
