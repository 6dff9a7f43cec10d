package inspection

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/dataset"
)

// TestPairs: rows that differ little are found among many, whether all pairs are
// compared or only those of near cells.
func TestPairs(t *testing.T) {
	const d = 24
	for _, n := range []int{300, 2*cellRows + 100} {
		random := rand.New(rand.NewPCG(1, uint64(n)))
		x := make([]float32, n*d)
		for i := range x {
			x[i] = float32(random.NormFloat64())
		}
		var want [][2]int
		for i := range 50 {
			a, b := i, n-1-i
			for j := range d {
				x[b*d+j] = 2*x[a*d+j] + .05*float32(random.NormFloat64()) // length does not count
			}
			want = append(want, [2]int{a, b})
		}
		rows := dataset.All(x, d, make([]int64, n))
		all, err := pairs(t.Context(), rows, .95, 1<<30, 0, func(int) {})
		if err != nil {
			t.Fatal(err)
		}
		missed := 0
		for _, w := range want {
			if !slices.ContainsFunc(all, func(p pair) bool { return p.a == w[0] && p.b == w[1] && p.cosine > .99 }) {
				missed++
			}
		}
		if missed > 0 || len(all) > 60 {
			t.Errorf("%d rows: %d of %d pairs were missed, %d found", n, missed, len(want), len(all))
		}
		if !slices.IsSortedFunc(all, func(p, q pair) int { return p.a - q.a }) {
			t.Errorf("%d rows: pairs are not in order", n)
		}
	}
}
