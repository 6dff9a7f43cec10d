// Package npy reads, maps and writes NumPy's .npy files, versions 1 to 3, of
// the types that feature sets and scores are made of.
//
// The format is that of numpy.lib.format: a magic string, a version, the length
// of a header, the header (a Python dict literal with the keys descr,
// fortran_order and shape), then the values.
package npy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// DType is a type of values as NumPy's descr names it, always little-endian.
type DType string

// The types that this package reads; it writes all but Int32.
const (
	Float16 DType = "<f2"
	Float32 DType = "<f4"
	Float64 DType = "<f8"
	Int32   DType = "<i4"
	Int64   DType = "<i8"
)

var dtypes = []DType{Float16, Float32, Float64, Int32, Int64}

// size returns the bytes of one value: the digit that ends the name.
func (d DType) size() int { return int(d[2] - '0') }

// Header says what an .npy file holds. The values are in C order.
type Header struct {
	DType DType
	Shape []int // empty for a scalar
}

const (
	magic = "\x93NUMPY"
	// maxHeader bounds the header that is read. A header of ours has 118 bytes.
	maxHeader = 64 << 10
)

// ErrFormat is wrapped by every error about the content of a file, as opposed
// to one about reading it.
var ErrFormat = errors.New("not an .npy file that can be read")

func formatErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrFormat}, args...)...)
}

// readHeader reads an .npy header and leaves r at the first value. It refuses
// a header above 64 KiB, types other than those of this package, Fortran
// order of more than one dimension, and shapes whose size in bytes does not fit
// in an int. It takes no memory for values. It also returns where they begin.
func readHeader(r io.Reader) (Header, int64, error) {
	var fixed [12]byte
	if _, err := io.ReadFull(r, fixed[:8]); err != nil {
		return Header{}, 0, cutShort(err)
	}
	if string(fixed[:6]) != magic {
		return Header{}, 0, formatErrorf("it does not begin with \\x93NUMPY")
	}
	start := 10
	switch fixed[6] {
	case 1:
	case 2, 3:
		start = 12
	default:
		return Header{}, 0, formatErrorf("version %d.%d is unknown", fixed[6], fixed[7])
	}
	if _, err := io.ReadFull(r, fixed[8:start]); err != nil {
		return Header{}, 0, cutShort(err)
	}
	// In version 1 the last two bytes are still zero: one reading serves both.
	length := binary.LittleEndian.Uint32(fixed[8:])
	if length > maxHeader {
		return Header{}, 0, formatErrorf("its header has %d bytes, more than %d", length, maxHeader)
	}
	text := make([]byte, length)
	if _, err := io.ReadFull(r, text); err != nil {
		return Header{}, 0, cutShort(err)
	}
	h, err := parseHeader(string(text))
	return h, int64(start) + int64(length), err
}

func cutShort(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return formatErrorf("its header is cut short")
	}
	return err
}

// parseHeader reads the dict literal. NumPy writes it by repr, so the little
// of Python's grammar that repr uses is enough.
func parseHeader(text string) (Header, error) {
	var (
		h       Header
		fortran bool
		seen    []string
	)
	p := parser{rest: text}
	p.expect("{")
	for !p.failed && !p.accept("}") {
		key := p.quoted()
		if slices.Contains(seen, key) {
			return Header{}, formatErrorf("its header names %q twice", key)
		}
		seen = append(seen, key)
		p.expect(":")
		switch key {
		case "descr":
			h.DType = DType(p.quoted())
		case "fortran_order":
			fortran = p.accept("True")
			if !fortran {
				p.expect("False")
			}
		case "shape":
			h.Shape = p.tuple()
		default:
			p.failed = true
		}
		if !p.accept(",") {
			p.expect("}")
			break
		}
	}
	if p.failed || strings.TrimSpace(p.rest) != "" {
		return Header{}, formatErrorf("its header %.100q is not what NumPy writes for a plain array", text)
	}
	if len(seen) != 3 {
		return Header{}, formatErrorf("its header lacks one of descr, fortran_order and shape")
	}
	if !slices.Contains(dtypes, h.DType) {
		return Header{}, formatErrorf("its type is %q, want one of %q", h.DType, dtypes)
	}
	if fortran && len(h.Shape) > 1 {
		return Header{}, formatErrorf("it is in Fortran order; save numpy.ascontiguousarray of it")
	}
	if _, err := h.count(); err != nil {
		return Header{}, err
	}
	return h, nil
}

// count returns the number of values. Their size in bytes fits in an int, even if
// dimensions of 0 are left out of the product.
func (h Header) count() (int, error) {
	if len(h.Shape) > 64 {
		return 0, formatErrorf("it has %d dimensions, NumPy allows 64", len(h.Shape))
	}
	bytes, count := h.DType.size(), 1
	for _, n := range h.Shape {
		if n > math.MaxInt/bytes {
			return 0, formatErrorf("its shape %v is too large", h.Shape)
		}
		bytes *= max(n, 1)
		count *= n
	}
	return count, nil
}

// parser consumes a header from the left. After a failure every method returns
// zero values and failed stays set.
type parser struct {
	rest   string
	failed bool
}

// accept eats token, after any white space, if it comes next.
func (p *parser) accept(token string) bool {
	rest, ok := strings.CutPrefix(strings.TrimLeft(p.rest, " \t\n"), token)
	if ok && !p.failed {
		p.rest = rest
		return true
	}
	return false
}

func (p *parser) expect(token string) {
	if !p.accept(token) {
		p.failed = true
	}
}

// until consumes up to and including the next token and returns the text before it.
func (p *parser) until(token string) string {
	before, rest, ok := strings.Cut(p.rest, token)
	if !ok || p.failed {
		p.failed = true
		return ""
	}
	p.rest = rest
	return before
}

func (p *parser) quoted() string {
	if p.accept(`"`) {
		return p.until(`"`)
	}
	p.expect("'")
	return p.until("'")
}

// tuple consumes (), (n,) or (n, m, …).
func (p *parser) tuple() []int {
	p.expect("(")
	inside := p.until(")")
	fields := strings.Split(inside, ",")
	// A tuple of one ends in a comma, of more may; (5) is a number in Python.
	if last := len(fields) - 1; strings.TrimSpace(fields[last]) == "" {
		fields = fields[:last]
	} else if last == 0 {
		p.failed = true
	}
	shape := make([]int, 0, len(fields))
	for _, field := range fields {
		n, err := strconv.ParseUint(strings.TrimSpace(field), 10, strconv.IntSize-1)
		if err != nil {
			p.failed = true
		}
		shape = append(shape, int(n))
	}
	return shape
}

// encode returns the header's bytes as numpy.save writes them: version 1, room
// for the first dimension to grow to 20 digits, padded to a multiple of 64.
func (h Header) encode() []byte {
	var shape strings.Builder
	for i, n := range h.Shape {
		if i > 0 {
			shape.WriteByte(' ')
		}
		fmt.Fprintf(&shape, "%d,", n)
	}
	inside := shape.String()
	growth := 0
	if len(h.Shape) > 0 {
		growth = 21 - len(strconv.Itoa(h.Shape[0]))
	}
	if len(h.Shape) > 1 {
		inside = strings.TrimSuffix(inside, ",")
	}
	text := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }%*s", h.DType, inside, growth, "")
	text += strings.Repeat(" ", 63-(len(text)+10)%64) + "\n"
	out := append([]byte(magic), 1, 0)
	out = binary.LittleEndian.AppendUint16(out, uint16(len(text)))
	return append(out, text...)
}
