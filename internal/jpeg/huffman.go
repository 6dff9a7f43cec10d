package jpeg

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// natural maps zigzag order to the place in a block. Runs of a broken file may
// exceed the last coefficient; they write to the last one, as does the zero of the
// end of a block.
var natural = [256]uint8{
	0, 1, 8, 16, 9, 2, 3, 10,
	17, 24, 32, 25, 18, 11, 4, 5,
	12, 19, 26, 33, 40, 48, 41, 34,
	27, 20, 13, 6, 7, 14, 21, 28,
	35, 42, 49, 56, 57, 50, 43, 36,
	29, 22, 15, 23, 30, 37, 44, 51,
	58, 59, 52, 45, 38, 31, 39, 46,
	53, 60, 61, 54, 47, 55, 62, 63,
}

func init() {
	for i := 64; i < len(natural); i++ {
		natural[i] = 63
	}
}

// lookBits is how many bits are looked up at a time. The 56 bits that fill makes
// valid contain two codes of at most that many bits with their values, or one such
// code after a longer one.
const lookBits = 10

// decoderTable decodes the Huffman codes of a table.
type decoderTable struct {
	of    table
	valid bool
	// look has the first code of a prefix of lookBits bits, or 0 if the code is
	// longer.
	look [1 << lookBits]code
	// Bits of a length l above lookBits are a code if they are at most most[l];
	// adding offset[l] gives the index of its symbol.
	most   [18]int32
	offset [18]int32
}

// code describes a code: step<<24 | symbol<<16 | bits of the value after it<<8 |
// bits of code and value together. step is what it adds to the index of the last
// coefficient: its run plus one, or stop.
type code uint32

// stop is the step of a code that ends a block. It is larger than the sum of all
// other steps can be, so that a sum shows whether the block ended.
const stop = 80

func codeOf(symbol uint8, length int) code {
	run, size := code(symbol>>4), code(symbol&15)
	step := run + 1
	if size == 0 && run < 15 {
		step = stop
	}
	return step<<24 | code(symbol)<<16 | size<<8 | code(length) + size
}

func (c code) symbol() uint8 { return uint8(c >> 16) }
func (c code) size() uint    { return uint(c >> 8 & 15) } // of the value
func (c code) bits() uint    { return uint(c & 63) }      // of code and value
func (c code) step() int     { return int(c >> 24) }

// value returns the value after the code at the top of bits, 0 if it has none. A
// value whose first bit is 0 is negative (T.81, figure F.12).
func (c code) value(bits uint64) int32 {
	size := c.size()
	bits <<= (c.bits() - size) & 63
	negative := ^int64(bits) >> 63
	return int32((int64((bits^uint64(negative))>>1>>(63-size)) ^ negative) - negative)
}

// build prepares the decoding of a file's table. Symbols above largest are an
// error.
func build(tables *[4]decoderTable, of *[4]table, index int, largest uint8) error {
	if index >= len(of) || !of[index].defined {
		return errors.New("a Huffman table is missing")
	}
	if t := &tables[index]; !t.valid || t.of != of[index] {
		if err := t.build(&of[index]); err != nil {
			return err
		}
	}
	for i, symbol := range of[index].symbols[:of[index].size()] {
		if symbol > largest {
			return fmt.Errorf("symbol %d of a Huffman table is %d, above %d", i, symbol, largest)
		}
	}
	return nil
}

func (t *decoderTable) build(of *table) error {
	t.valid = false
	t.of = *of
	clear(t.look[:])
	next, index := 0, 0
	for l := 1; l <= 16; l++ {
		count := int(of.counts[l])
		if count > 0 && next+count >= 1<<l { // no code may be all ones
			return errors.New("a Huffman table is broken")
		}
		t.offset[l] = int32(index - next)
		t.most[l] = int32(next + count - 1)
		if count == 0 {
			t.most[l] = -1
		}
		for range count {
			if l <= lookBits {
				entries := t.look[next<<(lookBits-l):][:1<<(lookBits-l)]
				for i := range entries {
					entries[i] = codeOf(of.symbols[index], l)
				}
			}
			next++
			index++
		}
		next <<= 1
	}
	t.most[17] = 1 << 20
	t.valid = true
	return nil
}

// extend returns the value of size bits, 0 < size: those of negative numbers
// begin with 0 (T.81, figure F.12).
func extend(bits, size int) int {
	return bits + (bits>>(size-1)-1)&(-1<<size+1)
}

// long returns the code at the top of bits if look does not have it. For invalid
// bits it returns a code of length 17 and symbol 0.
func (t *decoderTable) long(bits uint64) code {
	l := lookBits + 1
	for int32(bits>>(64-uint(l))) > t.most[l] {
		l++
	}
	if l > 16 {
		return codeOf(0, 17)
	}
	return codeOf(t.of.symbols[uint8(int32(bits>>(64-uint(l)))+t.offset[l])], l)
}

// symbol reads one code, without the value after it.
func (r *bitReader) symbol(t *decoderTable) uint8 {
	if r.n < 32 {
		r.fill()
	}
	c := t.look[r.bits>>(64-lookBits)]
	if c == 0 {
		c = t.long(r.bits)
	}
	l := c.bits() - c.size()
	r.bits <<= l
	r.n -= int(l)
	return c.symbol()
}

// block reads a block of a sequential scan into b, which is zero, with the DC
// coefficient predicted by dcBefore, and reports whether it may have others.
func (r *bitReader) block(b *block, dc, ac *decoderTable, dcBefore *int32) bool {
	r.fill()
	c := dc.look[r.bits>>(64-lookBits)]
	if c == 0 {
		c = dc.long(r.bits)
	}
	*dcBefore += c.value(r.bits)
	b[0] = int16(*dcBefore)
	r.consume(c)
	_ = r.window[r.at+blockBytes-1] // assembly does not look
	k := 0
	for k < 63 {
		if k = r.coefficients(b, ac, k); k < 63 {
			r.fill()
			c := ac.long(r.bits)
			k += c.step()
			b[natural[uint8(k)]&63] = int16(c.value(r.bits))
			r.consume(c)
		}
	}
	return k != stop
}

// consume drops a code and its value from the bits.
func (r *bitReader) consume(c code) {
	r.bits <<= c.bits()
	r.n -= int(c.bits())
}

// coefficientsPlain reads the coefficients after number k, up to the end of the
// block or a code that is too long to be looked up. It returns the number of the
// last one; 63 or more means the end.
func (r *bitReader) coefficientsPlain(b *block, t *decoderTable, k int) int {
	bits, n, at := r.bits, r.n, r.at
	for k < 63 {
		bits |= binary.BigEndian.Uint64(r.window[at:]) >> (uint(n) & 63)
		at += (63 - n) >> 3
		n |= 56
		c := t.look[bits>>(64-lookBits)]
		if c == 0 {
			break
		}
		k += c.step()
		b[natural[uint8(k)]&63] = int16(c.value(bits))
		bits <<= c.bits()
		n -= int(c.bits())
		if k >= 63 {
			break
		}
		if c = t.look[bits>>(64-lookBits)]; c == 0 {
			break
		}
		k += c.step()
		b[natural[uint8(k)]&63] = int16(c.value(bits))
		bits <<= c.bits()
		n -= int(c.bits())
	}
	r.bits, r.n, r.at = bits, n, at
	return k
}
