package metrics

import "math"

// Reliability compares confidences with how often they are right.
type Reliability struct {
	Bins []ReliabilityBin // of equal width over [0, 1]
	// Error is the expected calibration error: the mean over all images of the
	// difference, in the image's bin, between mean confidence and share that is right.
	Error float64
	// Chance is the Error that confidences which are the probabilities show with so many
	// images, in expectation: the mean over the images of √(2v/π) of each bin, where v is the
	// sum of p(1 − p).
	Chance float64
}

// ReliabilityBin is the images whose confidences lie in one bin.
type ReliabilityBin struct {
	Confidence float64 `json:"confidence"` // mean, as is Right; NaN without images
	Right      float64 `json:"right"`
	N          int     `json:"images"`
}

// Reliable returns the reliability of confidences in [0, 1], in so many bins.
func Reliable(confidences []float64, right []bool, bins int) Reliability {
	r := Reliability{Bins: make([]ReliabilityBin, bins)}
	variance := make([]float64, bins)
	for i, c := range confidences {
		at := min(int(c*float64(bins)), bins-1)
		b := &r.Bins[at]
		variance[at] += c * (1 - c)
		b.N++
		b.Confidence += c
		if right[i] {
			b.Right++
		}
	}
	for i := range r.Bins {
		b := &r.Bins[i]
		r.Error += math.Abs(b.Confidence-b.Right) / float64(len(confidences))
		r.Chance += math.Sqrt(2*variance[i]/math.Pi) / float64(len(confidences))
		b.Confidence /= float64(b.N)
		b.Right /= float64(b.N)
	}
	return r
}
