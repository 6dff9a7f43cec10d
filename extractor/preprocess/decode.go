package preprocess

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/gif"
	"image/png"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/image/bmp"
	"golang.org/x/image/tiff"
	"golang.org/x/image/webp"

	"mlrbfn/internal/jpeg"
)

// DefaultMaxPixels is the number of pixels above which Pillow calls an image a
// decompression bomb and raises an error.
const DefaultMaxPixels = 2 * 89478485

// ErrUnknownFormat is what Decode returns, wrapped, for bytes that are no image
// or one of a format that is not supported.
var ErrUnknownFormat = errors.New("unsupported image format")

// DecodeOptions configures Decode. The zero value is what Pillow does.
type DecodeOptions struct {
	// MaxPixels bounds width×height, as the file's header gives them; 0 is
	// DefaultMaxPixels.
	MaxPixels int64
	// ApplyEXIF turns a JPEG upright as its EXIF orientation says, as Pillow's
	// ImageOps.exif_transpose does. Pillow's Image.open leaves it as it is.
	ApplyEXIF bool
}

// format is one image format. In its magic a question mark stands for any byte.
type format struct {
	name   string
	magic  string
	decode func(io.Reader) (image.Image, error)
	config func(io.Reader) (image.Config, error)
}

var formats = []format{
	{"JPEG", "\xff\xd8\xff", decodeJPEG, configJPEG},
	{"PNG", "\x89PNG\r\n\x1a\n", png.Decode, png.DecodeConfig},
	{"GIF", "GIF8?a", gif.Decode, gif.DecodeConfig},
	{"BMP", "BM????\x00\x00\x00\x00", bmp.Decode, bmp.DecodeConfig},
	{"TIFF", "II*\x00", tiff.Decode, tiff.DecodeConfig},
	{"TIFF", "MM\x00*", tiff.Decode, tiff.DecodeConfig},
	{"WebP", "RIFF????WEBPVP8", webp.Decode, webp.DecodeConfig},

	// Images all the same, so that they are reported and not passed over.
	{name: "HEIC", magic: "????ftyphei"},
	{name: "HEIC", magic: "????ftyphev"},
	{name: "HEIF", magic: "????ftypmif1"},
	{name: "HEIF", magic: "????ftypmsf1"},
	{name: "AVIF", magic: "????ftypavi"},
	{name: "JPEG XL", magic: "\x00\x00\x00\x0cJXL "},
	{name: "JPEG 2000", magic: "\x00\x00\x00\x0cjP  "},
	{name: "BigTIFF", magic: "II+\x00"},
	{name: "BigTIFF", magic: "MM\x00+"},
	{name: "Photoshop", magic: "8BPS"},
	{name: "OpenEXR", magic: "v/1\x01"},
}

var extensions = []string{
	".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".gif", ".bmp", ".dib", ".tif", ".tiff", ".webp",
	".heic", ".heif", ".avif", ".jxl", ".jp2", ".j2k", ".jpx", ".psd", ".svg", ".ico", ".tga", ".exr",
	".ppm", ".pgm", ".pbm", ".pnm", ".cr2", ".nef", ".arw", ".dng",
}

func sniff(head []byte) *format {
	for i, f := range formats {
		if len(head) >= len(f.magic) && matches(f.magic, head) {
			return &formats[i]
		}
	}
	return nil
}

func matches(magic string, head []byte) bool {
	for i := range len(magic) {
		if magic[i] != '?' && magic[i] != head[i] {
			return false
		}
	}
	return true
}

// IsImage reports whether a file is meant to be an image, by the extension of
// its name or by head, its first bytes (16 are enough). Formats that Decode
// does not support count: a HEIC file is a broken image here, labels.csv is
// none.
func IsImage(name string, head []byte) bool {
	return slices.Contains(extensions, strings.ToLower(filepath.Ext(name))) || sniff(head) != nil
}

// known returns the format of a file, or why Decode cannot read it.
func known(data []byte) (*format, error) {
	f := sniff(data)
	switch {
	case len(data) == 0:
		return nil, fmt.Errorf("%w: the file is empty", ErrUnknownFormat)
	case f == nil:
		return nil, fmt.Errorf("%w: want JPEG, PNG, GIF, BMP, TIFF or WebP", ErrUnknownFormat)
	case f.decode == nil:
		return nil, fmt.Errorf("%w %s: convert it to JPEG or PNG", ErrUnknownFormat, f.name)
	}
	return f, nil
}

// Size returns the width and height of an image as its file's header gives
// them, without reading pixels. Those of the decoded image are the same, but
// swapped where an orientation that is applied turns it by a quarter.
//
// It fails as Decode does where the header cannot be read, and has no limit.
func Size(data []byte) (width, height int, err error) {
	f, err := known(data)
	if err != nil {
		return 0, 0, err
	}
	defer f.recover(&err)
	config, err := f.size(data)
	return config.Width, config.Height, err
}

// size reads the header of a file. The size of a GIF is that of its canvas,
// enlarged to where its first frame ends.
func (f *format) size(data []byte) (image.Config, error) {
	if f.name == "GIF" {
		data, _ = plainGIF(data)
	}
	config, err := f.config(newReader(context.Background(), data))
	if err != nil {
		return image.Config{}, fmt.Errorf("cannot read %s: %w", f.name, err)
	}
	if config.Width <= 0 || config.Height <= 0 {
		return image.Config{}, fmt.Errorf("broken %s: its size is %d×%d", f.name, config.Width, config.Height)
	}
	return config, nil
}

// recover makes an error of a decoder's panic; it must be deferred.
func (f *format) recover(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("cannot read %s: the decoder failed: %v", f.name, p)
	}
}

// Decode decodes a JPEG, PNG, GIF, BMP, TIFF or WebP file, whatever its name
// says, to an opaque image, with the colours of Pillow's
//
//	Image.open(file).convert("RGB")
//
// That is: alpha is dropped, not blended; 16-bit grey is clipped to 255 where
// 16-bit RGB keeps its high byte; of an animated GIF the first frame counts, on
// its canvas; the orientation of a TIFF is applied, that of a JPEG only with
// ApplyEXIF. CMYK is converted as Pillow does without a colour profile.
//
// All formats equal Pillow to the bit.
//
// Files that are cut short or broken are errors, also where a decoder panics,
// and so are images above MaxPixels, which is checked before pixels are read,
// animated WebP, and TIFF with what Go's decoder would misread. A JPEG with broken
// data is one where Pillow says so; else it becomes what libjpeg-turbo makes of it.
//
// Once ctx is cancelled Decode returns an error that wraps ctx.Err(), at the
// next read or row of pixels. For the largest images that can take a second,
// where a decoder reads all of a file before it begins, as that of WebP does.
func Decode(ctx context.Context, data []byte, opts DecodeOptions) (img *image.NRGBA, err error) {
	f, err := known(data)
	if err != nil {
		return nil, err
	}
	defer f.recover(&err)
	config, err := f.size(data)
	if err != nil {
		return nil, err
	}
	limit := opts.MaxPixels
	if limit == 0 {
		limit = DefaultMaxPixels
	}
	if w, h := int64(config.Width), int64(config.Height); w > limit/h {
		return nil, fmt.Errorf("%s of %d×%d pixels is above the limit of %d", f.name, w, h, limit)
	}
	if img, err = f.pixels(ctx, data, config, opts.ApplyEXIF); ctx.Err() != nil {
		err = ctx.Err() // which not every decoder wraps
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", f.name, err)
	}
	return img, nil
}

// pixels decodes a file of the size that config says.
func (f *format) pixels(ctx context.Context, data []byte, config image.Config, applyEXIF bool) (*image.NRGBA, error) {
	plain, background := data, -1
	switch f.name {
	case "GIF":
		plain, background = plainGIF(data)
	case "TIFF":
		if err := checkTIFF(data); err != nil {
			return nil, err
		}
	case "WebP":
		const flags, animation = 20, 1 << 1
		if len(data) > flags && string(data[12:16]) == "VP8X" && data[flags]&animation != 0 {
			return nil, errors.New("animated WebP is not supported")
		}
	}
	decoded, err := f.decode(newReader(ctx, plain))
	if err != nil {
		return nil, err
	}
	switch f.name {
	case "GIF":
		decoded = onCanvas(decoded.(*image.Paletted), config, background)
	case "TIFF":
		invertFax(data, decoded)
	}
	if size := decoded.Bounds().Size(); size != image.Pt(config.Width, config.Height) {
		return nil, fmt.Errorf("its header says %d×%d, its pixels are %d×%d",
			config.Width, config.Height, size.X, size.Y)
	}
	if img, ok := decoded.(*image.NRGBA); ok && f.name == "JPEG" {
		if applyEXIF {
			return upright(ctx, img, orientation(exif(data)))
		}
		return img, nil
	}
	// Pillow reads 16-bit grey, with or without a transparent grey, as "I;16".
	grey16 := f.name == "PNG" && data[24] == 16 && data[25] == 0
	img, err := rgb(ctx, decoded, grey16)
	if err != nil {
		return nil, err
	}
	if f.name == "TIFF" {
		return upright(ctx, img, orientation(data))
	}
	return img, nil
}

func configJPEG(r io.Reader) (image.Config, error) {
	c, err := jpeg.DecodeConfig(r.(*reader).whole)
	return image.Config{Width: c.Width, Height: c.Height}, err
}

func decodeJPEG(r io.Reader) (image.Image, error) {
	return jpeg.Decode(r.(*reader).ctx, r.(*reader).whole, nil)
}

// reader reads a file until its context is cancelled. It has no ReadByte, so
// that decoders read in blocks and the context is not asked for every byte.
type reader struct {
	ctx   context.Context
	whole []byte
	data  *bytes.Reader
}

func newReader(ctx context.Context, data []byte) *reader {
	return &reader{ctx, data, bytes.NewReader(data)}
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.data.Read(p)
}

// ReadAt is what saves the TIFF decoder a copy of the file.
func (r *reader) ReadAt(p []byte, offset int64) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.data.ReadAt(p, offset)
}

// plainGIF returns a copy of a GIF in which the first frame has no transparent
// colour, so that Go keeps what colour it has, and the canvas is large enough
// for it, as Pillow makes it. background is the index that Pillow fills the
// canvas with: the transparent one, or 0. What it cannot follow it leaves to
// the decoder to complain about.
func plainGIF(data []byte) (plain []byte, background int) {
	const header, colours, extension, frame = 13, 0x80, 0x21, 0x2c
	data = bytes.Clone(data)
	if len(data) < header {
		return data, 0
	}
	at := header
	if flags := data[10]; flags&colours != 0 {
		at += 3 << (1 + flags&7)
	}
	for at+10 <= len(data) {
		switch block := data[at : at+10]; {
		case block[0] == extension:
			if block[1] == 0xf9 && block[2] == 4 {
				background = 0
				if block[3]&1 != 0 {
					block[3] &^= 1
					background = int(block[6])
				}
			}
			at += 2
			for at < len(data) && data[at] != 0 { // sub-blocks
				at += 1 + int(data[at])
			}
			at++
		case block[0] == frame:
			grow(data[6:8], block[1:3], block[5:7])
			grow(data[8:10], block[3:5], block[7:9])
			return data, background
		default:
			return data, background
		}
	}
	return data, background
}

// grow raises the edge of a GIF's canvas to where a frame ends.
func grow(edge, offset, length []byte) {
	little := func(b []byte) int { return int(b[0]) | int(b[1])<<8 }
	if end := little(offset) + little(length); end > little(edge) && end <= 0xffff {
		edge[0], edge[1] = byte(end), byte(end>>8)
	}
}

// onCanvas returns the first frame of a GIF on its canvas.
func onCanvas(frame *image.Paletted, config image.Config, background int) image.Image {
	canvas := image.Rect(0, 0, config.Width, config.Height)
	if frame.Rect == canvas {
		return frame
	}
	whole := image.NewPaletted(canvas, frame.Palette)
	for i := range whole.Pix {
		whole.Pix[i] = uint8(background)
	}
	for y := frame.Rect.Min.Y; y < frame.Rect.Max.Y; y++ {
		copy(whole.Pix[whole.PixOffset(frame.Rect.Min.X, y):], frame.Pix[frame.PixOffset(frame.Rect.Min.X, y):][:frame.Rect.Dx()])
	}
	return whole
}
