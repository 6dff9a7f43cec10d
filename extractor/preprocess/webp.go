package preprocess

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"

	"golang.org/x/image/webp"

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
	decoded, err := webp.Decode(newReader(ctx, p.still))
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
