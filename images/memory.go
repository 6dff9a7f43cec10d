package images

import (
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"

	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/internal/options"
)

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

// fromFile tells whether the item is a file of its own.
func (item *Item) FromFile() bool { return item.idx == nil && !item.InMemory() }

// Cropped returns the crop that the item is, nil where it is none.
func (item *Item) Cropped() *preprocess.Cropped {
	if item.memory == nil {
		return nil
	}
	return item.memory.crop
}
