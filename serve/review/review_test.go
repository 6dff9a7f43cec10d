package review

import (
	"context"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"mlrbfn/features"
	"mlrbfn/internal/npy"
)

// setOf writes rows as a feature set of another program and opens it.
func setOf(t *testing.T, d int, x []float32) *features.Set {
	t.Helper()
	dir := t.TempDir()
	if err := npy.WriteFile(filepath.Join(dir, "features.npy"), x, len(x)/d, d); err != nil {
		t.Fatal(err)
	}
	set, err := features.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	return set
}

// TestReach compares with a comparison of all pairs, in two sets, and passes over copies.
func TestReach(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const d = 20
	var all [][]float32
	var parts [2][]float32
	for i := range 300 {
		row := make([]float32, d)
		for j := range row {
			row[j] = float32(rng.NormFloat64() + 1)
		}
		if i%10 == 9 {
			copy(row, all[i-1]) // an identical image
		}
		all = append(all, row)
		parts[i/200] = append(parts[i/200], row...)
	}
	var nearest []float64
	for i := range all {
		best := math.Inf(1)
		for j := range all {
			if away := Distance(Unit(all[i]), Unit(all[j])); away > same && i != j {
				best = min(best, away)
			}
		}
		nearest = append(nearest, best)
	}
	slices.Sort(nearest)
	want := nearest[int(nearShare*float64(len(nearest)-1))]
	got, err := Reach(t.Context(), []*features.Set{setOf(t, d, parts[0]), setOf(t, d, parts[1])})
	if err != nil || math.Abs(got-want) > 1e-5 {
		t.Errorf("%g, %v, want %g", got, err, want)
	}
	if got, err := Reach(t.Context(), nil); got != 0 || err != nil {
		t.Errorf("of nothing: %g, %v", got, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Reach(gone, []*features.Set{setOf(t, d, parts[0])}); err == nil {
		t.Error("it went on after the end")
	}
}

// TestGroups: groups begin with the most urgent image, have a bound, and never mix images
// that are far apart; images without features join only their copies.
func TestGroups(t *testing.T) {
	a, b := []float32{1, 0}, []float32{0, 3}
	near := []float32{100, 1}
	got := Groups([][]float32{a, b, near, nil, b, nil, a, nil}, []string{"", "", "", "x", "", "x", "", ""}, 0.01)
	want := [][]int{{0, 2, 6}, {1, 4}, {3, 5}, {7}}
	if !slices.EqualFunc(got, want, func(x, y []int) bool { return slices.Equal(x, y) }) {
		t.Errorf("%v, want %v", got, want)
	}
	many := slices.Repeat([][]float32{a}, 2*MostInGroup+1)
	got = Groups(many, make([]string, len(many)), 0.01)
	if len(got) != 3 || len(got[0]) != MostInGroup || len(got[2]) != 1 {
		t.Errorf("%d groups", len(got))
	}
	// Without a reach only images of equal bytes are together.
	if got := Groups([][]float32{a, near, a}, []string{"x", "y", "x"}, 0); len(got) != 2 {
		t.Errorf("%v", got)
	}
}
