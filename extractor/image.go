package extractor

import (
	"context"
	"image"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
)

// Image reads and decodes the image of an item. It also returns the EXIF
// orientation that the file has, whether or not it is applied; 1 is upright.
func (item Item) Image(ctx context.Context, opts preprocess.DecodeOptions) (*image.NRGBA, int, error) {
	data, err := read(&item, nil)
	if err != nil {
		return nil, 0, err
	}
	img, err := item.decode(ctx, data, opts)
	return img, item.orientation(data), err
}
