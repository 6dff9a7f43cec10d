package evaluation

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestFlaggedWatch: of streams of which as many are flagged as promised at most alpha ever
// raise the alarm, however long they are, and more flagged images are noticed soon: from the
// first image on, after a calm time, and after Reset.
func TestFlaggedWatch(t *testing.T) {
	const promised, alpha, streams = 0.05, 0.01, 1000
	rng := rand.New(rand.NewPCG(1, 2))
	run := func(w *FlaggedWatch, share float64, n int) int {
		for i := range n {
			if w.Add(rng.Float64() < share).Now {
				return i + 1
			}
		}
		return n + 1
	}
	long := 5000
	if testing.Short() {
		long = 2000
	}
	wrong := 0
	for range streams {
		if run(NewFlaggedWatch(alpha, promised), promised, long) <= long {
			wrong++
		}
	}
	t.Logf("%d of %d streams of %d images with %g flagged raise a false alarm", wrong, streams, long, promised)
	if wrong > alpha*streams {
		t.Errorf("%d of %d streams raise a false alarm, at most %g may", wrong, streams, alpha*streams)
	}
	for name, before := range map[string]func(*FlaggedWatch){
		"first image":      func(*FlaggedWatch) {},
		"200 calm images":  func(w *FlaggedWatch) { run(w, promised, 200) },
		"2000 calm images": func(w *FlaggedWatch) { run(w, promised, 2000) },
		"an alarm and Reset": func(w *FlaggedWatch) {
			run(w, 0.18, 600)
			w.Reset()
		},
	} {
		var after []int
		for range streams {
			w := NewFlaggedWatch(alpha, promised)
			before(w)
			after = append(after, run(w, 0.18, 2000))
		}
		slices.Sort(after)
		t.Logf("18%% flagged after %s: noticed after %d images (median), %d (90%%)", name, after[streams/2], after[streams*9/10])
		most := 150
		if name == "2000 calm images" {
			most = 200 // what was lost meanwhile has to be won again
		}
		if after[streams*9/10] > most {
			t.Errorf("after %s: a tenth is noticed later than after %d images", name, after[streams*9/10])
		}
	}
}

// TestFlaggedState: a watch goes on after it was stored as if nothing had been.
func TestFlaggedState(t *testing.T) {
	w := NewFlaggedWatch(0.01, 0.05)
	for i := range 500 {
		data, err := json.Marshal(w)
		if err != nil {
			t.Fatal(err)
		}
		var again FlaggedWatch
		if err := json.Unmarshal(data, &again); err != nil || again != *w {
			t.Fatalf("%+v becomes %+v (%v)", *w, again, err)
		}
		w = &again
		w.Add(i%4 == 0)
	}
	if w.RaisedAt() == 0 || w.Flagged() != 125 {
		t.Errorf("%+v", *w)
	}
	for _, bad := range []string{`{}`, `[]`, `{"Alpha":0.01,"Promised":2}`} {
		if err := json.Unmarshal([]byte(bad), new(FlaggedWatch)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}
