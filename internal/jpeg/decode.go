// Package jpeg decodes JPEG files to exactly the pixels of Pillow 13, that is of
// libjpeg-turbo 3.
//
// It reads 8-bit baseline, extended, progressive and lossless JPEG in grey, YCbCr,
// RGB, CMYK and YCCK, with any sampling that libjpeg-turbo reads, and with Huffman
// or arithmetic coding. The arithmetic is that of libjpeg-turbo's defaults: the
// accurate integer transform, interpolated ("fancy") chroma, fixed-point colours,
// and smoothed blocks if a progressive file lacks coefficients. For broken data,
// its C code and its vector code differ; the result is that of the vector code.
// Only what determines the pixels is taken from it: the constants of the transform
// (T. Loeffler, A. Ligtenberg and G. Moschytz, ICASSP 1989) and of smoothing, the
// rounding, and how broken files are decoded.
package jpeg

import (
	"context"
	"errors"
	"fmt"
	"image"
	"slices"
	"sync"
)

// maxSide is the largest width and height that libjpeg decodes.
const maxSide = 65500

// What the scans of a file may ask for: in the mean, that each coefficient of each block is
// read in so many of them, or that of mostSmall blocks, if it has fewer. A scan of few
// bytes can go over all blocks. Encoders make about ten scans, in which a coefficient is read
// three times.
const (
	mostReads   = 8
	mostSmall   = 1 << 16
	readOfBlock = 4 // coefficients that take as long as going to a block
)

// block holds the coefficients of 8×8 samples, in rows.
type block [64]int16

// component is one of the planes of an image.
type component struct {
	id               uint8
	h, v             int // sampling factors
	quantIndex       int
	dcIndex, acIndex int // tables of the scan

	// blocksWide and blocksHigh are the size of the part with samples; stride and
	// the rows of coefs are rounded up to whole MCUs.
	blocksWide, blocksHigh int
	stride                 int
	width, height          int // in samples
	quant                  [64]uint16
	quantKnown             bool

	// coefs are the rows of blocks, for a file of several scans.
	coefs [][]block
	store []block // memory for coefs
	// known is the lowest known bit of each coefficient, or -1 if nothing of it is
	// known; knownBefore is the same before the last scan.
	known, knownBefore [64]int8

	// wanted are the samples that the wanted pixels are computed from, wantedBlocks
	// the blocks that contain them. Other samples have arbitrary values.
	wanted, wantedBlocks image.Rectangle

	// plane holds the samples of a row of MCUs, after the carried rows of the row
	// of MCUs before.
	plane []uint8
	// wide is a row at the width of the image; line is a buffer for one.
	wide, line []uint8

	dcBefore int32
	context  int // of arithmetic coding

	// For a lossless file: all samples, how many of them an MCU has across and
	// down, the differences of a row, and the row above.
	full               []uint8
	boxH, boxV         int
	differences, above []int32
}

// decoder holds the state and buffers of decoding. It is reused.
type decoder struct {
	markers
	reader   bitReader
	dcTables [4]decoderTable
	acTables [4]decoderTable
	arith    arithmetic
	all      [4]component
	maxH     int
	maxV     int
	mcuRows  int
	pix      []uint8         // of the image
	wanted   image.Rectangle // the wanted pixels of it
	row      int             // the next row to write
	raw      bool            // whether pix gets the components without conversion
	asYCC    bool            // or three components converted to RGB, whatever the file says
	toGo     int             // MCUs up to the next restart
	eobRun   int
	lastGood int // the last row of MCUs with data
	several  bool
	line     []uint8 // buffer for a row of RGBA
}

var decoders = sync.Pool{New: func() any { return new(decoder) }}

func (d *decoder) release() {
	for i := range d.all {
		clear(d.all[i].coefs)
		d.all[i].full = nil
	}
	d.data, d.pix = nil, nil
	decoders.Put(d)
}

// reset prepares the decoder for a new file.
func (d *decoder) reset(data []byte) {
	d.markers = markers{data: data, components: d.all[:0], scan: d.scan[:0]}
	d.wanted, d.row, d.several, d.raw, d.asYCC = image.Rectangle{}, 0, false, false, false
}

// header reads the file up to the first scan.
func (d *decoder) header() error {
	for {
		marker, err := d.until()
		if err != nil {
			return err
		}
		if marker == mSOS {
			return nil
		}
		if d.frame {
			return errors.New("the file has no image data")
		}
		d.started = false // a file of tables only, for images in other files
	}
}

// Config holds the size and the components in a file's header.
type Config struct {
	Width, Height int // in pixels
	Components    int // 1 for grey, 3 for YCbCr or RGB, 4 for CMYK or YCCK; or 2

	Scans, Lossless, Arithmetic bool // whether it has several scans, and how it is coded
}

// DecodeConfig reads the header of a file, up to where its first scan begins.
func DecodeConfig(data []byte) (Config, error) {
	d := decoders.Get().(*decoder)
	defer d.release()
	d.reset(data)
	if err := d.header(); err != nil {
		return Config{}, err
	}
	return Config{
		d.width, d.height, len(d.components),
		len(d.scan) < len(d.components) || d.progressive, d.predicted, d.arithmetic,
	}, nil
}

// Options say how Decode decodes. The zero value decodes all of an image.
type Options struct {
	// Wanted is the part of the image that is needed; empty means all. Pixels
	// outside it have arbitrary colours, which saves time. Errors of the file
	// outside it are still found.
	Wanted image.Rectangle
	// Reuse is an image whose memory Decode may use for its result; it may be nil or too small.
	Reuse *image.NRGBA
}

// Decode decodes a file to opaque pixels, those of Pillow's
//
//	Image.open(file).convert("RGB")
//
// It fails if Pillow does: for a file that is cut short, but not for one with
// broken data, which it decodes as libjpeg-turbo does. An error for an unsupported
// file says what is not supported.
//
// The size of an image is not bounded here: see DecodeConfig. Decode takes four
// bytes for each of its pixels, and for files of several scans two more for
// each sample.
//
// Once ctx is cancelled Decode returns ctx.Err() within the time that 65,500×32
// pixels take.
func Decode(ctx context.Context, data []byte, opts Options) (*image.NRGBA, error) {
	d := decoders.Get().(*decoder)
	defer d.release()
	d.reset(data)
	if err := d.header(); err != nil {
		return nil, err
	}
	if len(d.components) == 2 {
		return nil, errors.New("2 components are not supported, only 1, 3 and 4")
	}
	d.wanted = opts.Wanted
	if err := d.prepare(); err != nil {
		return nil, err
	}
	img := canvas(opts.Reuse, d.width, d.height)
	d.pix = img.Pix
	if err := d.decode(ctx); err != nil {
		return nil, err
	}
	return img, nil
}

// Samples decodes a JPEG that is a part of another file, as libtiff does for
// Pillow. It returns interleaved samples of one byte. If ycc is set, three
// components are converted from YCbCr to RGB. If the JPEG is cut short, the rest is
// grey. More than limit pixels are an error.
func Samples(ctx context.Context, data []byte, ycc bool, limit int) (samples []byte, config Config, err error) {
	d := decoders.Get().(*decoder)
	defer d.release()
	d.reset(slices.Concat(data, []byte{0xff, mEOI}))
	if err := d.header(); err != nil {
		return nil, Config{}, err
	}
	if d.width > limit/d.height {
		return nil, Config{}, fmt.Errorf("%d×%d pixels, above %d", d.width, d.height, limit)
	}
	n := len(d.components)
	d.raw, d.asYCC = true, ycc && n == 3
	if err := d.prepare(); err != nil {
		return nil, Config{}, err
	}
	d.pix = make([]byte, d.width*d.height*n)
	if err := d.decode(ctx); err != nil {
		return nil, Config{}, err
	}
	return d.pix, Config{Width: d.width, Height: d.height, Components: n}, nil
}

// prepare does what comes before the pixels take memory.
func (d *decoder) prepare() error {
	if err := d.setUp(); err != nil || !d.several {
		return err
	}
	return d.checkScans()
}

// decode reads the image data after the header.
func (d *decoder) decode(ctx context.Context) error {
	switch {
	case d.predicted:
		return d.lossless(ctx)
	case d.several:
		return d.allScans(ctx)
	}
	return d.onePass(ctx)
}

// checkScans refuses a file whose scans ask for far more work than those of encoders, by
// their headers alone.
func (d *decoder) checkScans() error {
	blocks := func(all []*component) (n int) {
		for _, c := range all {
			n += c.blocksWide * c.blocksHigh
		}
		return n
	}
	every := 0
	for i := range d.components {
		every += d.components[i].blocksWide * d.components[i].blocksHigh
	}
	left := mostReads * 64 * max(every, mostSmall)
	m := d.markers
	for m.components = slices.Clone(m.components); ; {
		reads := 64
		if m.progressive {
			reads = m.last - m.first + 1
		}
		if left -= max(blocks(m.scan), 64) * (max(reads, 1) + readOfBlock); left < 0 {
			return fmt.Errorf("its scans, %d and more, ask for too much work", m.scans)
		}
		m.scan = nil // that of d stays
		for m.pending = mRST0; m.pending >= mRST0 && m.pending <= mRST7; {
			if m.next() != nil {
				return nil
			}
		}
		if marker, err := m.until(); err != nil || marker == mEOI {
			return nil // what is wrong is found when it is read
		}
	}
}

// canvas returns an image of a size, in the memory of reuse if that is large enough.
func canvas(reuse *image.NRGBA, w, h int) *image.NRGBA {
	if reuse == nil || cap(reuse.Pix) < 4*w*h {
		return image.NewNRGBA(image.Rect(0, 0, w, h))
	}
	*reuse = image.NRGBA{Pix: reuse.Pix[:4*w*h], Stride: 4 * w, Rect: image.Rect(0, 0, w, h)}
	return reuse
}

// setUp computes the layout of blocks and planes from the header.
func (d *decoder) setUp() error {
	whole := image.Rect(0, 0, d.width, d.height)
	if d.wanted = d.wanted.Intersect(whole); d.wanted.Empty() {
		d.wanted = whole
	}
	d.maxH, d.maxV = 1, 1
	for i := range d.components {
		d.maxH, d.maxV = max(d.maxH, d.components[i].h), max(d.maxV, d.components[i].v)
	}
	for i := range d.components {
		c := &d.components[i]
		if len(d.components) == 1 {
			c.h, c.v, d.maxH, d.maxV = 1, 1, 1, 1 // the sampling factors of a single component have no effect
		}
		if d.maxH%c.h != 0 || d.maxV%c.v != 0 {
			return fmt.Errorf("sampling of %d×%d beside %d×%d is not supported", c.h, c.v, d.maxH, d.maxV)
		}
		c.width = over(d.width*c.h, d.maxH)
		c.height = over(d.height*c.v, d.maxV)
		c.blocksWide = over(c.width, 8)
		c.blocksHigh = over(c.height, 8)
		c.want(d)
		c.stride = over(d.width, 8*d.maxH) * c.h
		for k := range c.known {
			c.known[k], c.knownBefore[k] = -1, -1
		}
		c.plane = sized(c.plane, (carried+8)*c.v*c.stride*8)
		c.line = sized(c.line, c.stride*8*d.maxH/c.h)
	}
	d.mcuRows = over(d.height, 8*d.maxV)
	d.several = len(d.scan) < len(d.components) || d.progressive
	if !d.arithmetic && !d.progressive && !d.predicted {
		// Frames of Motion JPEG have no tables.
		for i := range 2 {
			if !d.dc[i].defined {
				d.dc[i] = standardDC[i]
			}
			if !d.ac[i].defined {
				d.ac[i] = standardAC[i]
			}
		}
	}
	return nil
}

// want computes which samples are wanted. Interpolation also reads their neighbours.
func (c *component) want(d *decoder) {
	w := d.wanted
	c.wanted = image.Rect(
		w.Min.X*c.h/d.maxH-1, w.Min.Y*c.v/d.maxV-1,
		over(w.Max.X*c.h, d.maxH)+1, over(w.Max.Y*c.v, d.maxV)+1,
	).Intersect(image.Rect(0, 0, c.width, c.height))
	c.wantedBlocks = image.Rect(c.wanted.Min.X/8, c.wanted.Min.Y/8, over(c.wanted.Max.X, 8), over(c.wanted.Max.Y, 8))
}

// over divides and rounds up.
func over(a, b int) int { return (a + b - 1) / b }

// sized returns a slice of n arbitrary values, in the memory of s if that is large
// enough.
func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// beginScan prepares for the scan whose header was just read.
func (d *decoder) beginScan() error {
	blocks := 0
	for _, c := range d.scan {
		blocks += c.h * c.v
		if !c.quantKnown && !d.predicted {
			if c.quantIndex >= len(d.quants) || !d.quantDefined[c.quantIndex] {
				return errors.New("a quantization table is missing")
			}
			c.quant, c.quantKnown = d.quants[c.quantIndex], true
		}
	}
	if len(d.scan) > 1 && blocks > 10 {
		return fmt.Errorf("%d blocks in an MCU, want 10 at most", blocks)
	}
	if d.progressive {
		if err := d.beginProgressive(); err != nil {
			return err
		}
	}
	if !d.arithmetic {
		needDC, needAC := d.needs()
		for _, c := range d.scan {
			if needDC {
				largest := uint8(15)
				if d.predicted {
					largest = 16
				}
				if err := build(&d.dcTables, &d.dc, c.dcIndex, largest); err != nil {
					return err
				}
			}
			if needAC {
				if err := build(&d.acTables, &d.ac, c.acIndex, 255); err != nil {
					return err
				}
			}
		}
	}
	d.begin()
	d.reader.dry = false
	return nil
}

// needs returns which statistics or codes a scan uses.
func (d *decoder) needs() (dc, ac bool) {
	return !d.progressive || d.first == 0 && d.high == 0, !d.predicted && (!d.progressive || d.first > 0)
}

// begin prepares for a segment of entropy-coded data.
func (d *decoder) begin() {
	dc, ac := d.needs()
	for _, c := range d.scan {
		c.dcBefore, c.context = 0, 0
		if d.arithmetic {
			d.arith.clear(c, dc, ac)
		}
	}
	d.reader.begin()
	d.arith.begin(&d.markers)
	d.eobRun = 0
	d.toGo = d.restart
}

// beginMCU handles restarts and makes the bits of an MCU available. It reports
// whether there are any.
func (d *decoder) beginMCU() (hasBits bool, err error) {
	r := &d.reader
	if d.restart > 0 {
		if d.toGo == 0 {
			if err := d.restartMarker(); err != nil {
				return false, err
			}
			d.begin()
			if d.pending == 0 {
				r.dry = false
			}
		}
		d.toGo--
	}
	switch {
	case d.arithmetic && d.arith.truncated:
		return false, ErrTruncated
	case d.arithmetic:
		return true, nil
	case r.dry:
		return false, nil
	}
	r.ensure(&d.markers)
	return true, nil
}

// onePass decodes a file of one scan, a row of MCUs at a time.
func (d *decoder) onePass(ctx context.Context) error {
	if err := d.beginScan(); err != nil {
		return err
	}
	for row := range d.mcuRows {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := d.sampleRow(row); err != nil {
			return err
		}
		d.emit(row)
	}
	return d.finish()
}

// place is the place of a block of an MCU.
type place struct {
	c       *component
	dc, ac  *decoderTable
	at      image.Point // in blocks
	samples []uint8     // of the plane, beginning with its row
}

// sampleRow decodes a row of MCUs to the wanted samples.
func (d *decoder) sampleRow(row int) error {
	places := make([]place, 0, 10) // in an MCU
	for _, c := range d.scan {
		dc, ac := &d.dcTables[c.dcIndex&3], &d.acTables[c.acIndex&3] // numbers of arithmetic coding may be larger
		for v := range c.v {
			for h := range c.h {
				places = append(places, place{c, dc, ac, image.Pt(h, row*c.v+v), c.plane[(carried*c.v+8*v)*8*c.stride:]})
			}
		}
	}
	var b block
	for range d.components[0].stride / d.components[0].h {
		hasBits, err := d.beginMCU()
		if err != nil {
			return err
		}
		for i := range places {
			p := &places[i]
			hasAC := hasBits
			switch {
			case !hasBits:
			case d.arithmetic:
				d.arith.block(p.c, &b)
			case d.reader.cut:
				if err := d.reader.blockOfCut(&b, p.dc, p.ac, &p.c.dcBefore); err != nil {
					return err
				}
			default:
				hasAC = d.reader.block(&b, p.dc, p.ac, &p.c.dcBefore)
			}
			c, at, samples := p.c, p.at, p.samples[8*p.at.X:]
			p.at.X += c.h
			switch {
			case !at.In(c.wantedBlocks):
				b = block{}
			case hasAC:
				transform(samples, 8*c.stride, &b, &c.quant)
				b = block{}
			default:
				flat(samples, 8*c.stride, b[0]*int16(c.quant[0]))
				b[0] = 0
			}
		}
		d.reader.endMCU()
	}
	if d.arithmetic && d.arith.truncated {
		return ErrTruncated
	}
	return nil
}

// finish reads the data after the image of a single scan. Pillow gives libjpeg a
// file block by block, so that errors after the block with the end of the image are
// not found.
func (d *decoder) finish() error {
	const blockLen = 1 << 16
	d.data = d.data[:min(len(d.data), over(d.pos, blockLen)*blockLen)]
	marker, err := d.until()
	switch {
	case errors.Is(err, ErrTruncated):
		return nil
	case err != nil:
		return err
	case marker == mSOS:
		return errors.New("a second scan of the whole image")
	}
	return nil
}
