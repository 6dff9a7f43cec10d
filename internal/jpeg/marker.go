package jpeg

import (
	"errors"
	"fmt"
)

// The second bytes of markers (T.81, table B.1).
const (
	mSOF0  = 0xc0 // baseline
	mSOF1  = 0xc1 // extended sequential
	mSOF2  = 0xc2 // progressive
	mDHT   = 0xc4
	mSOF9  = 0xc9 // sequential, arithmetic coding
	mSOF10 = 0xca // progressive, arithmetic coding
	mDAC   = 0xcc
	mRST0  = 0xd0
	mRST7  = 0xd7
	mSOI   = 0xd8
	mEOI   = 0xd9
	mSOS   = 0xda
	mDQT   = 0xdb
	mDNL   = 0xdc
	mDRI   = 0xdd
	mAPP0  = 0xe0
	mAPP14 = 0xee
	mAPP15 = 0xef
	mCOM   = 0xfe
	mTEM   = 0x01
)

// ErrTruncated is what Decode and DecodeConfig return, wrapped, for a file that
// ends too early.
var ErrTruncated = errors.New("the file is cut short")

// table is a Huffman table as a file gives it: how many codes have each length,
// and their symbols.
type table struct {
	counts  [17]uint8
	symbols [256]uint8
	defined bool
}

// markers reads what lies between the entropy-coded segments of a file.
type markers struct {
	data []byte
	pos  int
	// pending is a marker that was found but not acted upon, or 0.
	pending uint8
	length  int // of the segment at hand

	started, frame bool // SOI, SOF seen
	progressive    bool
	arithmetic     bool
	width, height  int
	components     []component
	scan           []*component
	first, last    int  // spectral selection
	high, low      uint // successive approximation
	scans          int

	quants       [4][64]uint16
	quantDefined [4]bool
	dc, ac       [4]table
	restart      int // interval, in MCUs
	nextRestart  uint8
	// What DAC sets: the bounds of a small difference, and of low frequencies.
	smallest, largest, lowest [16]uint8

	jfif, adobe bool
	transform   uint8 // of Adobe's marker
}

// next finds the next marker from pos on and makes it pending.
func (m *markers) next() error {
	for i := m.pos; i+1 < len(m.data); i++ {
		if m.data[i] == 0xff && m.data[i+1] != 0xff && m.data[i+1] != 0 {
			m.pending, m.pos = m.data[i+1], i+2
			return nil
		}
	}
	m.pos = len(m.data)
	return ErrTruncated
}

// payload returns the bytes of the segment at pos, or those of them that the
// file has, and moves beyond it.
func (m *markers) payload() ([]byte, error) {
	if len(m.data)-m.pos < 2 {
		return nil, ErrTruncated
	}
	// A length that does not even cover itself counts as that of nothing.
	m.length = max(int(m.data[m.pos])<<8|int(m.data[m.pos+1])-2, 0)
	m.pos += 2
	b := m.data[m.pos:]
	if len(b) > m.length {
		b = b[:m.length]
	}
	m.pos += len(b)
	return b, nil
}

// short says why a segment, of which there is b, has less than it should.
func (m *markers) short(b []byte, what string) error {
	if len(b) < m.length {
		return ErrTruncated
	}
	return fmt.Errorf("%s of a wrong length", what)
}

// until reads markers up to and including the next SOS or EOI, which it
// returns.
func (m *markers) until() (marker uint8, err error) {
	for {
		if m.pending == 0 {
			if err := m.findNext(); err != nil {
				return 0, err
			}
		}
		marker = m.pending
		if err := m.act(marker); err != nil {
			return 0, err
		}
		m.pending = 0
		if marker == mSOS || marker == mEOI {
			return marker, nil
		}
	}
}

func (m *markers) findNext() error {
	if m.started {
		return m.next()
	}
	switch {
	case len(m.data)-m.pos < 2:
		return ErrTruncated
	case m.data[m.pos] != 0xff || m.data[m.pos+1] != mSOI:
		return errors.New("no SOI marker where the image should begin")
	case m.pos == 0 && len(m.data) > 2 && m.data[2] != 0xff:
		return errors.New("no marker after SOI")
	}
	m.pending = mSOI
	m.pos += 2
	return nil
}

func (m *markers) act(marker uint8) error {
	switch {
	case marker == mSOI:
		if m.started {
			return errors.New("a second SOI marker")
		}
		m.started = true
		m.restart = 0
		m.jfif, m.adobe, m.transform = false, false, 0
		for i := range m.smallest {
			m.smallest[i], m.largest[i], m.lowest[i] = 0, 1, 5
		}
		return nil
	case marker == mEOI, marker == mTEM, marker >= mRST0 && marker <= mRST7:
		return nil
	}
	var segment func([]byte) error
	switch {
	case marker == mSOF0, marker == mSOF1:
		segment = func(b []byte) error { return m.readFrame(b, false, false) }
	case marker == mSOF2:
		segment = func(b []byte) error { return m.readFrame(b, true, false) }
	case marker == mSOF9:
		segment = func(b []byte) error { return m.readFrame(b, false, true) }
	case marker == mSOF10:
		segment = func(b []byte) error { return m.readFrame(b, true, true) }
	case marker == mDHT:
		segment = m.readHuffman
	case marker == mDAC:
		segment = m.readConditioning
	case marker == mDQT:
		segment = m.readQuantization
	case marker == mDRI:
		segment = m.readRestart
	case marker == mSOS:
		segment = m.readScan
	case marker == mAPP0:
		segment = func(b []byte) error {
			m.jfif = m.jfif || len(b) >= 14 && string(b[:5]) == "JFIF\x00"
			return nil
		}
	case marker == mAPP14:
		segment = func(b []byte) error {
			if len(b) >= 12 && string(b[:5]) == "Adobe" {
				m.adobe, m.transform = true, b[11]
			}
			return nil
		}
	case marker >= mAPP0 && marker <= mAPP15, marker == mCOM, marker == mDNL:
		segment = func([]byte) error { return nil }
	default:
		if name, ok := processes[marker]; ok {
			return fmt.Errorf("%s is not supported", name)
		}
		return fmt.Errorf("unexpected marker 0x%02x", marker)
	}
	b, err := m.payload()
	if err != nil {
		return err
	}
	// What is wrong with the beginning comes before that the end is lacking:
	// behind the image only the former is an error.
	if err := segment(b); err != nil {
		return err
	}
	if len(b) < m.length {
		return ErrTruncated
	}
	return nil
}

var processes = map[uint8]string{
	0xc3: "lossless JPEG",
	0xc5: "hierarchical JPEG",
	0xc6: "hierarchical JPEG",
	0xc7: "hierarchical JPEG",
	0xcb: "lossless JPEG with arithmetic coding",
	0xcd: "hierarchical JPEG",
	0xce: "hierarchical JPEG",
	0xcf: "hierarchical JPEG",
}

func (m *markers) readFrame(b []byte, progressive, arithmetic bool) error {
	switch {
	case len(b) < 6:
		return m.short(b, "a frame header")
	case m.frame:
		return errors.New("a second frame")
	}
	m.progressive, m.arithmetic = progressive, arithmetic
	m.height, m.width = int(b[1])<<8|int(b[2]), int(b[3])<<8|int(b[4])
	n := int(b[5])
	switch {
	case b[0] != 8:
		return fmt.Errorf("%d-bit samples are not supported, only 8-bit ones", b[0])
	case m.width == 0 || m.height == 0:
		return fmt.Errorf("its size is %d×%d", m.width, m.height)
	case m.width > maxSide || m.height > maxSide:
		return fmt.Errorf("its size is %d×%d, above %d", m.width, m.height, maxSide)
	case n != 1 && n != 3 && n != 4:
		return fmt.Errorf("%d components are not supported, only 1, 3 and 4", n)
	case m.length != 6+3*n, len(b) < m.length:
		return m.short(b, "a frame header")
	}
	for i := range n {
		c := &m.components[:n][i]
		c.id, c.h, c.v, c.quantIndex = b[6+3*i], int(b[7+3*i]>>4), int(b[7+3*i]&15), int(b[8+3*i])
		c.quantKnown = false
		if c.h < 1 || c.h > 4 || c.v < 1 || c.v > 4 {
			return fmt.Errorf("sampling factors are %d×%d, want 1 to 4", c.h, c.v)
		}
	}
	m.components = m.components[:n]
	m.frame = true
	return nil
}

func (m *markers) readScan(b []byte) error {
	if !m.frame {
		return errors.New("a scan before the frame header")
	}
	if len(b) == 0 {
		return m.short(b, "a scan header")
	}
	n := int(b[0])
	if n < 1 || n > 4 || m.length != 4+2*n {
		return errors.New("a scan header of a wrong length")
	}
	m.scan = m.scan[:0]
	for i := range n {
		if len(b) < 3+2*i {
			return ErrTruncated
		}
		id, tables := b[1+2*i], b[2+2*i]
		var c *component
		for j := range m.components {
			// An id that several components share means them in turn.
			if m.components[j].id == id && j >= len(m.scan) {
				c = &m.components[j]
				break
			}
		}
		if c == nil {
			return fmt.Errorf("a scan of component %d, which does not exist", id)
		}
		for _, other := range m.scan {
			if other == c {
				return fmt.Errorf("a scan has component %d twice", id)
			}
		}
		c.dcIndex, c.acIndex = int(tables>>4), int(tables&15)
		m.scan = append(m.scan, c)
	}
	if len(b) < m.length {
		return ErrTruncated
	}
	m.first, m.last = int(b[1+2*n]), int(b[2+2*n])
	m.high, m.low = uint(b[3+2*n]>>4), uint(b[3+2*n]&15)
	m.nextRestart = 0
	m.scans++
	return nil
}

func (m *markers) readHuffman(b []byte) error {
	for len(b) >= 17 {
		index := int(b[0])
		var t table
		n := 0
		for i := 1; i <= 16; i++ {
			t.counts[i] = b[i]
			n += int(b[i])
		}
		b = b[17:]
		if n > 256 || n > len(b) {
			return m.short(b, "a Huffman table")
		}
		copy(t.symbols[:], b[:n])
		t.defined = true
		b = b[n:]
		to := &m.dc
		if index&0x10 != 0 {
			index -= 0x10
			to = &m.ac
		}
		if index >= len(to) {
			return fmt.Errorf("Huffman table %d, want 0 to 3", index)
		}
		to[index] = t
	}
	if len(b) != 0 {
		return m.short(b, "a Huffman table")
	}
	return nil
}

func (m *markers) readQuantization(b []byte) error {
	for len(b) > 0 {
		index, wide := int(b[0]&15), b[0]>>4 != 0
		b = b[1:]
		n := 64
		if wide {
			n = 128
		}
		if len(b) < n {
			return m.short(b, "a quantization table")
		}
		if index >= len(m.quants) {
			return fmt.Errorf("quantization table %d, want 0 to 3", index)
		}
		for i := range 64 {
			v := uint16(b[i%n])
			if wide {
				v = uint16(b[2*i])<<8 | uint16(b[2*i+1])
			}
			m.quants[index][natural[i]] = v
		}
		m.quantDefined[index] = true
		b = b[n:]
	}
	return nil
}

func (m *markers) readConditioning(b []byte) error {
	for ; len(b) >= 2; b = b[2:] {
		index, v := int(b[0]), b[1]
		switch {
		case index >= 32:
			return fmt.Errorf("arithmetic conditioning table %d, want 0 to 31", index)
		case index >= 16:
			m.lowest[index-16] = v
		default:
			if v&15 > v>>4 {
				return errors.New("the arithmetic conditioning is broken")
			}
			m.smallest[index], m.largest[index] = v&15, v>>4
		}
	}
	if len(b) != 0 {
		return m.short(b, "arithmetic conditioning")
	}
	return nil
}

func (m *markers) readRestart(b []byte) error {
	if m.length != 2 || len(b) < 2 {
		return m.short(b, "a restart interval")
	}
	m.restart = int(b[0])<<8 | int(b[1])
	return nil
}

// restartMarker moves to behind the next restart marker. Where another marker
// is found it recovers as libjpeg does: a marker that is left pending means
// that the next interval counts as empty.
func (m *markers) restartMarker() error {
	if m.pending == 0 {
		if err := m.next(); err != nil {
			return err
		}
	}
	want := m.nextRestart
	m.nextRestart = (m.nextRestart + 1) & 7
	for {
		ahead := (m.pending - mRST0 - want) & 7
		switch {
		case m.pending < mSOF0: // no marker at all
		case m.pending < mRST0 || m.pending > mRST7, ahead == 1, ahead == 2:
			return nil
		case ahead == 0, ahead > 2 && ahead < 6:
			m.pending = 0
			return nil
		}
		if err := m.next(); err != nil {
			return err
		}
	}
}
