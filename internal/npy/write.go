package npy

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/x448/float16"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// Writer writes one .npy file of a shape that is known beforehand, value by
// value in C order.
type Writer[T Element] struct {
	w     io.Writer
	dtype DType
	left  int // values still to come
	block []byte
}

// NewWriter writes the header, with the bytes that numpy.save would write, and
// returns a Writer for the values. The dimensions of shape must not be negative; an
// empty shape means a scalar. The values are written unbuffered, one write for each
// call.
func NewWriter[T Element](w io.Writer, shape ...int) (*Writer[T], error) {
	return newWriter[T](w, dtypeOf[T](), shape)
}

// NewHalfWriter is NewWriter for float16. Values are rounded to the nearest one; one beyond
// ±MostHalf is an error of Write.
func NewHalfWriter(w io.Writer, shape ...int) (*Writer[float32], error) {
	return newWriter[float32](w, Float16, shape)
}

func newWriter[T Element](w io.Writer, dtype DType, shape []int) (*Writer[T], error) {
	h := Header{DType: dtype, Shape: shape}
	for _, n := range shape {
		if n < 0 {
			return nil, fmt.Errorf("npy: shape %v has a negative dimension", shape)
		}
	}
	count, err := h.count()
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(h.encode()); err != nil {
		return nil, err
	}
	return &Writer[T]{w: w, dtype: dtype, left: count}, nil
}

func dtypeOf[T Element]() DType {
	switch any(T(0)).(type) {
	case float32:
		return Float32
	case float64:
		return Float64
	default:
		return Int64
	}
}

// Write appends values. More of them than the shape has room for are an error.
func (w *Writer[T]) Write(values []T) error {
	if len(values) > w.left {
		return fmt.Errorf("npy: %d values more than the shape holds", len(values)-w.left)
	}
	w.left -= len(values)
	w.block = w.block[:0]
	for _, v := range values {
		switch v := any(v).(type) {
		case float32:
			if w.dtype != Float16 {
				w.block = binary.LittleEndian.AppendUint32(w.block, math.Float32bits(v))
				continue
			}
			h := float16.Fromfloat32(v)
			if !h.IsFinite() {
				return fmt.Errorf("the value %g: %w", v, ErrHalf)
			}
			w.block = binary.LittleEndian.AppendUint16(w.block, h.Bits())
		case float64:
			w.block = binary.LittleEndian.AppendUint64(w.block, math.Float64bits(v))
		case int64:
			w.block = binary.LittleEndian.AppendUint64(w.block, uint64(v))
		}
	}
	_, err := w.w.Write(w.block)
	return err
}

// Close fails if fewer values were written than the shape holds. It does not close
// the underlying writer.
func (w *Writer[T]) Close() error {
	if w.left > 0 {
		return fmt.Errorf("npy: %d values are missing", w.left)
	}
	return nil
}

// WriteFile writes values of the given shape to a file at path, atomically.
func WriteFile[T Element](path string, values []T, shape ...int) error {
	return disk.Write(path, func(w io.Writer) error {
		nw, err := NewWriter[T](w, shape...)
		if err != nil {
			return err
		}
		for len(values) > 0 {
			n := min(len(values), 1<<15)
			if err := nw.Write(values[:n]); err != nil {
				return err
			}
			values = values[n:]
		}
		return nw.Close()
	})
}

// MostHalf is the largest float16.
const MostHalf = 65504

// ErrHalf says that a value is no number of float16.
var ErrHalf = fmt.Errorf("it is beyond ±%d, where float16 ends", MostHalf)

// widen converts the bits of a float16, exactly.
func widen(h uint16) float32 { return float16.Frombits(h).Float32() }

// Narrow returns the bits of the float16 that is nearest to a value, the even one of
// two. Values beyond ±MostHalf become infinite, and NaN stays one.
func Narrow(v float32) uint16 { return float16.Fromfloat32(v).Bits() }

// Round rounds values to float16.
func Round(values []float32) {
	for i, v := range values {
		values[i] = widen(Narrow(v))
	}
}

// MostValue bounds the absolute values of features on disk: a square of anything larger is
// not a float32. No backbone that works gives such values.
const MostValue = 1e18

// CheckValues returns an error if a value is not finite or beyond MostValue.
func CheckValues(values []float32) error {
	for _, v := range values {
		if !(math.Abs(float64(v)) <= MostValue) {
			if f := float64(v); math.IsNaN(f) || math.IsInf(f, 0) {
				return fmt.Errorf("the value %g is not finite", v)
			}
			return fmt.Errorf("the value %g is beyond ±%g", v, MostValue)
		}
	}
	return nil
}
