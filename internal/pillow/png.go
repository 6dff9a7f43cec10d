package pillow

import (
	"bytes"
	"compress/zlib"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"image"
	"io"
)

// png is the first image of a PNG or APNG, read as Pillow's PngImagePlugin and
// ZipDecode.c read it.
type png struct {
	scale         bool // see Grey16
	data          []byte
	at            int // of the next chunk
	width, height int
	depth, colour uint8
	interlaced    bool
	palette       *palette
	frame         rectangle // of the first frame; all zeros for the whole image
	frames        uint32    // of an animation
	sequence      uint32    // of the chunks of an animation: the next number
	text          int       // bytes of text so far
	inflated      int       // bytes that were decompressed for texts and profiles
}

// Colour types of PNG.
const (
	pngGrey      = 0
	pngRGB       = 2
	pngPalette   = 3
	pngGreyAlpha = 4
	pngRGBA      = 6
)

// chunk is one chunk of a PNG; its data ends at the file's end at the latest.
type chunk struct {
	kind   string
	data   []byte
	length int // as the file says
}

func (c *chunk) whole() error {
	if len(c.data) < c.length {
		return errTruncated
	}
	return nil
}

// OpenPNG reads a PNG up to its first pixels.
func OpenPNG(data []byte) (Picture, error) {
	const signature = "\x89PNG\r\n\x1a\n"
	if !bytes.HasPrefix(data, []byte(signature)) {
		return nil, errors.New("its signature is not that of a PNG")
	}
	p := &png{data: data, at: len(signature), palette: new(palette)}
	for {
		start := p.at
		c, err := p.next()
		if err != nil {
			return nil, err
		}
		switch c.kind {
		case "IDAT", "fdAT":
			p.at = start
			return p, p.check()
		case "IEND":
			return nil, errors.New("it has no pixels")
		}
		if err := p.read(c, true); err != nil {
			return nil, fmt.Errorf("chunk %s: %w", c.kind, err)
		}
		end := start + 8 + c.length
		if end+4 > len(data) {
			return nil, errTruncated
		}
		if crc32.ChecksumIEEE(data[start+4:end]) != binary.BigEndian.Uint32(data[end:]) {
			return nil, fmt.Errorf("chunk %s: its checksum is wrong", c.kind)
		}
	}
}

// PNGHeader reads the size and the depth of a PNG alone, if it begins with them and they are
// possible.
func PNGHeader(data []byte) (p Picture, ok bool) {
	const end = 29
	if len(data) < end || string(data[:8]) != "\x89PNG\r\n\x1a\n" || string(data[12:16]) != "IHDR" {
		return nil, false
	}
	big := binary.BigEndian
	header := &png{width: int(big.Uint32(data[16:])), height: int(big.Uint32(data[20:])), depth: data[24], colour: data[25]}
	return header, header.check() == nil
}

// next returns the next chunk.
func (p *png) next() (chunk, error) {
	if p.at+8 > len(p.data) {
		return chunk{}, errTruncated
	}
	c := chunk{kind: string(p.data[p.at+4 : p.at+8]), length: int(binary.BigEndian.Uint32(p.data[p.at:]))}
	for _, letter := range []byte(c.kind) {
		if letter != '_' && (letter < '0' || letter > '9') && (letter|0x20 < 'a' || letter|0x20 > 'z') {
			return chunk{}, fmt.Errorf("%q is not a kind of chunk", c.kind)
		}
	}
	from := p.at + 8
	c.data = p.data[from:min(from+c.length, len(p.data))]
	p.at = min(from+c.length+4, len(p.data))
	return c, nil
}

// read takes the data that pixels depend on from a chunk, and fails if Pillow
// fails. After the pixels, only errors matter.
func (p *png) read(c chunk, before bool) error {
	if err := c.whole(); err != nil {
		return err
	}
	big := binary.BigEndian
	least := map[string]int{"IHDR": 13, "gAMA": 4, "cHRM": 32, "sRGB": 1, "pHYs": 9, "acTL": 8, "fcTL": 26}
	if len(c.data) < least[c.kind] {
		return fmt.Errorf("%d bytes are too few", len(c.data))
	}
	switch c.kind {
	case "IHDR":
		if c.data[11] != 0 {
			return fmt.Errorf("filter method %d is not supported", c.data[11])
		}
		if before {
			p.width, p.height = int(big.Uint32(c.data)), int(big.Uint32(c.data[4:]))
			p.depth, p.colour = c.data[8], c.data[9]
			p.interlaced = p.interlaced || c.data[12] != 0
		}
	case "PLTE":
		if before && p.colour == pngPalette {
			var err error
			p.palette, err = newPalette(c.data, 3, 0, 1, 2)
			return err
		}
	case "tRNS":
		need := 0
		switch p.colour {
		case pngGrey:
			need = 2
		case pngRGB:
			need = 6
		}
		if len(c.data) < need {
			return fmt.Errorf("%d bytes are too few", len(c.data))
		}
	case "acTL":
		switch n := big.Uint32(c.data); {
		case p.frames != 0:
			p.frames = 0
		case n <= 1<<31:
			p.frames = n
		}
	case "fcTL":
		if err := p.follow(c.data); err != nil {
			return err
		}
		width, height := int(big.Uint32(c.data[4:])), int(big.Uint32(c.data[8:]))
		x, y := int(big.Uint32(c.data[12:])), int(big.Uint32(c.data[16:]))
		if x+width > p.width || y+height > p.height {
			return errors.New("a frame does not lie in the image")
		}
		if before {
			p.frame = rectangle{x, y, x + width, y + height}
		}
	case "iCCP":
		name, profile, _ := bytes.Cut(c.data, []byte{0})
		if len(name) == len(c.data) {
			profile = c.data
		}
		if len(profile) == 0 || profile[0] != 0 {
			return errors.New("its compression is not supported")
		}
		_, err := p.inflate(profile[1:])
		return err
	case "tEXt", "zTXt", "iTXt":
		return p.readText(c)
	}
	return nil
}

// follow checks the sequence number that chunks of an animation begin with, and
// counts it up.
func (p *png) follow(data []byte) error {
	if n := binary.BigEndian.Uint32(data); n != p.sequence {
		return fmt.Errorf("the animation has part %d where part %d was expected", n, p.sequence)
	}
	p.sequence++
	return nil
}

// maxText bounds the length of a compressed text, and 64·maxText that of all texts:
// Pillow's protection against decompression bombs.
const maxText = 1 << 20

// readText adds the length of a text to the sum.
func (p *png) readText(c chunk) error {
	key, text, _ := bytes.Cut(c.data, []byte{0})
	switch {
	case c.kind == "zTXt" && len(text) > 0:
		if text[0] != 0 {
			return fmt.Errorf("compression %d is not supported", text[0])
		}
		n, err := p.inflate(text[1:])
		if err != nil {
			return err
		}
		p.text += n
	case c.kind == "iTXt":
		parts := bytes.SplitN(text[min(2, len(text)):], []byte{0}, 3)
		if len(text) < 2 || len(parts) < 3 {
			return nil
		}
		n := len(parts[2])
		if compressed, method := text[0], text[1]; compressed != 0 {
			if method != 0 {
				return nil
			}
			var err error
			if n, err = p.inflate(parts[2]); err != nil {
				return err
			}
		}
		p.text += n
	case len(key) > 0:
		p.text += len(text)
	}
	if p.text > 64*maxText {
		return fmt.Errorf("more than %d bytes of text", 64*maxText)
	}
	return nil
}

// maxInflated bounds what is decompressed beside the pixels, where to begin counts as
// inflateBegin bytes. Pillow has no such bound for profiles, of which files have one.
const (
	maxInflated  = 80 * maxText
	inflateBegin = 1 << 13
)

// inflate returns the length of a compressed text. A broken text is no error,
// since Pillow accepts the readable part of it.
func (p *png) inflate(data []byte) (int, error) {
	if p.inflated += inflateBegin; p.inflated > maxInflated {
		return 0, fmt.Errorf("more than %d bytes in compressed texts and profiles", maxInflated)
	}
	r, err := zlib.NewReader(bytes.NewReader(data))
	if err != nil {
		return 0, nil
	}
	n, _ := io.Copy(io.Discard, io.LimitReader(r, maxText+1))
	p.inflated += int(n)
	if n > maxText {
		return 0, fmt.Errorf("a compressed text of more than %d bytes", maxText)
	}
	return int(n), nil
}

// check refuses invalid combinations of header fields.
func (p *png) check() error {
	if p.width == 0 || p.height == 0 {
		return fmt.Errorf("its size is %d×%d", p.width, p.height)
	}
	switch p.colour<<5 | p.depth {
	case pngGrey<<5 | 1, pngGrey<<5 | 2, pngGrey<<5 | 4, pngGrey<<5 | 8, pngGrey<<5 | 16,
		pngRGB<<5 | 8, pngRGB<<5 | 16,
		pngPalette<<5 | 1, pngPalette<<5 | 2, pngPalette<<5 | 4, pngPalette<<5 | 8,
		pngGreyAlpha<<5 | 8, pngGreyAlpha<<5 | 16,
		pngRGBA<<5 | 8, pngRGBA<<5 | 16:
		return nil
	}
	return fmt.Errorf("colour type %d with %d bits is not supported", p.colour, p.depth)
}

func (p *png) Size() (width, height int) { return p.width, p.height }

// pngSamples are the samples of a pixel of each colour type.
var pngSamples = [8]int{pngGrey: 1, pngRGB: 3, pngPalette: 1, pngGreyAlpha: 2, pngRGBA: 4}

// Depth is the bits of a pixel in the file.
func (p *png) Depth() int { return pngSamples[p.colour] * int(p.depth) }

func (p *png) Pixels(ctx context.Context) (*image.NRGBA, error) {
	frame := p.frame
	if frame == (rectangle{}) {
		frame = rectangle{0, 0, p.width, p.height}
	}
	if err := frame.within(p.width, p.height); err != nil {
		return nil, err
	}
	copied := *p // Pixels may be called again
	p = &copied
	source := &pngStream{png: p, ctx: ctx}
	stream, err := zlib.NewReader(source)
	if err != nil {
		return nil, pixelError(ctx, source, err)
	}
	img := image.NewNRGBA(image.Rect(0, 0, p.width, p.height))
	p.palette.paint(row(img, 0), make([]uint8, p.width)) // the colour of places without pixels
	for y := 1; y < p.height; y++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		copy(row(img, y), row(img, 0))
	}
	passes := []pass{{0, 0, 1, 1}}
	if p.interlaced {
		passes = adam7
	}
	err = p.passes(ctx, img, frame, passes, stream)
	if err == nil {
		// Data after the pixels matter as far as zlib reads them: a wrong checksum
		// is an error, a missing one is not.
		if n, tail := stream.Read(make([]byte, 1)); n == 0 && source.err == nil && tail != io.EOF && !errors.Is(tail, io.ErrUnexpectedEOF) {
			err = tail
		}
	}
	if err != nil && err != errEarly {
		return nil, pixelError(ctx, source, err)
	}
	return img, p.trailer()
}

// errEarly says that the pixels ended after a row that is not the last. Pillow
// takes this for the end of the image.
var errEarly = errors.New("the pixels end early")

// pixelError says why pixels cannot be read.
func pixelError(ctx context.Context, source *pngStream, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case source.err != nil:
		return source.err
	case errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF):
		return errTruncated
	}
	return err
}

// pass is one of the passes of an interlaced image: the position of its first pixel
// and the distances between its pixels.
type pass struct{ x, y, right, down int }

var adam7 = []pass{{0, 0, 8, 8}, {4, 0, 8, 8}, {0, 4, 4, 8}, {2, 0, 4, 4}, {0, 2, 2, 4}, {1, 0, 2, 2}, {0, 1, 1, 2}}

// passes decodes the rows of all passes.
func (p *png) passes(ctx context.Context, img *image.NRGBA, frame rectangle, passes []pass, stream io.Reader) error {
	bits := p.Depth()
	width, height := frame.x1-frame.x0, frame.y1-frame.y0
	longest := 1 + (width*bits+7)/8
	this, above := make([]uint8, longest), make([]uint8, longest)
	grey := make([]uint8, width)
	for i, ps := range passes {
		pixels := (width - ps.x + ps.right - 1) / ps.right
		if pixels <= 0 {
			continue
		}
		length := 1 + (pixels*bits+7)/8
		clear(above)
		for y := ps.y; y < height; y += ps.down {
			if err := ctx.Err(); err != nil {
				return err
			}
			if _, err := io.ReadFull(stream, this[:length]); err != nil {
				if err == io.EOF && (i > 0 || y > 0) {
					return errEarly
				}
				return err
			}
			if err := unfilter(this[:length], above[:length], (bits+7)/8); err != nil {
				return err
			}
			p.convert(row(img, frame.y0+y)[4*(frame.x0+ps.x):], 4*ps.right, this[1:length], grey[:pixels])
			this, above = above, this
		}
	}
	return nil
}

// unfilter undoes the filter of a row, whose first byte names it.
func unfilter(row, above []uint8, size int) error {
	filter, row, above := row[0], row[1:], above[1:]
	switch filter {
	case 0:
	case 1:
		for i := size; i < len(row); i++ {
			row[i] += row[i-size]
		}
	case 2:
		for i := range row {
			row[i] += above[i]
		}
	case 3:
		for i := range min(size, len(row)) {
			row[i] += above[i] / 2
		}
		for i := size; i < len(row); i++ {
			row[i] += uint8((int(row[i-size]) + int(above[i])) / 2)
		}
	case 4:
		above = above[:len(row)]
		for lane := range min(size, len(row)) {
			left, corner := 0, 0
			for i := lane; i < len(row); i += size {
				up := int(above[i])
				left = int(row[i] + paeth(left, up, corner))
				row[i], corner = uint8(left), up
			}
		}
	default:
		return fmt.Errorf("filter %d is not known", filter)
	}
	return nil
}

// paeth returns the one of a pixel's three neighbours left, above and upper left
// that is nearest to left + above − upper left.
func paeth(left, above, corner int) uint8 {
	a, b := above-corner, left-corner
	c := a + b
	a, b, c = max(a, -a), max(b, -b), max(c, -c)
	switch {
	case a <= b && a <= c:
		return uint8(left)
	case b <= c:
		return uint8(above)
	}
	return uint8(corner)
}

// Grey16 and Scale make it a [Grey16].
func (p *png) Grey16() bool { return p.colour == pngGrey && p.depth == 16 }
func (p *png) Scale()       { p.scale = true }

// convert writes a row of pixels, step bytes apart. samples is a buffer for one
// sample of each pixel.
func (p *png) convert(dst []uint8, step int, src, samples []uint8) {
	put := func(i int, r, g, b uint8) { set(dst[i*step:], 0, r, g, b) }
	wide := int(p.depth) / 8 // bytes of a sample; 0 if it has less than one
	switch p.colour {
	case pngPalette:
		unpackBits(samples, src, len(samples), int(p.depth))
		for i, v := range samples {
			c := &p.palette[v]
			put(i, c[0], c[1], c[2])
		}
	case pngGrey:
		if p.depth == 16 {
			for i := range samples {
				v := src[2*i]
				if !p.scale {
					v = clip16(binary.BigEndian.Uint16(src[2*i:]))
				}
				put(i, v, v, v)
			}
			return
		}
		unpackBits(samples, src, len(samples), int(p.depth))
		scale := uint8(255 / (1<<p.depth - 1))
		for i, v := range samples {
			put(i, v*scale, v*scale, v*scale)
		}
	case pngGreyAlpha:
		for i := range samples {
			v := src[2*wide*i]
			put(i, v, v, v)
		}
	default:
		size := 3 * wide
		if p.colour == pngRGBA {
			size = 4 * wide
		}
		for i := range samples {
			pixel := src[size*i:][:size]
			put(i, pixel[0], pixel[wide], pixel[2*wide])
		}
	}
}

// trailer reads the data after the pixels. A file that ends there, or continues
// with garbage, is accepted; a chunk that is cut short or broken is an error.
func (p *png) trailer() error {
	apart := p.frame == rectangle{} // the image is not a frame
	animated := p.frames > 1 || p.frames == 1 && apart
	for {
		c, err := p.next()
		if err != nil || c.kind == "IEND" || c.kind == "fcTL" && animated {
			return nil
		}
		switch c.kind {
		case "IDAT", "DDAT":
			err = c.whole()
		case "fdAT":
			if len(c.data) < 4 {
				return fmt.Errorf("chunk fdAT: %w", errTruncated)
			}
			if err = c.whole(); err == nil {
				err = p.follow(c.data)
			}
		default:
			err = p.read(c, false)
		}
		if err != nil {
			return fmt.Errorf("chunk %s: %w", c.kind, err)
		}
	}
}

// pngStream reads the data of consecutive chunks of pixels.
type pngStream struct {
	*png
	ctx  context.Context
	rest []byte
	err  error
}

func (s *pngStream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		if s.err = s.ctx.Err(); s.err != nil {
			return 0, s.err
		}
		at := s.at
		c, err := s.next()
		if err != nil {
			s.err = err
			return 0, err
		}
		switch c.kind {
		case "IDAT", "DDAT":
			s.rest = c.data
		case "fdAT":
			if len(c.data) < 4 {
				s.err = errTruncated
				return 0, s.err
			}
			if s.err = s.follow(c.data); s.err != nil {
				return 0, s.err
			}
			s.rest = c.data[4:]
		default:
			s.at = at // it holds no pixels
			return 0, io.EOF
		}
		if len(c.data) < c.length && len(s.rest) == 0 {
			return 0, io.EOF
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// PNGMetadata returns the EXIF block and the XMP of a PNG, anywhere in the file;
// nil if there are none.
func PNGMetadata(data []byte) (exif, xmp []byte) {
	p := &png{data: data, at: 8}
	for {
		c, err := p.next()
		if err != nil {
			return exif, xmp
		}
		switch key, text, _ := bytes.Cut(c.data, []byte{0}); {
		case c.kind == "eXIf":
			exif = c.data
		case c.kind == "iTXt" && string(key) == "XML:com.adobe.xmp":
			xmp = text
		}
	}
}
