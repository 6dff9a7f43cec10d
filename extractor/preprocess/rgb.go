package preprocess

import (
	"fmt"
	"image"
	"image/color"
)

// rgb converts what a decoder returned to an opaque image that begins at 0, 0,
// as Pillow's convert("RGB") would. video says that YCbCr has the video range
// of WebP, not JPEG's full range; grey16 that 16-bit colours are greys.
func rgb(img image.Image, video, grey16 bool) (*image.NRGBA, error) {
	switch img := img.(type) {
	case *image.NRGBA: // fresh from a decoder: ours to change
		for i := 3; i < len(img.Pix); i += 4 {
			img.Pix[i] = 255
		}
		img.Rect = img.Rect.Sub(img.Rect.Min)
		return img, nil
	case *image.YCbCr:
		return fromYCbCr(img, video), nil
	case *image.NYCbCrA:
		return fromYCbCr(&img.YCbCr, video), nil
	}
	at, err := pixels(img, grey16)
	if err != nil {
		return nil, err
	}
	b := img.Bounds()
	dst := image.NewNRGBA(image.Rect(0, 0, b.Dx(), b.Dy()))
	i := 0
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			pixel := at(x, y)
			copy(dst.Pix[i:], pixel[:])
			dst.Pix[i+3] = 255
			i += 4
		}
	}
	return dst, nil
}

// pixels returns a function that gives the RGB of each pixel of img.
func pixels(img image.Image, grey16 bool) (at func(x, y int) [3]uint8, err error) {
	high := func(v uint16) uint8 { return uint8(v >> 8) }
	if grey16 {
		high = func(v uint16) uint8 { return uint8(min(v, 255)) }
	}
	switch img := img.(type) {
	case *image.Gray:
		return func(x, y int) [3]uint8 {
			v := img.GrayAt(x, y).Y
			return [3]uint8{v, v, v}
		}, nil
	case *image.Gray16:
		return func(x, y int) [3]uint8 {
			v := uint8(min(img.Gray16At(x, y).Y, 255))
			return [3]uint8{v, v, v}
		}, nil
	case *image.RGBA:
		return func(x, y int) [3]uint8 {
			c := img.RGBAAt(x, y)
			return straight(c.R, c.G, c.B, c.A)
		}, nil
	case *image.RGBA64:
		return func(x, y int) [3]uint8 {
			c := img.RGBA64At(x, y)
			return straight(uint8(c.R>>8), uint8(c.G>>8), uint8(c.B>>8), uint8(c.A>>8))
		}, nil
	case *image.NRGBA64:
		return func(x, y int) [3]uint8 {
			c := img.NRGBA64At(x, y)
			return [3]uint8{high(c.R), high(c.G), high(c.B)}
		}, nil
	case *image.Paletted:
		var table [256][3]uint8
		for i, entry := range img.Palette {
			if c, ok := entry.(color.NRGBA); ok {
				table[i] = [3]uint8{c.R, c.G, c.B}
				continue
			}
			r, g, b, _ := entry.RGBA()
			table[i] = [3]uint8{uint8(r >> 8), uint8(g >> 8), uint8(b >> 8)}
		}
		return func(x, y int) [3]uint8 { return table[img.ColorIndexAt(x, y)] }, nil
	case *image.CMYK:
		return func(x, y int) [3]uint8 {
			c := img.CMYKAt(x, y)
			light := 255 - int(c.K)
			return [3]uint8{lit(c.C, light), lit(c.M, light), lit(c.Y, light)}
		}, nil
	}
	return nil, fmt.Errorf("pixels of type %T are not supported", img)
}

// straight undoes the multiplication of a colour with its alpha. As in Pillow,
// what is fully transparent is black.
func straight(r, g, b, a uint8) [3]uint8 {
	if a == 0 {
		return [3]uint8{}
	}
	divide := func(v uint8) uint8 { return uint8(min(255*int(v)/int(a), 255)) }
	return [3]uint8{divide(r), divide(g), divide(b)}
}

// lit returns what an ink leaves of the light that black lets through, rounded
// as Pillow's cmyk2rgb does.
func lit(ink uint8, light int) uint8 {
	product := int(ink)*light + 128
	return uint8(light - (product+product>>8)>>8)
}

// fromYCbCr converts all pixels of img, each with the chroma sample that covers
// it.
func fromYCbCr(img *image.YCbCr, video bool) *image.NRGBA {
	convert := color.YCbCrToRGB
	if video {
		convert = videoToRGB
	}
	b := img.Rect
	dst := image.NewNRGBA(image.Rect(0, 0, b.Dx(), b.Dy()))
	i := 0
	for y := b.Min.Y; y < b.Max.Y; y++ {
		luma := img.Y[img.YOffset(b.Min.X, y):][:b.Dx()]
		for x, l := range luma {
			c := img.COffset(b.Min.X+x, y)
			out := dst.Pix[i : i+4 : i+4]
			out[0], out[1], out[2] = convert(l, img.Cb[c], img.Cr[c])
			out[3] = 255
			i += 4
		}
	}
	return dst
}

// videoToRGB converts BT.601 YCbCr of video range (16…235) in the fixed-point
// arithmetic of libwebp. Go's own conversion takes it for full range, and its
// result is too flat.
func videoToRGB(y, cb, cr uint8) (r, g, b uint8) {
	scaled := func(v uint8, by int) int { return int(v) * by >> 8 }
	clip := func(v int) uint8 { return uint8(max(0, min(v>>6, 255))) }
	luma := scaled(y, 19077)
	return clip(luma + scaled(cr, 26149) - 14234),
		clip(luma - scaled(cb, 6419) - scaled(cr, 13320) + 8708),
		clip(luma + scaled(cb, 33050) - 17685)
}
