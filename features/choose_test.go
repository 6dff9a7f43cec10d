package features_test

import (
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
)

// TestSpread: the rows of a large set come class by class.
func TestSpread(t *testing.T) {
	const mostRows = 1000
	rows := make([]int, 2*mostRows+5)
	for i := range rows {
		rows[i] = i
	}
	got := features.Spread(rows, mostRows)
	if len(got) != mostRows || got[0] != 0 || got[mostRows-1] < 2*mostRows || !slices.IsSorted(got) {
		t.Errorf("%d rows from %d to %d", len(got), got[0], got[len(got)-1])
	}
	if got := features.Spread(rows[:7], mostRows); !slices.Equal(got, rows[:7]) {
		t.Errorf("of 7 rows: %v", got)
	}
}

func TestEvery(t *testing.T) {
	for n, want := range map[int][]int{9: {3, 4, 5, 6, 7}, 5: {3, 4, 5, 6, 7}, 4: {3, 5, 7}, 2: {3, 6}} {
		if got := features.Every([]int{3, 4, 5, 6, 7}, n); !slices.Equal(got, want) {
			t.Errorf("at most %d: %v", n, got)
		}
	}
}
