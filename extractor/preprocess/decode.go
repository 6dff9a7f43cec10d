package preprocess

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"image"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mlrbfn/mlrbfn/internal/jpeg"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/parallel"
	"github.com/mlrbfn/mlrbfn/internal/pillow"
)

// DefaultMaxPixels is the number of pixels above which Pillow calls an image a
// decompression bomb and raises an error.
const DefaultMaxPixels = 2 * 89478485

// ErrUnknownFormat is wrapped by the error of Decode for bytes that are no image
// or one of a format that is not supported.
var ErrUnknownFormat = errors.New("unsupported image format")

// Reading says what files become images, where Pillow's Image.open leaves a choice. The
// zero value is as Pillow does. It is part of a model's fingerprint.
type Reading struct {
	// ApplyEXIF turns an image upright as the EXIF orientation of a JPEG, PNG or
	// WebP says, as Pillow's ImageOps.exif_transpose does. Pillow's Image.open
	// leaves it as it is.
	ApplyEXIF bool
	// Scale16 gives the high byte of greys of 16 (or 12) bits, which Pillow's convert
	// clips at 255, so that most images of that kind are white.
	Scale16 bool
}

// DecodeOptions configures Decode. The zero value decodes as Pillow does.
type DecodeOptions struct {
	// MaxPixels bounds width×height, as the file's header gives them; 0 is
	// DefaultMaxPixels.
	MaxPixels int64
	Reading
	// For names the preprocessing to follow: pixels that its Crop and Tensor do not read
	// may be of any colour, which takes less time. A broken file is an error
	// wherever it is broken. nil is for all pixels.
	For *Spec
	// Reuse is an image that is no longer needed, whose memory Decode may take
	// for the next; nil is fine. After an error that wraps that of the context a
	// decoder that was left behind may still write to it.
	Reuse *image.NRGBA
}

// format is one image format. In its magic a question mark stands for any byte.
type format struct {
	name  string
	magic string
	open  func([]byte) (pillow.Picture, error)
}

var formats = []format{
	{"JPEG", "\xff\xd8\xff", openJPEG},
	{"PNG", "\x89PNG\r\n\x1a\n", pillow.OpenPNG},
	{"GIF", "GIF87a", pillow.OpenGIF},
	{"GIF", "GIF89a", pillow.OpenGIF},
	{"BMP", "BM????\x00\x00\x00\x00", pillow.OpenBMP},
	{"BMP", "BM????????????\x0c\x00\x00\x00", pillow.OpenBMP},
	{"BMP", "BM????????????\x28\x00\x00\x00", pillow.OpenBMP},
	{"BMP", "BM????????????\x34\x00\x00\x00", pillow.OpenBMP},
	{"BMP", "BM????????????\x38\x00\x00\x00", pillow.OpenBMP},
	{"BMP", "BM????????????\x40\x00\x00\x00", pillow.OpenBMP},
	{"BMP", "BM????????????\x6c\x00\x00\x00", pillow.OpenBMP},
	{"BMP", "BM????????????\x7c\x00\x00\x00", pillow.OpenBMP},
	{"TIFF", "II*\x00", openTIFF},
	{"TIFF", "MM\x00*", openTIFF},
	{"TIFF", "II+\x00", openTIFF},
	{"TIFF", "MM\x00+", openTIFF},
	{"WebP", "RIFF????WEBPVP8", openWebP},

	// Images all the same, so that they are reported and not passed over.
	{name: "HEIC", magic: "????ftyphei"},
	{name: "HEIC", magic: "????ftyphev"},
	{name: "HEIF", magic: "????ftypmif1"},
	{name: "HEIF", magic: "????ftypmsf1"},
	{name: "AVIF", magic: "????ftypavi"},
	{name: "JPEG XL", magic: "\x00\x00\x00\x0cJXL "},
	{name: "JPEG 2000", magic: "\x00\x00\x00\x0cjP  "},
	{name: "JPEG 2000", magic: "\xff\x4f\xff\x51"},
	{name: "Photoshop", magic: "8BPS"},
	{name: "Radiance HDR", magic: "#?RADIANCE"},
	{name: "Radiance HDR", magic: "#?RGBE"},
	{name: "farbfeld", magic: "farbfeld"},
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

// HeadBytes is how many of a file's first bytes IsImage looks at.
const HeadBytes = 18

// IsImage reports whether a file is meant to be an image, by the extension of
// its name or by head, its first HeadBytes. Formats that Decode does not support
// count: a HEIC file is a broken image here, labels.csv is none.
func IsImage(name string, head []byte) bool {
	return slices.Contains(extensions, strings.ToLower(filepath.Ext(name))) || sniff(head) != nil
}

// open reads the header of a file. A panic of a decoder is an error.
func open(data []byte) (f *format, picture pillow.Picture, err error) {
	f = sniff(data)
	switch {
	case len(data) == 0:
		return nil, nil, fmt.Errorf("%w: the file is empty", ErrUnknownFormat)
	case f == nil:
		return nil, nil, fmt.Errorf("%w: want JPEG, PNG, GIF, BMP, TIFF or WebP", ErrUnknownFormat)
	case f.open == nil:
		return nil, nil, fmt.Errorf("%w %s: convert it to JPEG or PNG", ErrUnknownFormat, f.name)
	}
	defer f.recover(&err)
	if picture, err = f.open(data); err != nil {
		return nil, nil, fmt.Errorf("cannot read %s: %w", f.name, err)
	}
	return f, picture, nil
}

// Size returns the width and height of an image as its file's header gives
// them, without reading pixels. Those of the decoded image are the same, but
// swapped where an orientation that is applied turns it by a quarter.
//
// It fails as Decode does where the header cannot be read, and has no limit.
func Size(data []byte) (width, height int, err error) {
	_, picture, err := open(data)
	if err != nil {
		return 0, 0, err
	}
	width, height = picture.Size()
	return width, height, nil
}

// Grey16 tells whether a file has greys of 16 or 12 bits, which Decode clips at 255
// unless Scale16.
func Grey16(data []byte) bool {
	_, picture, err := open(data)
	deep, ok := picture.(pillow.Grey16)
	return err == nil && ok && deep.Grey16()
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
// That is: alpha is dropped, not blended; 16-bit grey is clipped to 255, unless Scale16, where
// 16-bit RGB keeps its high byte; of an animation and of several pages the first
// counts, on its canvas; the orientation of a TIFF is applied, that of other
// formats only with ApplyEXIF. CMYK is converted as Pillow does without a colour
// profile.
//
// All formats equal Pillow exactly, except for TIFFs with uncompressed YCbCr,
// which are up to one level off.
//
// Files that are cut short or broken are errors where they are for Pillow, also
// where a decoder panics, and so are images above MaxPixels, which is checked
// before pixels are read. A JPEG with broken data that Pillow reads becomes what
// libjpeg-turbo makes of it; a TIFF of CCITT, JPEG or YCbCr strips and a WebP are
// errors also where libtiff and libwebp make something of broken data. So are files that
// ask for work out of all proportion to their pixels and bytes: hundreds of scans of a JPEG,
// strips of a TIFF that lie over each other, thousands of profiles of a PNG.
//
// Once ctx is cancelled Decode returns an error that wraps ctx.Err(). Decoders
// stop at the next read or row of pixels; one that does not is left behind to
// end on its own.
func Decode(ctx context.Context, data []byte, opts DecodeOptions) (*image.NRGBA, error) {
	f, picture, err := open(data)
	if err != nil {
		return nil, err
	}
	limit := cmp.Or(opts.MaxPixels, DefaultMaxPixels)
	width, height := picture.Size()
	if w, h := int64(width), int64(height); w > limit/h {
		return nil, options.Errorf("MaxPixels", "%s of %d×%d pixels is above the limit of %d", f.name, w, h, limit)
	}
	type result struct {
		img *image.NRGBA
		err error
	}
	decoding := parallel.Start(func() (r result) {
		defer f.recover(&r.err)
		r.img, r.err = f.pixels(ctx, data, picture, opts)
		return r
	})
	select {
	case <-decoding.Done():
		r := decoding.Wait()
		return r.img, r.err
	case <-ctx.Done():
	}
	const grace = 50 * time.Millisecond // for decoders that look at the context
	select {
	case <-decoding.Done():
	case <-time.After(grace):
	}
	return nil, &LeftBehind{decoding.Done(), fmt.Errorf("cannot read %s: %w", f.name, ctx.Err())}
}

// LeftBehind is the error of Decode for a decoder that may not have ended yet.
type LeftBehind struct {
	Done <-chan struct{} // is closed when it has
	err  error
}

func (e *LeftBehind) Error() string { return e.err.Error() }
func (e *LeftBehind) Unwrap() error { return e.err }

// pixels decodes a file whose header is read, and turns it.
func (f *format) pixels(ctx context.Context, data []byte, picture pillow.Picture, opts DecodeOptions) (*image.NRGBA, error) {
	turn := 1
	if tiff, ok := picture.(*pillow.TIFF); ok {
		turn = tiff.Orientation()
	} else if opts.ApplyEXIF {
		turn = orientation(f.name, data)
	}
	if deep, ok := picture.(pillow.Grey16); ok && opts.Scale16 {
		deep.Scale()
	}
	if jpeg, ok := picture.(*jpegPicture); ok {
		jpeg.options.Reuse = opts.Reuse
		if opts.For != nil && turn == 1 {
			jpeg.options.Wanted = opts.For.kept(picture.Size())
		}
	}
	img, err := picture.Pixels(ctx)
	if ctx.Err() != nil {
		err = ctx.Err() // which not every decoder wraps
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", f.name, err)
	}
	return Upright(ctx, img, turn)
}

func openTIFF(data []byte) (pillow.Picture, error) { return pillow.OpenTIFF(data) }

// reader reads a file until its context is cancelled. It has no ReadByte, so
// that decoders read in blocks and the context is not asked for every byte.
type reader struct {
	ctx  context.Context
	data *bytes.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.data.Read(p)
}

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

// Cost is about what it takes to decode a file, of the kind of files of that header that take
// most. Errors of files cost less.
type Cost struct {
	Bytes int64         // of memory at a time
	Time  time.Duration // of one core of a server of 2020
}

// CostOf estimates the cost of a file from its header. A file that Decode refuses for its
// header, or with more pixels than allowed, has none.
func CostOf(data []byte, maxPixels int64) Cost {
	picture, ok := pillow.PNGHeader(data) // as the chunks that follow may take long
	if !ok {
		var err error
		if _, picture, err = open(data); err != nil {
			return Cost{}
		}
	}
	width, height := picture.Size()
	if int64(width) > maxPixels/int64(height) {
		return Cost{}
	}
	bytes, pixel, each := 4.0, 0.0, 10.0 // of a pixel: its memory and nanoseconds; and nanoseconds of a byte of the file
	beside := 0.0                        // bytes
	switch p := picture.(type) {
	case *jpegPicture:
		planes := float64(p.config.Components)
		switch pixel = 3 + 2*planes; {
		case p.config.Lossless:
			bytes, pixel = 4+planes, 20*planes
		case p.config.Scans:
			bytes, pixel = 4+2*planes, 12*planes
		}
		if p.config.Arithmetic {
			pixel, each = 2*pixel, 60
		}
	case *webpPicture:
		if bytes, pixel = 5.5, 30; string(p.still[webpHeader:][:4]) == "VP8L" {
			pixel = 55
			beside = 2800 * float64(min(1<<16, len(data)/2)) // tables of codes
		}
	case *pillow.TIFF:
		depth := float64(p.Depth()) / 8
		bytes, pixel = 4+depth, 8+3*depth
		if p.Compressed() {
			pixel += 15
		}
		if p.Orientation() != 1 {
			bytes += 4
		}
	case interface{ Depth() int }: // a PNG
		pixel = 4 + 2.5*float64(p.Depth())/8
	default: // a GIF or BMP
		bytes, pixel = 5, 8
	}
	if Orientation(data) != 1 {
		bytes += 4
	}
	n := float64(width) * float64(height)
	return Cost{int64(min(n*bytes+beside, 1<<50)), time.Duration(min(n*pixel+each*float64(len(data)), 1<<50))}
}
