package npy

import (
	"fmt"
	"math"
)

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
