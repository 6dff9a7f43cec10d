package evaluation

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/spill"
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
		rows := features.All(x, d, make([]int64, n))
		var all []pair
		for i, memory := range []int64{1 << 30, 1 << 10, 1 << 10} { // in memory, in files, and in groups
			if i == 2 {
				defer func(was int) { groupRows = was }(groupRows)
				groupRows = 1000
				slices.SortFunc(all, inOrder)
			}
			space := spill.New(memory, t.TempDir(), 1)
			var found []pair
			err := pairs(t.Context(), rows, .95, space, 1<<30, 0, func(some []pair, _ int) error {
				found = append(found, some...)
				return nil
			})
			if err := errors.Join(err, space.Close()); err != nil {
				t.Fatal(err)
			}
			if i == 2 {
				slices.SortFunc(found, inOrder)
			}
			if all != nil && !slices.Equal(all, found) {
				t.Errorf("%d rows: other pairs are found in files", n)
			}
			all = found
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
		twice := map[[2]int]bool{}
		for _, p := range all {
			if p.a >= p.b || twice[[2]int{p.a, p.b}] {
				t.Errorf("%d rows: %d and %d are not in order, or came twice", n, p.a, p.b)
			}
			twice[[2]int{p.a, p.b}] = true
		}
	}
}

func inOrder(p, q pair) int { return cmp.Or(p.a-q.a, p.b-q.b, cmp.Compare(p.cosine, q.cosine)) }
