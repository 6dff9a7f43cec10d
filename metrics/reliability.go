package metrics

import "math"

// Reliability compares confidences with how often they are right.
type Reliability struct {
	Bins []ReliabilityBin // of equal width over [0, 1]
	// Error is the expected calibration error: the mean over all images of the
	// difference, in the image's bin, between mean confidence and share that is right.
	Error float64
}

// ReliabilityBin is the images whose confidences lie in one bin.
type ReliabilityBin struct {
	N                 int
	Confidence, Right float64 // means; NaN without images
}

// Reliable returns the reliability of confidences in [0, 1], in so many bins.
func Reliable(confidences []float64, right []bool, bins int) Reliability {
	r := Reliability{Bins: make([]ReliabilityBin, bins)}
	for i, c := range confidences {
		b := &r.Bins[min(int(c*float64(bins)), bins-1)]
		b.N++
		b.Confidence += c
		if right[i] {
			b.Right++
		}
	}
	for i := range r.Bins {
		b := &r.Bins[i]
		r.Error += math.Abs(b.Confidence-b.Right) / float64(len(confidences))
		b.Confidence /= float64(b.N)
		b.Right /= float64(b.N)
	}
	return r
}
