package evaluation

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestFlaggedWatch: of streams of which as many are flagged as promised at most alpha ever
// raise the alarm, however long they are, and more flagged images are noticed soon: from the
// first image on, after a calm time, and after Reset.
func TestFlaggedWatch(t *testing.T) {
	const promised, alpha, streams = 0.05, 0.01, 1000
	var rng *rand.Rand
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
	rng = rand.New(rand.NewPCG(1, 2))
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
		rng = rand.New(rand.NewPCG(1, 3))
		for range streams {
			w := NewFlaggedWatch(alpha, promised)
			before(w)
			after = append(after, run(w, 0.18, 2000))
		}
		slices.Sort(after)
		t.Logf("18%% flagged after %s: noticed after %d images (median), %d (90%%)", name, after[streams/2], after[streams*9/10])
		if after[streams*9/10] > 150 {
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
	// A state of before the watch had a reserve of its own goes on with what it had.
	var old FlaggedWatch
	if err := json.Unmarshal([]byte(`{"Alpha":0.01,"Promised":0.05,"LogActive":-1,"Highest":0.1,"Parts":[0.2,0.2,0.2,0.2,0.2],"Steps":100,"RaisedAt":0,"Flagged":5}`), &old); err != nil || old.Steps() != 100 {
		t.Errorf("%+v (%v)", old, err)
	} else if before, after := old.LogWealth(), math.Log(math.Exp(-1)+0.5/(1+math.Log(2))); math.Abs(before-after) > 1e-12 {
		t.Errorf("the capital e^%v becomes e^%v", after, before)
	}
	for _, bad := range []string{`{}`, `[]`, `{"Alpha":0.01,"Promised":2}`} {
		if err := json.Unmarshal([]byte(bad), new(FlaggedWatch)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

// TestFlaggedFair: whatever came before, no capital is gained on average where each image is
// flagged with the promised chance, also just below the alarm.
func TestFlaggedFair(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 4))
	w := NewFlaggedWatch(0.01, 0.05)
	for i := range 20_000 {
		yes, no := *w, *w
		yes.Add(true)
		no.Add(false)
		if mean := 0.05*math.Exp(yes.LogWealth()-w.LogWealth()) + 0.95*math.Exp(no.LogWealth()-w.LogWealth()); math.Abs(mean-1) > 1e-9 {
			t.Fatalf("after %d images the capital times %v is expected", i, mean)
		}
		if w.Add(rng.Float64() < 0.1).Now {
			w.Reset()
		}
	}
}
