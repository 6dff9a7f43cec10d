package npy

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// widen converts the bits of a float16, exactly.
func widen(h uint16) float32 {
	sign, exponent, fraction := uint32(h&0x8000)<<16, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exponent {
	case 0: // zero and subnormal numbers: a multiple of 2⁻²⁴
		v := float32(fraction) * 0x1p-24
		return math.Float32frombits(math.Float32bits(v) | sign)
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}

func widenAll(dst []float32, src []uint16) {
	for i, h := range src {
		dst[i] = widen(h)
	}
}

// MostHalf is the largest float16.
const MostHalf = 65504

// Narrow returns the bits of the float16 that is nearest to a value, the even one of
// two. Values beyond ±MostHalf become infinite, and NaN stays one.
func Narrow(v float32) uint16 {
	bits := math.Float32bits(v)
	sign, magnitude := uint16(bits>>16&0x8000), bits&0x7fffffff
	switch {
	case magnitude > 0x7f800000:
		return sign | 0x7e00
	case magnitude >= 0x477ff000: // 65520, halfway between MostHalf and what would follow
		return sign | 0x7c00
	case magnitude < 0x38800000: // below 2⁻¹⁴, where they are multiples of 2⁻²⁴
		return sign | uint16(math.RoundToEven(float64(math.Float32frombits(magnitude))*0x1p24))
	}
	magnitude += 0xfff + magnitude>>13&1 // may carry into the exponent, as it should
	return sign | uint16((magnitude-112<<23)>>13)
}

// ErrHalf says that a value is no number of float16.
var ErrHalf = fmt.Errorf("it is beyond ±%d, where float16 ends", MostHalf)

// HalfWriter writes one .npy file of float16; see [Writer].
type HalfWriter struct {
	w     io.Writer
	left  int
	block []byte
}

// NewHalfWriter writes the header; see [NewWriter].
func NewHalfWriter(w io.Writer, shape ...int) (*HalfWriter, error) {
	h := Header{DType: Float16, Shape: shape}
	count, err := h.count()
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(h.encode()); err != nil {
		return nil, err
	}
	return &HalfWriter{w: w, left: count}, nil
}

// Write appends values, rounded to the nearest float16. A value beyond ±MostHalf is
// an error.
func (w *HalfWriter) Write(values []float32) error {
	if len(values) > w.left {
		return fmt.Errorf("npy: %d values more than the shape holds", len(values)-w.left)
	}
	w.left -= len(values)
	w.block = w.block[:0]
	for _, v := range values {
		h := Narrow(v)
		if h&0x7c00 == 0x7c00 {
			return fmt.Errorf("the value %g: %w", v, ErrHalf)
		}
		w.block = binary.LittleEndian.AppendUint16(w.block, h)
	}
	_, err := w.w.Write(w.block)
	return err
}

// Close fails if values are missing.
func (w *HalfWriter) Close() error {
	if w.left > 0 {
		return fmt.Errorf("npy: %d values are missing", w.left)
	}
	return nil
}

// Round rounds values to float16.
func Round(values []float32) {
	for i, v := range values {
		values[i] = widen(Narrow(v))
	}
}
