package preprocess

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/jpeg"
	"slices"

	"mlrbfn/internal/pillow"
)

// jpegPicture is a JPEG.
type jpegPicture struct {
	data          []byte
	width, height int
}

func openJPEG(data []byte) (pillow.Picture, error) {
	config, err := jpeg.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	if config.Width <= 0 || config.Height <= 0 {
		return nil, fmt.Errorf("its size is %d×%d", config.Width, config.Height)
	}
	return &jpegPicture{data, config.Width, config.Height}, nil
}

func (p *jpegPicture) Size() (width, height int) { return p.width, p.height }

func (p *jpegPicture) Pixels(ctx context.Context) (*image.NRGBA, error) {
	decoded, err := jpeg.Decode(newReader(ctx, p.data))
	if err != nil {
		return nil, err
	}
	return rgb(ctx, decoded, false)
}

// decodeTIFFJPEG is the pillow.JPEG of strips of a TIFF.
func decodeTIFFJPEG(ctx context.Context, data []byte, maxPixels int, colour bool) (samples []byte, width, height, perPixel int, err error) {
	if config, err := jpeg.DecodeConfig(bytes.NewReader(data)); err == nil && config.Width*config.Height > maxPixels {
		return nil, 0, 0, 0, fmt.Errorf("a JPEG of %d×%d pixels where %d fit", config.Width, config.Height, maxPixels)
	}
	// Go asks for an Adobe marker to tell what four colours are.
	const beginning, adobe = 2, "\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"
	decoded, err := jpeg.Decode(newReader(ctx, data))
	if _, unsupported := err.(jpeg.UnsupportedError); unsupported && len(data) > beginning {
		decoded, err = jpeg.Decode(newReader(ctx, slices.Concat(data[:beginning], []byte(adobe), data[beginning:])))
	}
	if err != nil {
		return nil, 0, 0, 0, err
	}
	width, height = decoded.Bounds().Dx(), decoded.Bounds().Dy()
	switch img := decoded.(type) {
	case *image.Gray:
		for y := range height {
			samples = append(samples, img.Pix[y*img.Stride:][:width]...)
		}
		return samples, width, height, 1, nil
	case *image.CMYK:
		for y := range height {
			for _, v := range img.Pix[y*img.Stride:][:4*width] {
				samples = append(samples, ^v) // which Go inverts as Adobe does
			}
		}
		return samples, width, height, 4, nil
	case *image.YCbCr:
		if colour {
			break
		}
		for y := range height {
			for x := range width {
				c := img.COffset(x, y)
				samples = append(samples, img.Y[img.YOffset(x, y)], img.Cb[c], img.Cr[c])
			}
		}
		return samples, width, height, 3, nil
	}
	img, err := rgb(ctx, decoded, false)
	if err != nil {
		return nil, 0, 0, 0, err
	}
	for i := range width * height {
		samples = append(samples, img.Pix[4*i:4*i+3]...)
	}
	return samples, width, height, 3, nil
}
