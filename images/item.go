package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"io"
	"io/fs"
	"os"
	"path/filepath"
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

// Orientation returns the EXIF orientation of an image, given what Read returned.
func (item *Item) Orientation(data []byte) int {
	switch {
	case item.decoded():
		return max(1, item.memory.turn)
	case item.idx != nil:
		return 1
	}
	return preprocess.Orientation(data)
}

// Grey16 is preprocess.Grey16 of an image, given what Read returned.
func (item *Item) Grey16(data []byte) bool {
	return item.idx == nil && !item.decoded() && preprocess.Grey16(data)
}

// Decode returns the image, given what Read returned.
func (item *Item) Decode(ctx context.Context, data []byte, opts preprocess.DecodeOptions) (*image.NRGBA, error) {
	opts.MaxPixels = cmp.Or(opts.MaxPixels, preprocess.DefaultMaxPixels)
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

// An Item is one image, wherever its bytes are: a file, a part of an idx file, or memory.
type Item struct {
	// Path is relative to the root, with forward slashes; its bytes are the
	// file system's and need not be UTF-8. Of an idx file it is the file's,
	// a # and the image's number, from 0.
	Path string
	// File is the path that the operating system takes.
	File string
	// Label is an index into the listing's classes, −1 where there is none.
	Label int
	// Bytes is the file's size and MTime its modification time in nanoseconds
	// since 1970; both are 0 where the file cannot be looked at. Of an image in
	// an idx file Bytes is the number of its pixels.
	Bytes, MTime int64

	// Unit is the index of the unit of [Sources] that an image of a [Reading] comes from.
	Unit int32

	number int32     // of the image in idx
	folder *folder   // that it was found in; nil where nobody says
	idx    *IDX      // nil for a file
	memory *inMemory // nil for what lies on the disk
}

// folder is a folder that somebody named, as it was then.
type folder struct {
	name string
	info fs.FileInfo
}

// NamedItem returns the item of an image that was named by itself: by the path
// of its file, and to be called path.
func NamedItem(file, path string) (Item, error) {
	item := Item{Path: path, File: file, Label: -1}
	info, err := os.Stat(file)
	if err != nil {
		return item, err
	}
	item.Bytes, item.MTime = info.Size(), info.ModTime().UnixNano()
	dir := filepath.Dir(file)
	if info, err = os.Stat(dir); err == nil {
		item.folder = &folder{dir, info}
	}
	return item, nil
}

// Locate opens the folder that was named, the item's own where that was named
// by itself, and returns the item's name in it, with forward slashes. Links that
// have changed since do not lead it elsewhere: it is an error if the folder is
// another now, and the name may be looked up in no other.
func (item *Item) Locate() (*os.Root, string, error) {
	switch {
	case item.idx != nil:
		return nil, "", errors.New("an image in an idx file has no file of its own")
	case item.folder == nil:
		return nil, "", fmt.Errorf("the folder of %s is not known", item.File)
	}
	name, err := filepath.Rel(item.folder.name, item.File)
	if err != nil {
		return nil, "", err
	}
	root, err := os.OpenRoot(item.folder.name)
	if err != nil {
		return nil, "", err
	}
	info, err := root.Stat(".")
	if err == nil && !os.SameFile(info, item.folder.info) {
		err = fmt.Errorf("the folder %s is another than it was", item.folder.name)
	}
	if err != nil {
		return nil, "", errors.Join(err, root.Close())
	}
	return root, filepath.ToSlash(name), nil
}

// InIDX tells whether the image is a part of an idx file.
func (item *Item) InIDX() bool { return item.idx != nil }

// A Stream gives images one after another, from wherever they come.
type Stream interface {
	// Next returns the next image, and [io.EOF] after the last. Calls do not overlap.
	Next(ctx context.Context) (Item, error)
	// Total returns how many images the stream gives in all, or about how many if that is
	// not known. It may be called while Next is at work.
	Total() (n int, known bool)
}

// Of returns a stream of some images.
func Of(items ...Item) Stream { return &some{items, len(items)} }

// some are images that are known.
type some struct {
	left  []Item
	total int
}

func (s *some) Next(ctx context.Context) (Item, error) {
	if len(s.left) == 0 {
		return Item{}, io.EOF
	}
	first := s.left[0]
	s.left = s.left[1:]
	return first, nil
}

func (s *some) Total() (int, bool) { return s.total, true }

// inMemory is an image in memory: the bytes of a file, or pixels.
type inMemory struct {
	data   []byte
	pixels image.Image
	turn   int // the EXIF orientation that the pixels have; 0 where none is known
	crop   *preprocess.Cropped
	stream *streamed
}

// streamed is the content of an image that comes with others, such as a member of a tar.
type streamed struct {
	data  []byte                 // in the form of a file; nil once it is not needed any more
	err   error                  // why there is no data
	again func() ([]byte, error) // reads data once more, for pictures of what was judged; may be nil
}

// Streams tells whether the item is of a [Reading].
func (item *Item) Streams() bool { return item.memory != nil && item.memory.stream != nil }

// Loaded lets go of the data of an image of a [Reading].
func (item *Item) Loaded() {
	if item.Streams() {
		item.memory.stream.data = nil
	}
}

// bytes returns the image in the form of a file.
func (m *inMemory) bytes() ([]byte, error) {
	s := m.stream
	switch {
	case s == nil:
		return m.data, nil
	case s.data != nil || s.err != nil:
		return s.data, s.err
	case s.again == nil:
		return nil, errors.New("the image came in a stream and cannot be read again")
	}
	return s.again()
}

// EncodedItem is an image in memory, in the form of a file: what is in it must
// not change while it is in use. Errors name it.
func EncodedItem(name string, data []byte) Item {
	return Item{Path: name, Label: -1, Bytes: int64(len(data)), memory: &inMemory{data: data}}
}

// PixelsItem is an image in memory that is decoded already. Its alpha is dropped,
// as that of files is, and nothing is known of an EXIF orientation; see [Item.Turned]. The content that is
// hashed is the bytes of an [RGB], and else nothing.
func PixelsItem(name string, img image.Image) Item {
	memory := &inMemory{pixels: img}
	if p, ok := img.(*RGB); ok {
		memory.data = p.Pix
	}
	return Item{Path: name, Label: -1, memory: memory}
}

// Turned returns an item of PixelsItem whose pixels have an EXIF orientation, 1 to 8, that
// has not been applied.
func (item Item) Turned(orientation int) Item {
	memory := *item.memory
	memory.turn = orientation
	item.memory = &memory
	return item
}

// RGB is an image of three bytes a pixel, which it does not copy.
type RGB struct {
	Pix           []byte // [Height, Width, 3]
	Width, Height int
}

// ColorModel, Bounds and At make it an [image.Image].
func (p *RGB) ColorModel() color.Model { return color.NRGBAModel }

func (p *RGB) Bounds() image.Rectangle { return image.Rect(0, 0, p.Width, p.Height) }

func (p *RGB) At(x, y int) color.Color {
	at := p.Pix[3*(y*p.Width+x):]
	return color.NRGBA{at[0], at[1], at[2], 255}
}

// CroppedItem is what a model's [preprocess.Spec.Crop] makes of an image: it is only
// normalised.
func CroppedItem(name string, img *preprocess.Cropped) Item {
	return Item{Path: name, Label: -1, memory: &inMemory{crop: img}}
}

// InMemory tells whether the item is no file.
func (item *Item) InMemory() bool { return item.memory != nil }

// fromPixels returns an image in memory as decoders give it.
func fromPixels(img image.Image, maxPixels int64) (*image.NRGBA, error) {
	size := img.Bounds()
	if size.Empty() {
		return nil, fmt.Errorf("image of %d×%d pixels is empty", size.Dx(), size.Dy())
	}
	if int64(size.Dx())*int64(size.Dy()) > maxPixels {
		return nil, options.Errorf("MaxPixels", "image of %d×%d pixels is above the limit of %d", size.Dx(), size.Dy(), maxPixels)
	}
	out := image.NewNRGBA(image.Rect(0, 0, size.Dx(), size.Dy()))
	switch p := img.(type) {
	case *image.NRGBA: // exact where it is transparent, too
		for y := range size.Dy() {
			copy(out.Pix[y*out.Stride:][:4*size.Dx()], p.Pix[p.PixOffset(size.Min.X, size.Min.Y+y):])
		}
	case *RGB:
		for i := range size.Dx() * size.Dy() {
			copy(out.Pix[4*i:4*i+3], p.Pix[3*i:3*i+3])
		}
	default:
		draw.Draw(out, out.Rect, img, size.Min, draw.Src)
	}
	for i := 3; i < len(out.Pix); i += 4 {
		out.Pix[i] = 255
	}
	return out, nil
}

func (item *Item) decoded() bool { return item.memory != nil && item.memory.pixels != nil }

// FromFile tells whether the item is a file of its own.
func (item *Item) FromFile() bool { return item.idx == nil && !item.InMemory() }

// Cropped returns the crop that the item is, nil where it is none.
func (item *Item) Cropped() *preprocess.Cropped {
	if item.memory == nil {
		return nil
	}
	return item.memory.crop
}
