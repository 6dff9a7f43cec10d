package head

import (
	"math"
)

// Scale standardises a score with its mean and its standard deviation, so that
// different scores can be added.
type Scale struct{ Mean, Deviation float64 }

// ScaleOf returns the mean and the standard deviation (ddof 0) of v. Values
// that are all equal have the deviation 1.
func ScaleOf(v []float64) Scale {
	var s Scale
	for _, a := range v {
		s.Mean += a / float64(len(v))
	}
	for _, a := range v {
		s.Deviation += (a - s.Mean) * (a - s.Mean) / float64(len(v))
	}
	if s.Deviation = math.Sqrt(s.Deviation); !(s.Deviation > 1e-12*math.Abs(s.Mean)) {
		s.Deviation = 1
	}
	return s
}

// Of returns (v − mean) / deviation.
func (s Scale) Of(v float64) float64 { return (v - s.Mean) / s.Deviation }

// Valid reports whether both are finite and the deviation is positive.
func (s Scale) Valid() bool {
	return !notFinite(s.Mean) && !notFinite(s.Deviation) && s.Deviation > 0
}
