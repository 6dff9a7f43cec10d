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

// faxCode is what the next bits stand for: a run or a mode, and its length in
// bits; 0 bits for none.
type faxCode struct {
	value int16
	bits  uint8
}

// faxTable has a code for every 13 bits, the most that one has.
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

var errFax = errors.New("a code of CCITT that is not defined")

// fax decodes the CCITT compressions of TIFF.
type fax struct {
	data  []byte
	at    int // bits
	codes *faxTables
	width int
	// The changes of colour of this and the last row, by their columns; the
	// first is that to black.
	row, above []int
}

// Kinds of CCITT compression, as TIFF numbers them.
const (
	faxRuns   = 2 // of one dimension, rows begin at bytes
	faxGroup3 = 3
	faxGroup4 = 4
)

// decodeFax decodes rows to bits, black ones set. twoD tells that group 3 uses
// two dimensions.
func decodeFax(ctx context.Context, data []byte, compression, width, rows int, twoD bool) ([]byte, error) {
	stride := (width + 7) / 8
	out := make([]byte, rows*stride)
	f := &fax{data: data, codes: faxCodes(), width: width}
	for y := range rows {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var err error
		f.row, f.above = f.above[:0], f.row
		switch {
		case compression == faxGroup4:
			err = f.row2D()
		case compression == faxRuns:
			f.at = (f.at + 7) &^ 7
			err = f.row1D()
		default:
			if err = f.endOfLine(); err != nil {
				break
			}
			if twoD && f.peek(1) == 0 {
				f.at++
				err = f.row2D()
				break
			}
			if twoD {
				f.at++
			}
			err = f.row1D()
		}
		if err != nil {
			return nil, err
		}
		f.draw(out[y*stride:][:stride])
	}
	return out, nil
}

// peek returns the next n bits, at most 16, with zeros behind the end.
func (f *fax) peek(n int) int {
	bits := 0
	for i := range 3 {
		bits <<= 8
		if at := f.at/8 + i; at < len(f.data) {
			bits |= int(f.data[at])
		}
	}
	return bits >> (24 - f.at%8 - n) & (1<<n - 1)
}

// code reads a code.
func (f *fax) code(t *faxTable) (int, error) {
	c := t[f.peek(13)]
	if f.at >= 8*len(f.data) {
		return 0, errTruncated
	}
	if c.bits == 0 {
		return 0, errFax
	}
	f.at += int(c.bits)
	return int(c.value), nil
}

// endOfLine goes behind the next mark of an end of line: eleven zeros or more
// and a one.
func (f *fax) endOfLine() error {
	for f.peek(11) != 0 {
		f.at++
	}
	for f.peek(1) == 0 {
		if f.at++; f.at >= 8*len(f.data) {
			return errTruncated
		}
	}
	f.at++
	return nil
}

// run reads a run of pixels of a colour, 0 for white.
func (f *fax) run(colour int) (int, error) {
	sum := 0
	for {
		n, err := f.code(&f.codes.runs[colour])
		if err != nil {
			return 0, err
		}
		sum = min(sum+n, f.width)
		if n < 64 {
			return sum, nil
		}
	}
}

// row1D reads a row of runs.
func (f *fax) row1D() error {
	for a, colour := 0, 0; a < f.width; colour ^= 1 {
		n, err := f.run(colour)
		if err != nil {
			return err
		}
		a = min(a+n, f.width)
		f.row = append(f.row, a)
	}
	return nil
}

// row2D reads a row that is told by its differences from the last.
func (f *fax) row2D() error {
	a, colour, next := 0, 0, 0
	first := true // no pixel has been told: a change in column 0 counts
	above := func(i int) int {
		if i < len(f.above) {
			return f.above[i]
		}
		return f.width
	}
	for a < f.width {
		// b is the next change above to the other colour.
		for next > 0 && above(next-1) > a {
			next--
		}
		for next < len(f.above) && (f.above[next] < a || f.above[next] == a && !first) {
			next++
		}
		b := next
		if b%2 != colour {
			b++
		}
		mode, err := f.code(&f.codes.modes)
		if err != nil {
			return err
		}
		switch mode {
		case faxPass:
			a = above(b + 1)
		case faxHorizontal:
			for range 2 {
				n, err := f.run(colour)
				if err != nil {
					return err
				}
				a = min(a+n, f.width)
				f.row = append(f.row, a)
				colour ^= 1
			}
		default:
			to := above(b) + mode - faxVertical
			if to < a {
				return errFax
			}
			a = min(to, f.width)
			f.row = append(f.row, a)
			colour ^= 1
		}
		first = false
	}
	return nil
}

// draw sets the bits of the row's black pixels.
func (f *fax) draw(dst []byte) {
	for i := 0; i < len(f.row); i += 2 {
		end := f.width
		if i+1 < len(f.row) {
			end = f.row[i+1]
		}
		for x := f.row[i]; x < end; x++ {
			dst[x/8] |= 0x80 >> (x % 8)
		}
	}
}
