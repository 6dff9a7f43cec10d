package preprocess

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"

	"golang.org/x/image/webp"

	"github.com/mlrbfn/mlrbfn/internal/jpeg"
	"github.com/mlrbfn/mlrbfn/internal/pillow"
)

const webpHeader = 12 // of a WebP: the bytes before its chunks

// webpPicture is a WebP, or the first frame of an animated one.
type webpPicture struct {
	still         []byte // a file of one image
	frame         image.Rectangle
	width, height int // of the canvas
}

func openWebP(data []byte) (pillow.Picture, error) {
	size := 8 + int64(binary.LittleEndian.Uint32(data[4:])) // which libwebp insists on
	if size > int64(len(data)) {
		return nil, fmt.Errorf("%d of %d bytes are missing", size-int64(len(data)), size)
	}
	data = data[:size]
	if err := checkChunks(data); err != nil {
		return nil, err
	}
	p := &webpPicture{still: data}
	const flags, animation = 20, 1 << 1
	if len(data) >= 30 && string(data[12:16]) == "VP8X" && data[flags]&animation != 0 {
		p.width, p.height = 1+little24(data[24:]), 1+little24(data[27:])
		return p, p.readFrame(data)
	}
	config, err := webp.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	p.width, p.height = config.Width, config.Height
	if p.width <= 0 || p.height <= 0 {
		return nil, fmt.Errorf("its size is %d×%d", p.width, p.height)
	}
	p.frame = image.Rect(0, 0, p.width, p.height)
	if still(data[webpHeader:], p.frame.Size()) == nil { // which is as much memory as it takes
		return nil, fmt.Errorf("its canvas is %d×%d, and its pixels have another size", p.width, p.height)
	}
	return p, nil
}

// checkChunks refuses a WebP whose chunks do not fit in it, as libwebp does: of
// an extended one all of them, of another the pixels and what follows them.
func checkChunks(data []byte) error {
	const header = 8
	extended := string(data[webpHeader:][:4]) == "VP8X"
	for at, n := webpHeader, 0; at < len(data) && (extended || n < 2); n++ {
		if len(data)-at < header {
			return errors.New("it ends within a chunk")
		}
		length := int(binary.LittleEndian.Uint32(data[at+4:]))
		if at += header + length + length%2; at > len(data) {
			return fmt.Errorf("its chunk of %d bytes goes beyond its end", length)
		}
	}
	return nil
}

func little24(b []byte) int { return int(b[0]) | int(b[1])<<8 | int(b[2])<<16 }

// webpChunks calls f with the chunks of a WebP, or those of a frame, until it
// returns false. One that is cut short is left out.
func webpChunks(data []byte, f func(kind string, body []byte) bool) {
	for len(data) >= 8 {
		kind, length := string(data[:4]), int(binary.LittleEndian.Uint32(data[4:]))
		data = data[8:]
		if length > len(data) || !f(kind, data[:length]) {
			return
		}
		data = data[min(length+length%2, len(data)):]
	}
}

// still makes a file of the first image among chunks, without its alpha, which
// is of no interest; nil where there is none of the given size.
func still(chunks []byte, size image.Point) []byte {
	var file []byte
	webpChunks(chunks, func(kind string, pixels []byte) bool {
		if kind != "VP8 " && kind != "VP8L" {
			return true
		}
		chunk := append([]byte(kind), binary.LittleEndian.AppendUint32(nil, uint32(len(pixels)))...)
		chunk = append(append(chunk, pixels...), make([]byte, len(pixels)%2)...)
		file = append([]byte("RIFF"), binary.LittleEndian.AppendUint32(nil, uint32(len(chunk)+4))...)
		file = append(append(file, "WEBP"...), chunk...)
		return false
	})
	if config, err := webp.DecodeConfig(bytes.NewReader(file)); err != nil || image.Pt(config.Width, config.Height) != size {
		return nil
	}
	return file
}

// readFrame makes a file of the first frame.
func (p *webpPicture) readFrame(data []byte) error {
	const frameHeader = 16
	webpChunks(data[webpHeader:], func(kind string, body []byte) bool {
		if kind != "ANMF" || len(body) < frameHeader {
			return kind != "ANMF"
		}
		at := image.Pt(2*little24(body), 2*little24(body[3:]))
		p.frame = image.Rectangle{at, at.Add(image.Pt(1+little24(body[6:]), 1+little24(body[9:])))}
		p.still = still(body[frameHeader:], p.frame.Size())
		return false
	})
	if p.frame.Empty() || p.still == nil {
		return errors.New("its first frame is missing or cut short")
	}
	if !p.frame.In(image.Rect(0, 0, p.width, p.height)) {
		return fmt.Errorf("its first frame, %v, does not lie in its canvas of %d×%d", p.frame, p.width, p.height)
	}
	return nil
}

func (p *webpPicture) Size() (width, height int) { return p.width, p.height }

func (p *webpPicture) Pixels(ctx context.Context) (*image.NRGBA, error) {
	decoded, err := webp.Decode(&reader{ctx, bytes.NewReader(p.still)})
	if err != nil {
		return nil, err
	}
	if size := decoded.Bounds().Size(); size != p.frame.Size() {
		return nil, fmt.Errorf("its header says %v, its pixels are %v", p.frame.Size(), size)
	}
	img, err := rgb(ctx, decoded)
	if err != nil || img.Rect == image.Rect(0, 0, p.width, p.height) {
		return img, err
	}
	canvas := image.NewNRGBA(image.Rect(0, 0, p.width, p.height))
	for i := 3; i < len(canvas.Pix); i += 4 {
		canvas.Pix[i] = 255
	}
	for y := range img.Rect.Dy() {
		copy(canvas.Pix[canvas.PixOffset(p.frame.Min.X, p.frame.Min.Y+y):], img.Pix[y*img.Stride:][:img.Stride])
	}
	return canvas, nil
}

// rgb converts what the decoder returned to an opaque image that begins at 0, 0, as Pillow's
// convert("RGB") would.
func rgb(ctx context.Context, img image.Image) (*image.NRGBA, error) {
	dst, _ := img.(*image.NRGBA) // which is ours to change
	if dst == nil {
		dst = image.NewNRGBA(image.Rectangle{Max: img.Bounds().Size()})
	}
	var convert func(dst []uint8, y int)
	switch img := img.(type) {
	case *image.NRGBA:
		convert = func(dst []uint8, _ int) {
			for i := 3; i < len(dst); i += 4 {
				dst[i] = 255
			}
		}
	case *image.YCbCr:
		convert = fromYCbCr(img)
	case *image.NYCbCrA:
		convert = fromYCbCr(&img.YCbCr)
	default:
		return nil, fmt.Errorf("pixels of type %T are not supported", img)
	}
	for y := range dst.Rect.Dy() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		convert(dst.Pix[y*dst.Stride:][:dst.Stride], y)
	}
	return dst, nil
}

// fromYCbCr returns a function that converts the rows of img with the arithmetic of
// libwebp, which Pillow reads WebP with: chroma is interpolated between the
// centres of samples ("fancy upsampling").
func fromYCbCr(img *image.YCbCr) func(dst []uint8, y int) {
	w := img.Rect.Dx()
	up := upsampler{img.CStride, (w + 1) / 2, (img.Rect.Dy() + 1) / 2}
	cb, cr := make([]uint8, 2*up.w), make([]uint8, 2*up.w)
	return func(dst []uint8, y int) {
		up.widen(cb, img.Cb, y)
		up.widen(cr, img.Cr, y)
		videoRange.RGBA(dst, img.Y[y*img.YStride:][:w], cb, cr)
	}
}

// upsampler brings the rows of chroma, which is halved along both edges, to the
// size of the image.
type upsampler struct {
	stride int
	// w and h are how many samples belong to the image. A decoder's planes may
	// hold more, to whole blocks, but libwebp repeats the edge.
	w, h int
}

// widen interpolates row y of the image from the nearest row of samples and the
// next nearest, with weights 3:1 across rows and columns.
func (u *upsampler) widen(dst, plane []uint8, y int) {
	beside := min(max(y/2-1+y%2*2, 0), u.h-1)
	near, far := plane[y/2*u.stride:][:u.w], plane[beside*u.stride:][:u.w]
	this := 3*int(near[0]) + int(far[0])
	last := this
	for x := range near {
		next := this
		if x+1 < len(near) {
			next = 3*int(near[x+1]) + int(far[x+1])
		}
		pair := dst[2*x : 2*x+2 : 2*x+2]
		pair[0] = uint8((3*this + last + 8) >> 4)
		pair[1] = uint8((3*this + next + 8) >> 4)
		last, this = this, next
	}
}

// videoRange is libwebp's (yuv.h): BT.601 with luma from 16 to 235, which Go
// takes for full range.
var videoRange = videoMatrix()

func videoMatrix() (video jpeg.YCbCr) {
	for i := range 256 {
		v := int32(i)
		// libwebp has 6 bits after the point, truncated from 14.
		scaled := func(by int32) int32 { return v * by >> 8 << 10 }
		video.Y[i] = scaled(19077)
		video.CrR[i] = scaled(26149) - 14234<<10
		video.CbG[i] = 8708<<10 - scaled(6419)
		video.CrG[i] = -scaled(13320)
		video.CbB[i] = scaled(33050) - 17685<<10
	}
	return video
}
