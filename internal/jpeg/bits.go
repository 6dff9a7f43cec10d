package jpeg

import (
	"bytes"
	"encoding/binary"
)

const (
	// mcuBytes bounds the bytes of one MCU: 10 blocks of 64 coefficients, each with
	// an invalid code, which counts as 17 bits, and a value of 15 bits.
	mcuBytes  = 10*64*4 + 16
	windowLen = 16 << 10
	// blockBytes bounds the bytes that are read for a block of a sequential scan:
	// assembly does not check how many there are.
	blockBytes = 64*4 + 16
)

// bitReader reads the bits of an entropy-coded segment. After its end it reads
// zeros.
type bitReader struct {
	// These three come first, in this order: assembly reads them.
	bits uint64 // the next bits, the first in the highest place
	n    int    // the number of valid bits
	at   int    // the byte of window that follows them
	end  int    // the end of the segment's bytes in window
	// complete says that all of the segment is in window; cut that the file ends
	// with the segment; dry that more bits were read than it has.
	complete, cut, dry bool
	// loaded is how many bits of a cut segment libjpeg would have loaded.
	loaded int
	window [windowLen + mcuBytes]byte
}

// begin starts a segment at the current position of m.
func (r *bitReader) begin() {
	r.bits, r.n, r.at, r.end = 0, 0, 0, 0
	r.complete, r.cut, r.loaded = false, false, 0
}

// ensure makes at least one MCU of the segment, or all that is left of it, with
// the zeros after it, available in the window.
func (r *bitReader) ensure(m *markers) {
	if r.complete || r.end-r.at >= mcuBytes {
		return
	}
	// Bytes that are in bits already are not needed; the rest moves to the front.
	r.end = copy(r.window[:], r.window[r.at:r.end])
	r.at = 0
	for r.end < windowLen && !r.complete {
		if m.pending != 0 {
			r.complete = true
			break
		}
		rest := m.data[m.pos:]
		run := rest[:min(len(rest), windowLen-r.end)]
		stop := bytes.IndexByte(run, 0xff)
		if stop < 0 {
			r.end += copy(r.window[r.end:], run)
			m.pos += len(run)
			if len(run) == len(rest) {
				r.complete, r.cut = true, true
			}
			continue
		}
		r.end += copy(r.window[r.end:], run[:stop])
		m.pos += stop
		code := stop + 1
		for code < len(rest) && rest[code] == 0xff {
			code++
		}
		if code == len(rest) {
			r.complete, r.cut = true, true
			break
		}
		m.pos += code - stop + 1
		if rest[code] != 0 {
			m.pending = rest[code]
		} else {
			r.window[r.end] = 0xff
			r.end++
		}
	}
	if r.complete {
		clear(r.window[r.end:])
	}
}

// fill loads as many whole bytes as fit. At least 56 bits are valid then.
func (r *bitReader) fill() {
	r.bits |= binary.BigEndian.Uint64(r.window[r.at:]) >> uint(r.n)
	r.at += (63 - r.n) >> 3
	r.n |= 56
}

// endMCU records whether more bits were read than the segment has. libjpeg fills up
// such an MCU with zero bits.
func (r *bitReader) endMCU() {
	r.dry = r.dry || r.complete && 8*r.at-r.n > 8*r.end
}

// take returns the next n bits, 0 ≤ n ≤ 16.
func (r *bitReader) take(n uint) int {
	if r.n < 16 {
		r.fill()
	}
	v := r.bits >> (64 - n) // 0 for n = 0
	r.bits <<= n
	r.n -= int(n)
	return int(v)
}

// blockOfCut is block for a segment at whose end the file is cut short: it returns
// ErrTruncated where libjpeg would wait for more data.
func (r *bitReader) blockOfCut(b *block, dc, ac *decoderTable, dcBefore *int32) error {
	size, err := r.symbolOfCut(dc)
	if err != nil {
		return err
	}
	v, err := r.valueOfCut(size)
	if err != nil {
		return err
	}
	*dcBefore += int32(v)
	b[0] = int16(*dcBefore)
	for k := 1; k < 64; k++ {
		s, err := r.symbolOfCut(ac)
		if err != nil {
			return err
		}
		if s&15 == 0 && s>>4 < 15 {
			return nil
		}
		k += int(s >> 4)
		if s&15 == 0 {
			continue
		}
		if v, err = r.valueOfCut(s & 15); err != nil {
			return err
		}
		b[natural[k&127]&63] = int16(v)
	}
	return nil
}

func (r *bitReader) symbolOfCut(t *decoderTable) (uint8, error) {
	const look = 8 // bits that libjpeg looks up at once
	from := 8*r.at - r.n
	s := r.symbol(t)
	l := 8*r.at - r.n - from
	r.load(from, look)
	if l > look {
		r.load(from, look+1)
		for i := look + 1; i < l; i++ {
			r.load(from+i, 1)
		}
	}
	return s, r.waits()
}

func (r *bitReader) valueOfCut(size uint8) (int, error) {
	if size == 0 {
		return 0, nil
	}
	r.load(8*r.at-r.n, int(size))
	return extend(r.take(uint(size)), int(size)), r.waits()
}

// load does what libjpeg does before it reads n bits: if it has fewer, it loads
// whole bytes until it has 57 bits or more.
func (r *bitReader) load(from, n int) {
	if r.loaded < from+n {
		r.loaded = (from + 57 + 7) &^ 7
	}
}

func (r *bitReader) waits() error {
	if r.cut && r.loaded > 8*r.end {
		return ErrTruncated
	}
	return nil
}
