package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"image"
	"io"
	"slices"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

// Image reads and decodes the image of an item. It also returns the EXIF
// orientation that the file has, whether or not it is applied; 1 is upright.
func (item Item) Image(ctx context.Context, opts preprocess.DecodeOptions) (*image.NRGBA, int, error) {
	data, err := item.Read(nil)
	if err != nil {
		return nil, 0, err
	}
	img, err := item.Decode(ctx, data, opts)
	return img, item.Orientation(data), err
}

// maxFileBytes bounds what is read of one file into memory.
const maxFileBytes = 1 << 30

// Hash returns the SHA-256 of data in hex, or ctx's error once it is cancelled.
func Hash(ctx context.Context, data []byte) (string, error) {
	const block = 1 << 22
	h := sha256.New()
	for part := range slices.Chunk(data, block) {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		h.Write(part)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Cost is preprocess.CostOf of an image, given what Read returned.
func (item *Item) Cost(data []byte, maxPixels int64) preprocess.Cost {
	const pixel = 4 // bytes
	switch {
	case item.idx != nil:
		return preprocess.Cost{Bytes: pixel * int64(item.idx.Cols) * int64(item.idx.Rows)}
	case item.decoded():
		size := item.memory.pixels.Bounds()
		return preprocess.Cost{Bytes: pixel * int64(size.Dx()) * int64(size.Dy())}
	}
	return preprocess.CostOf(data, maxPixels)
}

// Orientation returns the EXIF orientation of an image, given what read returned.
func (item *Item) Orientation(data []byte) int {
	switch {
	case item.decoded():
		return max(1, item.memory.turn)
	case item.idx != nil:
		return 1
	}
	return preprocess.Orientation(data)
}

// Grey16 is preprocess.Grey16 of an image, given what read returned.
func (item *Item) Grey16(data []byte) bool {
	return item.idx == nil && !item.decoded() && preprocess.Grey16(data)
}

// Decode returns the image, given what Read returned.
func (item *Item) Decode(ctx context.Context, data []byte, opts preprocess.DecodeOptions) (*image.NRGBA, error) {
	switch {
	case item.decoded():
		img, err := fromPixels(item.memory.pixels, opts.MaxPixels)
		if err != nil || !opts.ApplyEXIF {
			return img, err
		}
		return preprocess.Upright(ctx, img, item.memory.turn)
	case item.idx == nil:
		return preprocess.Decode(ctx, data, opts)
	}
	if item.Bytes > opts.MaxPixels { // which for it is its pixels
		return nil, options.Errorf("MaxPixels", "image of %d×%d pixels is above the limit of %d", item.idx.Cols, item.idx.Rows, opts.MaxPixels)
	}
	return fromIDX(item.idx, int(item.number)), nil
}

// SHA256 returns the hash of the item's content as a Row of an extraction has it, and the
// item with the size and time of the file that was read.
func (item Item) SHA256() (string, Item, error) {
	data, err := item.Read(nil)
	if err != nil {
		return "", item, err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), item, nil
}

// Read reads the item's file and notes its size and time; of an idx file, which
// is in memory, it returns the item's pixels. It may use room.
func (item *Item) Read(room []byte) ([]byte, error) {
	if item.idx != nil {
		return item.idx.At(int(item.number)), nil
	}
	if item.InMemory() {
		return item.memory.bytes()
	}
	f, err := disk.Open(item.File, maxFileBytes)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	data := slices.Grow(room[:0], int(info.Size()))[:info.Size()]
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, fmt.Errorf("the file changed while it was read: %w", err)
	}
	item.Bytes, item.MTime = info.Size(), info.ModTime().UnixNano()
	return data, nil
}
