package head

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"mlrbfn/internal/spill"
)

// paged puts the rows of data into a file of which so many bytes are to be in
// memory at a time.
func paged(t *testing.T, data Data, memory int64) Data {
	space := spill.New(memory, t.TempDir(), 1)
	m, err := space.Matrix(len(data.Labels), data.D)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.Write(0, data.X), m.Done()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(m.Close(), space.Close()); err != nil {
			t.Error(err)
		}
	})
	data.X, data.Pages = m.X, m
	return data
}

// TestWindowsOrder: an epoch shows each row once, and those of a window come
// from as few blocks as hold so many rows, and two more that they begin and end in.
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

// TestWindowsFetchAhead: every block of an epoch is asked for before the window
// begins that it is read in.
func TestWindowsFetchAhead(t *testing.T) {
	data := paged(t, blobs(1000, 5, 3, 1), 4000) // 100 rows a window
	w := newWindows(data, 10)
	if w.window != 100 {
		t.Fatalf("a window of %d rows, want 100", w.window)
	}
	w.block = 7
	order := slices.Clone(data.Rows)
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

// TestTrainPaged: of rows in a file the same seed gives the same head to the bit,
// whether or not it was interrupted, and with whatever memory it goes on.
func TestTrainPaged(t *testing.T) {
	data, val := blobs(900, 6, 3, 1), blobs(90, 6, 3, 2)
	for _, open := range []bool{false, true} {
		cfg := Config{Layers: 2, Centroids: 6, Open: open}
		opts := TrainOptions{Epochs: 4, Batch: 16, Seed: 3}
		train := func(ctx context.Context, memory int64, opts TrainOptions) (*MLRBFN, error) {
			var space *spill.Space
			own := data
			if memory > 0 {
				own = paged(t, data, memory)
				space = spill.New(memory, t.TempDir(), 1)
				defer space.Close()
			}
			p, err := Prepare(ctx, cfg, own, val, 3, space)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			m, _, err := p.Train(ctx, opts)
			return m, err
		}
		run := func(memory int64, opts TrainOptions) []byte {
			m, err := train(t.Context(), memory, opts)
			if err != nil {
				t.Fatal(err)
			}
			return bytesOf(m)
		}
		whole := run(0, opts)
		const small, all = 6000, 900 * 6 * 4 // of which the rows and one window
		small1 := run(small, opts)
		if !bytes.Equal(small1, run(small, opts)) {
			t.Errorf("open %v: the same windows gave two heads", open)
		}
		if bytes.Equal(small1, whole) {
			t.Errorf("open %v: windows changed nothing", open)
		}
		ctx, cancel := context.WithCancel(t.Context())
		interrupted := opts
		interrupted.Checkpoint = func(epochs int, _ func() *State) error {
			if epochs == 2 {
				cancel()
			}
			return nil
		}
		if o := opts; open {
			if o.Window = -1; !bytes.Equal(whole, run(small, o)) {
				t.Error("all rows shuffled together gave another head where they are in a file")
			}
		}
		var stopped *StoppedError
		if _, err := train(ctx, small, interrupted); !errors.As(err, &stopped) || stopped.State.Window == 0 {
			t.Fatalf("open %v: interrupted with %v", open, err)
		}
		for _, memory := range []int64{small, small / 2, 2 * all} {
			// As a head does that had not begun when others were interrupted.
			begun := opts
			begun.Window = stopped.State.Window
			if !bytes.Equal(small1, run(memory, begun)) {
				t.Errorf("open %v: the same windows with %d bytes gave another head", open, memory)
			}
			resumed := opts
			resumed.Resume = stopped.State
			if !bytes.Equal(small1, run(memory, resumed)) {
				t.Errorf("open %v: going on with %d bytes gave another head", open, memory)
			}
		}
	}
}
