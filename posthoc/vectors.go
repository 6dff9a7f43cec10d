package posthoc

import (
	"math"
	"slices"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/internal/linalg"
)

// normaliseRows divides each row by its length; a row of zeros stays one.
func normaliseRows(x []float64, d int) {
	for row := range slices.Chunk(x, d) {
		linalg.Normalise(row)
	}
}

// subtract subtracts the mean [D] from each of the rows x [·, D].
func subtract(x, mean []float64) {
	for row := range slices.Chunk(x, len(mean)) {
		for j, mu := range mean {
			row[j] -= mu
		}
	}
}

// norm returns ‖x‖₂. Squares of float32 values neither overflow nor underflow in
// float64.
func norm[T kernels.Real](x []T) float64 {
	return math.Sqrt(kernels.Dot(x, x))
}

func l1(x []float64) float64 {
	var sum float64
	for _, v := range x {
		sum += math.Abs(v)
	}
	return sum
}

func dot(a, b []float64) float64 {
	var sum float64
	for i, v := range a {
		sum += v * b[i]
	}
	return sum
}

func sum(x []float64) float64 {
	var sum float64
	for _, v := range x {
		sum += v
	}
	return sum
}

func add(sum []float64, row []float32) {
	for j, v := range row {
		sum[j] += float64(v)
	}
}

func distance(a, b []float64) float64 {
	var sum float64
	for i, v := range a {
		sum += (v - b[i]) * (v - b[i])
	}
	return math.Sqrt(sum)
}

// squaredDistance returns ‖a − b‖².
func squaredDistance(a, b []float64) float64 {
	var sums [4]float64 // several sums, for speed
	for len(a) >= 4 && len(b) >= 4 {
		v, w, x, y := a[0]-b[0], a[1]-b[1], a[2]-b[2], a[3]-b[3]
		sums[0] += v * v
		sums[1] += w * w
		sums[2] += x * x
		sums[3] += y * y
		a, b = a[4:], b[4:]
	}
	for i, v := range a {
		sums[0] += (v - b[i]) * (v - b[i])
	}
	return sums[0] + sums[1] + sums[2] + sums[3]
}

// over returns a/b, and 0 where b is 0.
func over(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func finite(v float64) bool { return v-v == 0 }

// argmax returns the index of the first largest value.
func argmax(x []float64) int {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return best
}
