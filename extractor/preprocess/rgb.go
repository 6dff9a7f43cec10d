package preprocess

import (
	"context"
	"fmt"
	"image"

	"github.com/mlrbfn/mlrbfn/internal/pillow"
)

// row writes row y of an image, counted from 0, as opaque RGBA to dst.
type row func(dst []uint8, y int)

// rgb converts what a decoder returned to an opaque image that begins at 0, 0,
// as Pillow's convert("RGB") would. YCbCr is that of WebP.
func rgb(ctx context.Context, img image.Image) (*image.NRGBA, error) {
	size := image.Rectangle{Max: img.Bounds().Size()}
	var dst *image.NRGBA
	if fresh, ok := img.(*image.NRGBA); ok { // from a decoder: ours to change
		dst = &image.NRGBA{Pix: fresh.Pix, Stride: fresh.Stride, Rect: size}
	} else {
		dst = image.NewNRGBA(size)
	}
	convert, err := rows(img)
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

// rows returns a function that converts the rows of img. For an NRGBA they are converted
// in place.
func rows(img image.Image) (row, error) {
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
	case *image.RGBA:
		return func(dst []uint8, y int) {
			copy(dst, img.Pix[y*img.Stride:][:4*w]) // of a JPEG, thus opaque
		}, nil
	case *image.CMYK:
		return func(dst []uint8, y int) {
			src := img.Pix[y*img.Stride:][:4*w]
			for x := range w {
				r, g, b := pillow.CMYK(src[4*x], src[4*x+1], src[4*x+2], src[4*x+3])
				set(dst, x, r, g, b)
			}
		}, nil
	}
	return nil, fmt.Errorf("pixels of type %T are not supported", img)
}

func set(dst []uint8, x int, r, g, b uint8) {
	pixel := dst[4*x : 4*x+4 : 4*x+4]
	pixel[0], pixel[1], pixel[2], pixel[3] = r, g, b, 255
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
