package linalg

// KthLargest returns the k-th largest of values that are numbers, 1 ≤ k ≤
// len(x), by Hoare's selection; it changes their order so that the k largest come
// first.
func KthLargest[T float32 | float64](x []T, k int) T {
	for {
		pivot := x[len(x)/2]
		i, j := 0, len(x)-1
		for i <= j {
			for x[i] > pivot {
				i++
			}
			for x[j] < pivot {
				j--
			}
			if i <= j {
				x[i], x[j] = x[j], x[i]
				i, j = i+1, j-1
			}
		}
		switch { // x[:j+1] ≥ pivot, x[i:] ≤ pivot, what is between equals it
		case k <= j+1:
			x = x[:j+1]
		case k > i:
			x, k = x[i:], k-i
		default:
			return pivot
		}
	}
}

// ArgMax returns the index of the first largest value.
func ArgMax[T Real](x []T) int {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return best
}

// Quantile returns the q-quantile of ascending values by linear interpolation.
func Quantile(ascending []float64, q float64) float64 {
	at := q * float64(len(ascending)-1)
	low := int(at)
	high := min(low+1, len(ascending)-1)
	return ascending[low] + (at-float64(low))*(ascending[high]-ascending[low])
}
