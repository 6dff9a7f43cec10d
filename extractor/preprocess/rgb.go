package preprocess

import (
	"context"
	"fmt"
	"image"
	"image/color"
)

// row writes row y of an image, counted from 0, as opaque RGBA to dst.
type row func(dst []uint8, y int)

// rgb converts what a decoder returned to an opaque image that begins at 0, 0,
// as Pillow's convert("RGB") would. YCbCr is that of WebP; grey16 says that
// 16-bit colours are greys.
func rgb(ctx context.Context, img image.Image, grey16 bool) (*image.NRGBA, error) {
	size := image.Rectangle{Max: img.Bounds().Size()}
	var dst *image.NRGBA
	if fresh, ok := img.(*image.NRGBA); ok { // from a decoder: ours to change
		dst = &image.NRGBA{Pix: fresh.Pix, Stride: fresh.Stride, Rect: size}
	} else {
		dst = image.NewNRGBA(size)
	}
	convert, err := rows(img, grey16)
	if err != nil {
		return nil, err
	}
	for y := range size.Dy() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		convert(dst.Pix[y*dst.Stride:][:4*size.Dx()], y)
	}
	return dst, nil
}

// rows returns what converts the rows of img. For an NRGBA they are converted
// in place.
func rows(img image.Image, grey16 bool) (row, error) {
	w := img.Bounds().Dx()
	switch img := img.(type) {
	case *image.NRGBA:
		return func(dst []uint8, _ int) {
			for i := 3; i < len(dst); i += 4 {
				dst[i] = 255
			}
		}, nil
	case *image.YCbCr:
		return fromYCbCr(img), nil
	case *image.NYCbCrA:
		return fromYCbCr(&img.YCbCr), nil
	case *image.Gray:
		return func(dst []uint8, y int) {
			for x, v := range img.Pix[y*img.Stride:][:w] {
				set(dst, x, v, v, v)
			}
		}, nil
	case *image.Gray16:
		return func(dst []uint8, y int) {
			src := img.Pix[y*img.Stride:][:2*w]
			for x := range w {
				v := clipped(src[2*x], src[2*x+1])
				set(dst, x, v, v, v)
			}
		}, nil
	case *image.RGBA:
		return func(dst []uint8, y int) {
			src := img.Pix[y*img.Stride:][:4*w]
			for x := range w {
				setStraight(dst, x, src[4*x], src[4*x+1], src[4*x+2], src[4*x+3])
			}
		}, nil
	case *image.RGBA64:
		return func(dst []uint8, y int) {
			src := img.Pix[y*img.Stride:][:8*w]
			for x := range w {
				setStraight(dst, x, src[8*x], src[8*x+2], src[8*x+4], src[8*x+6])
			}
		}, nil
	case *image.NRGBA64:
		return func(dst []uint8, y int) {
			src := img.Pix[y*img.Stride:][:8*w]
			for x := range w {
				if grey16 {
					v := clipped(src[8*x], src[8*x+1])
					set(dst, x, v, v, v)
				} else {
					set(dst, x, src[8*x], src[8*x+2], src[8*x+4])
				}
			}
		}, nil
	case *image.Paletted:
		table := colours(img.Palette)
		return func(dst []uint8, y int) {
			for x, i := range img.Pix[y*img.Stride:][:w] {
				set(dst, x, table[i][0], table[i][1], table[i][2])
			}
		}, nil
	case *image.CMYK:
		return func(dst []uint8, y int) {
			src := img.Pix[y*img.Stride:][:4*w]
			for x := range w {
				light := 255 - int(src[4*x+3])
				set(dst, x, lit(src[4*x], light), lit(src[4*x+1], light), lit(src[4*x+2], light))
			}
		}, nil
	}
	return nil, fmt.Errorf("pixels of type %T are not supported", img)
}

func set(dst []uint8, x int, r, g, b uint8) {
	pixel := dst[4*x : 4*x+4 : 4*x+4]
	pixel[0], pixel[1], pixel[2], pixel[3] = r, g, b, 255
}

// clipped returns a 16-bit grey as Pillow converts "I;16".
func clipped(high, low uint8) uint8 {
	if high != 0 {
		return 255
	}
	return low
}

// setStraight undoes the multiplication of a colour with its alpha. As in
// Pillow, what is fully transparent is black.
func setStraight(dst []uint8, x int, r, g, b, a uint8) {
	switch a {
	case 0:
		r, g, b = 0, 0, 0
	case 255:
	default:
		divide := func(v uint8) uint8 { return uint8(min(255*int(v)/int(a), 255)) }
		r, g, b = divide(r), divide(g), divide(b)
	}
	set(dst, x, r, g, b)
}

// colours returns the RGB of a palette, black for indices that it lacks.
func colours(palette color.Palette) (table [256][3]uint8) {
	for i, entry := range palette {
		if c, ok := entry.(color.NRGBA); ok {
			table[i] = [3]uint8{c.R, c.G, c.B}
			continue
		}
		r, g, b, _ := entry.RGBA()
		table[i] = [3]uint8{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8)}
	}
	return table
}

// lit returns what an ink leaves of the light that black lets through, rounded
// as Pillow's cmyk2rgb does.
func lit(ink uint8, light int) uint8 {
	product := int(ink)*light + 128
	return uint8(light - (product+product>>8)>>8)
}

// grey returns a grey copy of an image, with the fixed-point ITU-R 601-2 luma of
// Pillow's convert("L"), so that an image that is grey already keeps its levels.
func grey(img *image.NRGBA) *image.NRGBA {
	dst := image.NewNRGBA(image.Rectangle{Max: img.Rect.Size()})
	for y := range dst.Rect.Dy() {
		from := img.Pix[y*img.Stride:][:dst.Stride]
		to := dst.Pix[y*dst.Stride:][:dst.Stride]
		for x := range dst.Rect.Dx() {
			l := uint8((int(from[4*x])*19595 + int(from[4*x+1])*38470 + int(from[4*x+2])*7471 + 0x8000) >> 16)
			set(to, x, l, l, l)
		}
	}
	return dst
}
