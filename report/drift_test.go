package report_test

import (
	"math"
	"testing"

	"github.com/mlrbfn/mlrbfn/report"
)

// Expected values are those of scipy.stats.chisquare.
func TestShareChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		counts, sizes []int
		want          float64
	}{
		{[]int{10, 20, 30}, []int{100, 100, 100}, 10},          // chisquare([10, 20, 30])
		{[]int{5, 8, 40}, []int{50, 100, 200}, 7.358490566038}, // chisquare([5, 8, 40], 53*np.array([50, 100, 200])/350)
		{[]int{7, 0, 7}, []int{70, 0, 70}, 0},
		{[]int{0, 0}, []int{3, 4}, 0},
		{nil, nil, 0},
	} {
		if got := report.ShareChange(c.counts, c.sizes); math.Abs(got-c.want) > 1e-10 {
			t.Errorf("%d of %d: %v, want %v", c.counts, c.sizes, got, c.want)
		}
	}
}
