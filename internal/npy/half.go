package npy

import (
	"fmt"

	"github.com/x448/float16"
)

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
