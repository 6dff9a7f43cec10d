package jpeg

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
)

// natural is where a coefficient of zigzag order lies in a block. Runs of a
// broken file may end beyond the last, which then takes them.
var natural = [128]uint8{
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

// lookBits is how many bits are looked up at once.
const lookBits = 10

// decoderTable decodes the Huffman codes of a table.
type decoderTable struct {
	of    table
	valid bool
	// look says what begins with a prefix of lookBits bits. A coefficient that
	// fits in wholly: value<<16 | run<<8 | bits of code and value. Else the
	// symbol of the code: symbol<<8 | bits of the code; or 0, if the code is
	// longer.
	look [1 << lookBits]uint32
	// A code of more than lookBits bits, of length l, is one if it is not
	// above most[l]; offset[l] is what is to be added for its symbol's index.
	most   [18]int32
	offset [18]int32
}

// build prepares the decoding of a file's table, whose symbols may be up to
// largest.
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
	code, index := 0, 0
	for l := 1; l <= 16; l++ {
		count := int(of.counts[l])
		if count > 0 && code+count >= 1<<l { // no code may be all ones
			return errors.New("a Huffman table is broken")
		}
		t.offset[l] = int32(index - code)
		t.most[l] = int32(code + count - 1)
		if count == 0 {
			t.most[l] = -1
		}
		for range count {
			if l <= lookBits {
				t.enter(code, l, of.symbols[index])
			}
			code++
			index++
		}
		code <<= 1
	}
	t.most[17] = 1 << 20
	t.valid = true
	return nil
}

// enter fills the entries that begin with a code of l bits.
func (t *decoderTable) enter(code, l int, symbol uint8) {
	size := int(symbol & 15)
	free := lookBits - l
	entries := t.look[code<<free:][:1<<free]
	for i := range entries {
		if size == 0 || size > free {
			entries[i] = uint32(symbol)<<8 | uint32(l)
			continue
		}
		v := extend(i>>(free-size), size)
		entries[i] = uint32(uint16(v))<<16 | uint32(symbol>>4)<<8 | uint32(l+size)
	}
}

// extend returns the value of size bits, 0 < size: those of negative numbers
// begin with 0 (T.81, figure F.12).
func extend(bits, size int) int {
	return bits + (bits>>(size-1)-1)&(-1<<size+1)
}

// long returns the symbol and length of the code at the top of bits that look
// does not have: symbol 0 and length 17 for what is no code.
func (t *decoderTable) long(bits uint64) (symbol uint8, l int) {
	l = lookBits + 1
	for int32(bits>>(64-uint(l))) > t.most[l] {
		l++
	}
	if l > 16 {
		return 0, 17
	}
	return t.of.symbols[uint8(int32(bits>>(64-uint(l)))+t.offset[l])], l
}

// symbol reads one code.
func (r *bitReader) symbol(t *decoderTable) uint8 {
	if r.n < 32 {
		r.fill()
	}
	e := t.look[r.bits>>(64-lookBits)]
	var s uint8
	var l int
	switch {
	case e == 0:
		s, l = t.long(r.bits)
	case e < 1<<16:
		s, l = uint8(e>>8), int(e&63)
	default: // a value fits in as well
		v := int(int16(e >> 16))
		size := bits.Len(uint(max(v, -v)))
		s, l = uint8(e>>8)<<4|uint8(size), int(e&63)-size
	}
	r.bits <<= uint(l)
	r.n -= l
	return s
}

// block reads a block of a sequential scan into b, which is zero, with the DC
// coefficient predicted by dcBefore, and reports whether it may have others.
func (r *bitReader) block(b *block, dc, ac *decoderTable, dcBefore *int32) bool {
	if r.n < 32 {
		r.fill()
	}
	bits, n, at := r.bits, r.n, r.at
	e := dc.look[bits>>(64-lookBits)]
	if e >= 1<<16 {
		*dcBefore += int32(int16(e >> 16))
		bits <<= e & 63
		n -= int(e & 63)
	} else {
		s, l := uint8(e>>8), int(e&63)
		if e == 0 {
			s, l = dc.long(bits)
		}
		bits <<= uint(l)
		if s > 0 {
			*dcBefore += int32(extend(int(bits>>(64-uint(s))), int(s)))
			bits <<= s
		}
		n -= l + int(s)
	}
	b[0] = int16(*dcBefore)

	k := 1
	for k < 64 {
		if n < 32 {
			bits |= binary.BigEndian.Uint64(r.window[at:]) >> (uint(n) & 63)
			at += (63 - n) >> 3
			n |= 56
		}
		e := ac.look[bits>>(64-lookBits)]
		if e >= 1<<16 {
			bits <<= e & 63
			n -= int(e & 63)
			k += int(e >> 8 & 15)
			b[natural[k&127]&63] = int16(e >> 16)
			k++
			continue
		}
		s, l := uint8(e>>8), int(e&63)
		if e == 0 {
			s, l = ac.long(bits)
		}
		bits <<= uint(l & 63)
		n -= l
		run, size := int(s>>4), int(s&15)
		if size == 0 {
			if run < 15 {
				break
			}
			k += 16
			continue
		}
		k += run
		b[natural[k&127]&63] = int16(extend(int(bits>>(64-uint(size))), size))
		bits <<= uint(size & 63)
		n -= size
		k++
	}
	r.bits, r.n, r.at = bits, n, at
	return k > 1
}
