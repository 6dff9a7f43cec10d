package features

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/npy"
)

const mostInGroup = 50

// setOf writes rows as a feature set of another program and opens it.
func setOf(t *testing.T, d int, x []float32, labels []int64) *Set {
	t.Helper()
	dir := t.TempDir()
	err := npy.WriteFile(filepath.Join(dir, "features.npy"), x, len(x)/d, d)
	if err := errors.Join(err, npy.WriteFile(filepath.Join(dir, "labels.npy"), labels, len(labels))); err != nil {
		t.Fatal(err)
	}
	set, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	return set
}

// TestReach compares with the distances of all pairs of each class, in two sets, and
// passes over copies. Where classes lie among each other, pairs of two classes bound it.
func TestReach(t *testing.T) {
	t.Run("classes apart", func(t *testing.T) { testReach(t, 10) })
	t.Run("classes alike", func(t *testing.T) { testReach(t, 0) })
}

func testReach(t *testing.T, apart float64) {
	rng := rand.New(rand.NewPCG(1, 2))
	const d = 20
	var all [][]float32
	var labels []int64
	var parts [2][]float32
	for i := range 36 {
		row := make([]float32, d)
		for j := range row {
			row[j] = float32(rng.NormFloat64() + 1)
		}
		row[i%3] += float32(apart)
		if i%10 == 9 {
			copy(row, all[i-3]) // an identical image
		}
		all, labels = append(all, row), append(labels, int64(i%3))
		parts[i/24] = append(parts[i/24], row...)
	}
	var pairs, others []float64
	for i := range all {
		for j := range i {
			if away := rowDistance(unitRow(all[i]), unitRow(all[j])); away > same && labels[i] == labels[j] {
				pairs = append(pairs, away)
			} else if labels[i] != labels[j] {
				others = append(others, away)
			}
		}
	}
	slices.Sort(pairs)
	want, least := pairs[len(pairs)/2], slices.Min(others) // of fewer than 500
	if want < least != (apart > 0) {
		t.Fatal("these classes do not show what they are to show")
	}
	want = min(want, least)
	first := setOf(t, d, parts[0], labels[:24])
	got, typical, err := Reach(t.Context(), []*Set{first, setOf(t, d, parts[1], labels[24:])})
	if err != nil || got != want || typical != pairs[len(pairs)/2] {
		t.Errorf("%g and %g, %v, want %g", got, typical, err, want)
	}
	if got, _, err := Reach(t.Context(), []*Set{setOf(t, d, all[0], labels[:1])}); got != 0 || err != nil {
		t.Errorf("of one image: %g, %v", got, err)
	}
	if got, _, err := Reach(t.Context(), nil); got != 0 || err != nil {
		t.Errorf("of nothing: %g, %v", got, err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Reach(gone, []*Set{first}); err == nil {
		t.Error("it went on after the end")
	}
}

// TestGroups: groups begin with the most urgent image, have a bound, and never mix images
// that are far apart; images without features join only their copies.
func TestGroups(t *testing.T) {
	a, b := []float32{1, 0}, []float32{0, 3}
	near := []float32{100, 1}
	got := LookAlikes([][]float32{a, b, near, nil, b, nil, a, nil}, []string{"", "", "", "x", "", "x", "", ""}, 0.01, mostInGroup)
	want := [][]int{{0, 2, 6}, {1, 4}, {3, 5}, {7}}
	if !slices.EqualFunc(got, want, func(x, y []int) bool { return slices.Equal(x, y) }) {
		t.Errorf("%v, want %v", got, want)
	}
	// Every two of a group are near: what is near to its first image alone begins another.
	between := LookAlikes([][]float32{{1, 0}, {1, 0.4}, {1, -0.4}}, make([]string, 3), 0.1, mostInGroup)
	if !slices.EqualFunc(between, [][]int{{0, 1}, {2}}, slices.Equal[[]int]) {
		t.Errorf("%v", between)
	}
	many := slices.Repeat([][]float32{a}, 2*mostInGroup+1)
	got = LookAlikes(many, make([]string, len(many)), 0.01, mostInGroup)
	if len(got) != 3 || len(got[0]) != mostInGroup || len(got[2]) != 1 {
		t.Errorf("%d groups", len(got))
	}
	// Without a reach only images of equal bytes are together.
	if got := LookAlikes([][]float32{a, near, a}, []string{"x", "y", "x"}, 0, mostInGroup); len(got) != 2 {
		t.Errorf("%v", got)
	}
}

// TestKinds: rows of four directions become four groups, the largest first, whatever begins
// them; those of too few are left out, and a cancelled context ends it.
func TestKinds(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var rows [][]float32
	kind := map[int]int{}
	for i := range 400 {
		k := []int{0, 0, 0, 0, 1, 1, 1, 2, 2, 3}[i%10]
		if k == 3 && i > 20 {
			k = 0
		}
		row := make([]float32, 16)
		for j := range row {
			row[j] = float32(rng.NormFloat64()) / 4
		}
		row[k] += 2 + float32(rng.Float64())*10 // the length says nothing
		rows, kind[i] = append(rows, row), k
	}
	at := func(i int) []float32 { return rows[i] }
	groups, err := Kinds(t.Context(), len(rows), at, .3, 3)
	if err != nil || len(groups) != 3 {
		t.Fatalf("%d groups, %v", len(groups), err)
	}
	for g, group := range groups {
		for _, i := range group {
			if kind[i] != g {
				t.Errorf("row %d of kind %d is in group %d", i, kind[i], g)
			}
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Kinds(gone, len(rows), at, .3, 3); err == nil {
		t.Error("it went on after the end")
	}
}
