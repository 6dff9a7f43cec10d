package pillow

import (
	"context"
	"errors"
	"strings"
	"sync"
)

// The codes of CCITT T.4 for runs of 0 to 63 pixels, then of 64, 128 … 2,560.
const whiteCodes = `
00110101 000111 0111 1000 1011 1100 1110 1111 10011 10100 00111 01000 001000 000011 110100 110101 101010
101011 0100111 0001100 0001000 0010111 0000011 0000100 0101000 0101011 0010011 0100100 0011000 00000010
00000011 00011010 00011011 00010010 00010011 00010100 00010101 00010110 00010111 00101000 00101001 00101010
00101011 00101100 00101101 00000100 00000101 00001010 00001011 01010010 01010011 01010100 01010101 00100100
00100101 01011000 01011001 01011010 01011011 01001010 01001011 00110010 00110011 00110100 11011 10010 010111
0110111 00110110 00110111 01100100 01100101 01101000 01100111 011001100 011001101 011010010 011010011
011010100 011010101 011010110 011010111 011011000 011011001 011011010 011011011 010011000 010011001 010011010
011000 010011011 00000001000 00000001100 00000001101 000000010010 000000010011 000000010100 000000010101
000000010110 000000010111 000000011100 000000011101 000000011110 000000011111`

const blackCodes = `
0000110111 010 11 10 011 0011 0010 00011 000101 000100 0000100 0000101 0000111 00000100 00000111 000011000
0000010111 0000011000 0000001000 00001100111 00001101000 00001101100 00000110111 00000101000 00000010111
00000011000 000011001010 000011001011 000011001100 000011001101 000001101000 000001101001 000001101010
000001101011 000011010010 000011010011 000011010100 000011010101 000011010110 000011010111 000001101100
000001101101 000011011010 000011011011 000001010100 000001010101 000001010110 000001010111 000001100100
000001100101 000001010010 000001010011 000000100100 000000110111 000000111000 000000100111 000000101000
000001011000 000001011001 000000101011 000000101100 000001011010 000001100110 000001100111 0000001111
000011001000 000011001001 000001011011 000000110011 000000110100 000000110101 0000001101100 0000001101101
0000001001010 0000001001011 0000001001100 0000001001101 0000001110010 0000001110011 0000001110100
0000001110101 0000001110110 0000001110111 0000001010010 0000001010011 0000001010100 0000001010101
0000001011010 0000001011011 0000001100100 0000001100101 00000001000 00000001100 00000001101 000000010010
000000010011 000000010100 000000010101 000000010110 000000010111 000000011100 000000011101 000000011110
000000011111`

// faxCode is the meaning of the next bits: a run or a mode, and its length in bits;
// 0 bits if they are no code.
type faxCode struct {
	value int16
	bits  uint8
}

// faxTable has the code for each value of the next 13 bits, the length of the longest code.
type faxTable [1 << 13]faxCode

func (t *faxTable) add(code string, value int) {
	low := 0
	for _, digit := range code {
		low = low<<1 | int(digit-'0')
	}
	free := 13 - len(code)
	for i := low << free; i < (low+1)<<free; i++ {
		t[i] = faxCode{int16(value), uint8(len(code))}
	}
}

// Modes of two-dimensional coding; a vertical one is its distance from
// faxVertical.
const (
	faxPass       = 1
	faxHorizontal = 2
	faxVertical   = 10
)

type faxTables struct {
	runs  [2]faxTable // of white and of black pixels
	modes faxTable
}

var faxCodes = sync.OnceValue(func() *faxTables {
	t := new(faxTables)
	for colour, codes := range []string{whiteCodes, blackCodes} {
		for i, code := range strings.Fields(codes) {
			t.runs[colour].add(code, max(i, (i-63)*64))
		}
	}
	t.modes.add("0001", faxPass)
	t.modes.add("001", faxHorizontal)
	for i, code := range []string{"0000010", "000010", "010", "1", "011", "000011", "0000011"} {
		t.modes.add(code, faxVertical-3+i)
	}
	return t
})

// fax decodes the CCITT compressions of TIFF. A code that is not defined is an
// error: libtiff continues with the next row, but then returns uninitialised
// pixels, which differ from call to call.
type fax struct {
	data  []byte
	at    int // bits read
	end   int // of all bits, with zeros that were read after the end
	codes *faxTables
	width int
	cur   []int // runs of this row, alternately white and black
	ref   []int // of the row above
	a0    int   // pixels of this row so far
	run   int   // pixels of an unfinished run
}

// Kinds of CCITT compression, as TIFF numbers them.
const (
	faxRuns   = 2 // of one dimension, each row begins at a byte
	faxGroup3 = 3
	faxGroup4 = 4
)

var errFax = errors.New("a CCITT code that is not defined")

// decodeFax decodes rows to bits, black ones set. twoD tells that group 3 uses
// two dimensions.
func decodeFax(ctx context.Context, data []byte, compression, width, rows int, twoD bool) ([]byte, error) {
	stride := (width + 7) / 8
	out := make([]byte, rows*stride)
	f := &fax{data: data, end: 8 * len(data), codes: faxCodes(), width: width, ref: []int{width}}
	for y := range rows {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := f.row(compression, twoD); err != nil {
			return nil, err
		}
		f.draw(out[y*stride:][:stride])
		if compression == faxRuns {
			f.at = (f.at + 7) &^ 7
		}
		f.value(0) // a change that the next row may refer to
		f.cur, f.ref = f.ref, f.cur
	}
	return out, nil
}

// row reads one row.
func (f *fax) row(compression int, twoD bool) error {
	f.cur, f.a0, f.run = f.cur[:0], 0, 0
	if compression == faxGroup3 {
		if err := f.endOfLine(); err != nil {
			return err
		}
		if twoD {
			oneD, err := f.peek(1)
			if err != nil {
				return err
			}
			f.at++
			twoD = oneD == 0
		}
	}
	var err error
	if compression == faxGroup4 || compression == faxGroup3 && twoD {
		err = f.row2D()
	} else {
		err = f.row1D()
	}
	f.fit()
	return err
}

// peek returns the next n bits, at most 16, filled up with zeros if there are
// fewer.
func (f *fax) peek(n int) (int, error) {
	if f.at+n > f.end {
		if f.at >= f.end {
			return 0, errTruncated
		}
		f.end = f.at + n
	}
	bits := 0
	for i := range 3 {
		bits <<= 8
		if at := f.at/8 + i; at < len(f.data) {
			bits |= int(f.data[at])
		}
	}
	return bits >> (24 - f.at%8 - n) & (1<<n - 1), nil
}

// code reads a code of at most n bits.
func (f *fax) code(t *faxTable, n int) (int, error) {
	bits, err := f.peek(n)
	if err != nil {
		return 0, err
	}
	c := t[bits<<(13-n)]
	if c.bits == 0 {
		return 0, errFax
	}
	f.at += int(c.bits)
	return int(c.value), nil
}

// endOfLine skips the next end-of-line mark: eleven zeros or more and a one.
func (f *fax) endOfLine() error {
	for {
		zeros, err := f.peek(11)
		if err != nil {
			return err
		}
		if zeros == 0 {
			break
		}
		f.at++
	}
	for {
		bit, err := f.peek(1)
		if err != nil {
			return err
		}
		f.at++
		if bit == 1 {
			return nil
		}
	}
}

// value ends a run with n more pixels.
func (f *fax) value(n int) {
	f.cur = append(f.cur, f.run+n)
	f.a0 += n
	f.run = 0
}

// fit extends or cuts a row to the width of the image.
func (f *fax) fit() {
	if f.run != 0 {
		f.value(0)
	}
	for f.a0 > f.width && len(f.cur) > 0 {
		f.a0 -= f.cur[len(f.cur)-1]
		f.cur = f.cur[:len(f.cur)-1]
	}
	if f.a0 < f.width {
		f.a0 = max(0, f.a0)
		if len(f.cur)%2 == 1 {
			f.value(0)
		}
		f.value(f.width - f.a0)
	}
}

// oneRun reads a run of a colour, 0 for white.
func (f *fax) oneRun(colour int) error {
	for {
		n, err := f.code(&f.codes.runs[colour], 12+colour)
		switch {
		case err != nil:
			return err
		case n < 64:
			f.value(n)
			return nil
		}
		f.a0 += n
		f.run += n
		if f.a0 > 2*f.width+1<<12 { // not a number of pixels; the loop would not end
			return errFax
		}
	}
}

// row1D reads a row of runs.
func (f *fax) row1D() error {
	for colour := 0; ; colour ^= 1 {
		if err := f.oneRun(colour); err != nil {
			return err
		}
		if f.a0 >= f.width {
			return nil
		}
		if n := len(f.cur); n > 1 && colour == 1 && f.cur[n-1] == 0 && f.cur[n-2] == 0 {
			f.cur = f.cur[:n-2]
		}
	}
}

// row2D reads a row that is coded as differences from the last one.
func (f *fax) row2D() error {
	at := 0 // of the next run above
	above := func() int {
		if at < len(f.ref) {
			return f.ref[at]
		}
		return 0
	}
	next := func() int {
		n := above()
		at++
		return n
	}
	b1 := next() // where the colour changes in the row above
	catchUp := func() {
		for len(f.cur) > 0 && b1 <= f.a0 && b1 < f.width && at < len(f.ref) {
			b1 += next()
			b1 += next()
		}
	}
	for f.a0 < f.width {
		if len(f.cur) > 2*f.width+4 {
			return errFax
		}
		mode, err := f.code(&f.codes.modes, 7)
		if err != nil {
			return err
		}
		switch mode {
		case faxPass:
			catchUp()
			b1 += next()
			f.run += b1 - f.a0
			f.a0 = b1
			b1 += next()
		case faxHorizontal:
			colour := len(f.cur) % 2
			if err := f.oneRun(colour); err != nil {
				return err
			}
			if err := f.oneRun(1 - colour); err != nil {
				return err
			}
			catchUp()
		default:
			catchUp()
			by := mode - faxVertical
			if by < 0 && b1 < f.a0-by {
				return errFax
			}
			f.value(b1 - f.a0 + by)
			if by >= 0 {
				b1 += next()
			} else {
				at--
				b1 -= above()
			}
		}
	}
	if f.run != 0 {
		if f.run+f.a0 < f.width { // a vertical mode must follow
			bit, err := f.peek(1)
			if err != nil {
				return err
			}
			if bit == 0 {
				return errFax
			}
			f.at++
		}
		f.value(0)
	}
	return nil
}

// draw sets the bits of the row's black pixels.
func (f *fax) draw(dst []byte) {
	x := 0
	for i, n := range f.cur {
		end := min(x+max(n, 0), f.width)
		if i%2 == 1 {
			for b := x; b < end; b++ {
				dst[b/8] |= 0x80 >> (b % 8)
			}
		}
		x = end
	}
}
