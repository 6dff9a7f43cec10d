package evaluation

import "math"

// FlaggedInterval returns the interval that the share of flagged images among n new ones
// lies in with a chance of at least 95%, if they are like the calibration images and
// the threshold is the k-th smallest of m calibration scores: their number has a
// beta-binomial distribution. It is [0, 1] where there is no such threshold.
func FlaggedInterval(n, m, k int) (low, high float64) {
	if n < 1 || k < 1 || k > m {
		return 0, 1
	}
	return betaBinomial(n, float64(k), float64(m+1-k))
}

// ShareInterval returns the interval that the share of a class among n new images lies in with a
// chance of about 95%, if k of m calibration images are of it: a beta-binomial
// distribution after Jeffreys' prior. The class is counted by the labels of the
// calibration images, and by the verdicts on new ones.
func ShareInterval(n, m, k int) (low, high float64) {
	if n < 1 || m < 1 || k < 0 || k > m {
		return 0, 1
	}
	return betaBinomial(n, float64(k)+0.5, float64(m-k)+0.5)
}

// betaBinomial returns the shares of n between which 95% of a beta-binomial distribution
// lie.
func betaBinomial(n int, a, b float64) (low, high float64) {
	lgamma := func(x float64) float64 {
		v, _ := math.Lgamma(x)
		return v
	}
	N := float64(n)
	constant := lgamma(N+1) - lgamma(N+a+b) + lgamma(a+b) - lgamma(a) - lgamma(b)
	const outside = 0.025
	below, from, to := 0.0, -1, n
	for x := 0; x <= n; x++ {
		X := float64(x)
		below += math.Exp(constant + lgamma(X+a) + lgamma(N-X+b) - lgamma(X+1) - lgamma(N-X+1))
		if from < 0 && below > outside {
			from = x
		}
		if below >= 1-outside {
			to = x
			break
		}
	}
	return float64(max(from, 0)) / float64(n), float64(to) / float64(n)
}

// MeanPValueInterval returns the interval that the mean p-value of n new images lies in with a
// chance of about 95%, if they are like the m calibration images: the sum of the ranks
// is Mann and Whitney's U.
func MeanPValueInterval(n, m int) (low, high float64) {
	if n < 1 || m < 1 {
		return 0, 1
	}
	// p = (1 + #{calibration scores ≤ s}) / (m + 1)
	N, M := float64(n), float64(m)
	mean := (1 + M/2) / (M + 1)
	deviation := 1.96 * math.Sqrt((N+M+1)/(12*N*M)) * M / (M + 1)
	return max(mean-deviation, 0), min(mean+deviation, 1)
}
