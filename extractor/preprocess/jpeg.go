package preprocess

import (
	"context"
	"image"

	"github.com/mlrbfn/mlrbfn/internal/jpeg"
	"github.com/mlrbfn/mlrbfn/internal/pillow"
)

// jpegPicture is a JPEG.
type jpegPicture struct {
	data    []byte
	config  jpeg.Config
	options jpeg.Options
}

func openJPEG(data []byte) (pillow.Picture, error) {
	config, err := jpeg.DecodeConfig(data)
	if err != nil {
		return nil, err
	}
	return &jpegPicture{data: data, config: config}, nil
}

func (p *jpegPicture) Size() (width, height int) { return p.config.Width, p.config.Height }

func (p *jpegPicture) Pixels(ctx context.Context) (*image.NRGBA, error) {
	return jpeg.Decode(ctx, p.data, p.options)
}
