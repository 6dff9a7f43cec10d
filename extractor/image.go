package extractor

import (
	"context"
	"image"

	"mlrbfn/extractor/preprocess"
)

// Image reads and decodes the image of an item.
func (item Item) Image(ctx context.Context, opts preprocess.DecodeOptions) (*image.NRGBA, error) {
	data, err := read(&item, nil)
	if err != nil {
		return nil, err
	}
	return item.decode(ctx, data, opts)
}
