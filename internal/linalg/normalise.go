package linalg

import "math"

// Normalise divides a row by its length. A row of zeros does not change.
func Normalise(row []float64) {
	// The bits of numbers that are not negative are in the order of the numbers,
	// with NaN above all, and are compared faster.
	var most uint64
	for _, v := range row {
		most = max(most, math.Float64bits(v)&^(1<<63))
	}
	largest := math.Float64frombits(most)
	if largest == 0 {
		return
	}
	var sum float64 // of scaled squares, which neither overflow nor underflow
	for _, v := range row {
		sum += (v / largest) * (v / largest)
	}
	length := largest * math.Sqrt(sum)
	for j := range row {
		row[j] /= length
	}
}
