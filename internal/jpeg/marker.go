package jpeg

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// The second bytes of markers (T.81, table B.1).
const (
	mSOF0  = 0xc0 // baseline
	mSOF1  = 0xc1 // extended sequential
	mSOF2  = 0xc2 // progressive
	mSOF3  = 0xc3 // lossless
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

// ErrTruncated is wrapped by the error of Decode and DecodeConfig for a file that
// ends too early.
var ErrTruncated = errors.New("the file is cut short")

// table is a Huffman table as stored in a file: the number of codes of each length,
// and their symbols.
type table struct {
	counts  [17]uint8
	symbols [256]uint8
	defined bool
}

func (t *table) size() (n int) {
	for _, count := range t.counts {
		n += int(count)
	}
	return n
}

// markers reads the parts of a file between the entropy-coded segments.
type markers struct {
	data []byte
	pos  int
	// pending is a marker that was found but not processed yet, or 0.
	pending uint8

	started, frame bool // SOI, SOF seen
	progressive    bool
	arithmetic     bool
	predicted      bool // lossless
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
	for {
		at := bytes.IndexByte(m.data[m.pos:], 0xff)
		if at < 0 || m.pos+at+1 == len(m.data) {
			m.pos = len(m.data)
			return ErrTruncated
		}
		m.pos += at + 1
		if code := m.data[m.pos]; code != 0 && code != 0xff {
			m.pending = code
			m.pos++
			return nil
		}
	}
}

// segment is the data after a marker: the bytes that the file has, and how many
// more the segment claims to have, which may be negative.
type segment struct {
	b    []byte
	left int
	what string
}

// take returns the next n bytes.
func (s *segment) take(n int) ([]byte, error) {
	switch {
	case n > s.left:
		return nil, s.wrong()
	case n > len(s.b):
		return nil, ErrTruncated
	}
	b := s.b[:n]
	s.b, s.left = s.b[n:], s.left-n
	return b, nil
}

func (s *segment) wrong() error { return fmt.Errorf("%s of a wrong length", s.what) }

// segment reads the segment at pos and moves pos to its end.
func (m *markers) segment(what string, read func(*segment) error) error {
	if len(m.data)-m.pos < 2 {
		return ErrTruncated
	}
	s := segment{what: what, left: int(m.data[m.pos])<<8 | int(m.data[m.pos+1]) - 2}
	m.pos += 2
	n := max(s.left, 0)
	missing := n > len(m.data)-m.pos
	n = min(n, len(m.data)-m.pos)
	s.b = m.data[m.pos:][:n]
	m.pos += n
	// An error in the beginning has priority over a missing end: after the image,
	// only the former is an error.
	if err := read(&s); err != nil {
		return err
	}
	if missing {
		return ErrTruncated
	}
	return nil
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
	isFrame := marker == mSOF0 || marker == mSOF1 || marker == mSOF2 || marker == mSOF3 || marker == mSOF9 || marker == mSOF10
	switch {
	case isFrame && m.frame:
		return errors.New("a second frame")
	case isFrame:
		m.progressive = marker == mSOF2 || marker == mSOF10
		m.arithmetic = marker >= mSOF9
		m.predicted = marker == mSOF3
		return m.segment("a frame header", m.readFrame)
	case marker == mDHT:
		return m.segment("a Huffman table", m.readHuffman)
	case marker == mDAC:
		return m.segment("arithmetic conditioning", m.readConditioning)
	case marker == mDQT:
		return m.segment("a quantization table", m.readQuantization)
	case marker == mDRI:
		return m.segment("a restart interval", m.readRestart)
	case marker == mSOS:
		return m.segment("a scan header", m.readScan)
	case marker >= mAPP0 && marker <= mAPP15, marker == mCOM, marker == mDNL:
		return m.segment("", func(s *segment) error {
			switch {
			case marker == mAPP0 && len(s.b) >= 14 && string(s.b[:5]) == "JFIF\x00":
				m.jfif = true
			case marker == mAPP14 && len(s.b) >= 12 && string(s.b[:5]) == "Adobe":
				m.adobe, m.transform = true, s.b[11]
			}
			return nil
		})
	}
	if name, ok := processes[marker]; ok {
		return fmt.Errorf("%s is not supported", name)
	}
	return fmt.Errorf("unexpected marker 0x%02x", marker)
}

var processes = map[uint8]string{
	0xc5: "hierarchical JPEG",
	0xc6: "hierarchical JPEG",
	0xc7: "hierarchical JPEG",
	0xcb: "lossless JPEG with arithmetic coding",
	0xcd: "hierarchical JPEG",
	0xce: "hierarchical JPEG",
	0xcf: "hierarchical JPEG",
}

func (m *markers) readFrame(s *segment) error {
	b, err := s.take(6)
	if err != nil {
		return err
	}
	m.height, m.width = int(b[1])<<8|int(b[2]), int(b[3])<<8|int(b[4])
	n := int(b[5])
	switch {
	case b[0] != 8:
		return fmt.Errorf("%d-bit samples are not supported, only 8-bit ones", b[0])
	case m.width == 0 || m.height == 0:
		return fmt.Errorf("its size is %d×%d", m.width, m.height)
	case m.width > maxSide || m.height > maxSide:
		return fmt.Errorf("its size is %d×%d, above %d", m.width, m.height, maxSide)
	case n < 1 || n > 4:
		return fmt.Errorf("%d components are not supported, only 1, 3 and 4", n)
	case s.left != 3*n:
		return s.wrong()
	}
	m.components = m.components[:n]
	for i := range m.components {
		if b, err = s.take(3); err != nil {
			return err
		}
		c := &m.components[i]
		c.id, c.h, c.v, c.quantIndex = b[0], int(b[1]>>4), int(b[1]&15), int(b[2])
		c.quantKnown = false
		if c.h < 1 || c.h > 4 || c.v < 1 || c.v > 4 {
			return fmt.Errorf("sampling factors are %d×%d, want 1 to 4", c.h, c.v)
		}
	}
	m.frame = true
	return nil
}

func (m *markers) readScan(s *segment) error {
	if !m.frame {
		return errors.New("a scan before the frame header")
	}
	b, err := s.take(1)
	if err != nil {
		return err
	}
	n := int(b[0])
	if n < 1 || n > 4 || s.left != 2*n+3 {
		return s.wrong()
	}
	m.scan = m.scan[:0]
	for range n {
		if b, err = s.take(2); err != nil {
			return err
		}
		var c *component
		for j := len(m.scan); j < len(m.components) && c == nil; j++ {
			// An id that several components share means each of them, in order.
			if m.components[j].id == b[0] {
				c = &m.components[j]
			}
		}
		if c == nil || slices.Contains(m.scan, c) {
			return fmt.Errorf("a scan of component %d, which does not exist or was read before", b[0])
		}
		c.dcIndex, c.acIndex = int(b[1]>>4), int(b[1]&15)
		m.scan = append(m.scan, c)
	}
	if b, err = s.take(3); err != nil {
		return err
	}
	m.first, m.last = int(b[0]), int(b[1])
	m.high, m.low = uint(b[2]>>4), uint(b[2]&15)
	m.nextRestart = 0
	m.scans++
	return nil
}

func (m *markers) readHuffman(s *segment) error {
	for s.left > 16 {
		b, err := s.take(17)
		if err != nil {
			return err
		}
		t := table{counts: [17]uint8(b), defined: true}
		t.counts[0] = 0
		n := t.size()
		if n > len(t.symbols) {
			return errors.New("a Huffman table is broken")
		}
		symbols, err := s.take(n)
		if err != nil {
			return err
		}
		copy(t.symbols[:], symbols)
		switch index := b[0]; {
		case index < 4:
			m.dc[index] = t
		case index >= 16 && index < 16+4:
			m.ac[index-16] = t
		default:
			return fmt.Errorf("a Huffman table %d, want 0 to 3 or 16 to 19", index)
		}
	}
	if s.left != 0 {
		return s.wrong()
	}
	return nil
}

func (m *markers) readQuantization(s *segment) error {
	for s.left > 0 {
		b, err := s.take(1)
		if err != nil {
			return err
		}
		index, size := int(b[0]&15), 1
		if b[0]>>4 != 0 {
			size = 2
		}
		if index >= len(m.quants) {
			return fmt.Errorf("quantization table %d, want 0 to 3", index)
		}
		if b, err = s.take(64 * size); err != nil {
			return err
		}
		for i := range 64 {
			v := uint16(b[i*size])
			if size == 2 {
				v = v<<8 | uint16(b[i*size+1])
			}
			m.quants[index][natural[i]] = v
		}
		m.quantDefined[index] = true
	}
	if s.left != 0 {
		return s.wrong()
	}
	return nil
}

func (m *markers) readConditioning(s *segment) error {
	for s.left > 0 {
		b, err := s.take(2)
		if err != nil {
			return err
		}
		switch index, v := b[0], b[1]; {
		case index >= 32:
			return fmt.Errorf("arithmetic conditioning table %d, want 0 to 31", index)
		case index >= 16:
			m.lowest[index-16] = v
		case v&15 > v>>4:
			return errors.New("arithmetic conditioning is broken")
		default:
			m.smallest[index], m.largest[index] = v&15, v>>4
		}
	}
	if s.left != 0 {
		return s.wrong()
	}
	return nil
}

func (m *markers) readRestart(s *segment) error {
	if s.left != 2 {
		return s.wrong()
	}
	b, err := s.take(2)
	if err != nil {
		return err
	}
	m.restart = int(b[0])<<8 | int(b[1])
	return nil
}

// restartMarker moves pos after the next restart marker. If it finds another
// marker, it recovers as libjpeg does: if the marker stays pending, the next
// interval counts as empty.
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
