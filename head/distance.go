package head

import (
	"math"

	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

// norm is the k of the distance ‖x−c‖_k^k = Σ_j |x_j−c_j|^k, k ≥ 1.
type norm float64

// power returns |a|^k.
func (k norm) power(a float64) float64 {
	a = math.Abs(a)
	switch k {
	case 1:
		return a
	case 2:
		return a * a
	case 3:
		return a * a * a
	}
	return math.Pow(a, float64(k))
}

// slope returns d|a|^k/da = k·|a|^(k−1)·sign(a), and, like torch.cdist, 0 at a = 0
// for k = 1.
func (k norm) slope(a float64) float64 {
	switch {
	case a == 0:
		return 0
	case k == 1:
		return math.Copysign(1, a)
	case k == 2:
		return 2 * a
	case k == 3:
		return 3 * a * math.Abs(a)
	}
	return math.Copysign(float64(k)*math.Pow(math.Abs(a), float64(k)-1), a)
}

// distance returns ‖x−c‖_k^k, summed term by term. Unlike the expansion of the
// square, this is exact near zero.
func distance[T kernels.Real](k norm, x, c []T) T {
	c = c[:len(x)]
	var sum T
	switch k {
	case 1:
		for j, v := range x {
			sum += max(v-c[j], c[j]-v)
		}
	case 2:
		for j, v := range x {
			e := v - c[j]
			sum += e * e
		}
	default:
		for j, v := range x {
			sum += T(k.power(float64(v - c[j])))
		}
	}
	return sum
}
