package head

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/posthoc"
)

// TestWindowsOrder: an epoch shows each row once, and those of a window come from
// as few blocks as can hold that many rows, plus two in which they begin and end.
func TestWindowsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 3000).Draw(t, "rows")
		w := windows{block: rapid.IntRange(1, 50).Draw(t, "block"), window: rapid.IntRange(1, 500).Draw(t, "window")}
		rows := make([]int, n)
		for i := range rows {
			rows[i] = i
		}
		rng := newRand(rapid.Uint64().Draw(t, "seed"))
		w.shuffle(rows, rng)
		if sorted := slices.Sorted(slices.Values(rows)); sorted[0] != 0 || sorted[n-1] != n-1 || len(slices.Compact(sorted)) != n {
			t.Fatalf("%d rows came once each of %d", len(slices.Compact(sorted)), n)
		}
		for i := range (n + w.window - 1) / w.window {
			// One of the blocks may be the short last one.
			if blocks := len(w.blocks(rows, i)); blocks > w.window/w.block+3 {
				t.Fatalf("window %d of %d rows is of %d blocks of %d", i, w.window, blocks, w.block)
			}
		}
	})
}

// TestWindowsFetchAhead: every block of an epoch is requested before its window
// begins.
func TestWindowsFetchAhead(t *testing.T) {
	data := Paged(t, Blobs(1000, 5, 3, 1), 4000) // 100 rows a window
	w := newWindows(data, 10)
	if w.window != 100 {
		t.Fatalf("a window of %d rows, want 100", w.window)
	}
	w.block = 7
	order := slices.Clone(data.Index)
	for range 2 {
		w.shuffle(order, newRand(1))
		for at := 0; at < len(order); at += 10 {
			w.fetch(order, at, 10)
			next := w.blocks(order, at/100+1)
			if done := at % 100 / 10; w.current != at/100 || !slices.Equal(w.next, next) || w.asked != (done+1)*len(next)/10 {
				t.Fatalf("at row %d %d of %d blocks are asked for in window %d", at, w.asked, len(w.next), w.current)
			}
		}
	}
}

func TestBalance(t *testing.T) {
	data := features.Rows{D: 1}
	for i := range 90 {
		y := int64(2) // class 1 is empty
		if i%10 == 0 {
			y = 0
		}
		data.Labels, data.X, data.Index = append(data.Labels, y), append(data.X, 0), append(data.Index, i)
	}
	opts := TrainOptions{Batch: 10, Balance: true}
	f := newFitting(mlpTrainer{mlpOf[float32](posthoc.MLP{{In: 1, Out: 3}}, 10)}, data, opts, newRand(1))
	seen := map[int]int{}
	for range 20 {
		f.reorder()
		perClass := map[int64]int{}
		for _, r := range f.order {
			perClass[data.Labels[r]]++
			seen[r]++
		}
		if len(f.order) != 90 || perClass[0] != 45 || perClass[2] != 45 {
			t.Fatalf("%v rows per class", perClass)
		}
	}
	if len(seen) != 90 {
		t.Errorf("%d of 90 rows were drawn in 20 epochs", len(seen))
	}
}
