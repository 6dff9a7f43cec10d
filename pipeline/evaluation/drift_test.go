package evaluation_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
)

// TestPromise is the simulation of docs/drift.md with fewer runs: 400 calibration
// scores and 20,000 calm ones, an alarm that may come with a chance of 1%. Against a
// fixed calibration set it comes far more often; ranked among all scores, it keeps the
// promise.
func TestPromise(t *testing.T) {
	t.Parallel()
	const runs = 200
	made := stream{Calibration: 400, Calm: 20_000}
	if alarms := made.FalseAlarms(fixed, 0.01, runs/2); alarms < 6 {
		t.Errorf("%d of %d runs with a fixed calibration set raise an alarm, and 11%% were reported", alarms, runs/2)
	}
	// More than 6 of 200 come with a chance of 0.4% where each has 1%.
	if alarms := made.FalseAlarms(ours, 0.01, runs); alarms > 6 {
		t.Errorf("%d of %d runs raise a false alarm", alarms, runs)
	}
}

// TestDelay: a shift by half a standard deviation is noticed about as fast as the
// simple jumper does (a median of 177 images) after 2,000 calm images, and nearly as
// fast after many more.
func TestDelay(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ calm, within int }{{0, 120}, {2000, 180}, {50_000, 260}} {
		made := stream{Calibration: 400, Calm: test.calm, Shift: 0.5, Until: 5000}
		delays := made.Delays(ours, 0.01, 15)
		if median := delays[len(delays)/2]; median > test.within {
			t.Errorf("after %d calm images: a median of %d, want at most %d", test.calm, median, test.within)
		}
	}
}

// TestUniform: the p-values of a calm stream are uniform and independent, whatever the
// distribution of the scores: ties, heavy tails, infinities.
func TestUniform(t *testing.T) {
	t.Parallel()
	for name, score := range map[string]func(*rand.Rand) float64{
		"normal":   func(r *rand.Rand) float64 { return 1000 + 1e-3*r.NormFloat64() },
		"ties":     func(r *rand.Rand) float64 { return float64(r.IntN(3)) },
		"constant": func(r *rand.Rand) float64 { return -7 },
		"cauchy":   func(r *rand.Rand) float64 { return r.NormFloat64() / r.NormFloat64() },
		"saturated": func(r *rand.Rand) float64 {
			return []float64{math.Inf(-1), 1, 1 - 1e-16, 0.5, math.NaN(), math.Inf(1)}[r.IntN(6)]
		},
	} {
		const n = 20_000
		rng := rand.New(rand.NewPCG(5, 5))
		calibration := make([]float64, 50)
		for i := range calibration {
			calibration[i] = score(rng)
		}
		m := evaluation.NewMartingale(0.01, nil, calibration, 1)
		var bins [10][10]int // of a p-value and the next
		last := 0.5
		for range n {
			p := m.Add(score(rng)).PValue
			if !(p >= 0 && p < 1) {
				t.Fatalf("%s: p-value %v", name, p)
			}
			bins[int(last*10)][int(p*10)]++
			last = p
		}
		chi2 := 0.0
		for _, row := range bins {
			for _, count := range row {
				chi2 += (float64(count) - n/100) * (float64(count) - n/100) / (n / 100)
			}
		}
		if chi2 > 161 { // the 99.99% quantile at 99 degrees of freedom
			t.Errorf("%s: χ² is %.0f", name, chi2)
		}
	}
}

// TestPValues are those that one counts by hand.
func TestPValues(t *testing.T) {
	t.Parallel()
	grid := []float64{0, 1, 2, 3}
	m := evaluation.NewMartingale(0.01, grid, []float64{10, 20, 30}, 1)
	for i, test := range []struct{ score, low, high float64 }{
		{5, 0, 1. / 4}, {35, 4. / 5, 1}, {20, 2. / 6, 4. / 6}, {math.NaN(), 0, 1. / 7}, {math.Inf(1), 7. / 8, 1},
	} {
		if p := m.Add(test.score).PValue; p < test.low || p >= test.high {
			t.Errorf("score %d, %v: %v, want one in [%v, %v)", i, test.score, p, test.low, test.high)
		}
	}
}

// TestDirections: the alarm comes where scores fall, where they rise, and where all
// are equal.
func TestDirections(t *testing.T) {
	t.Parallel()
	for name, score := range map[string]func(*rand.Rand) float64{
		"fall":  func(r *rand.Rand) float64 { return r.NormFloat64() - 2 },
		"rise":  func(r *rand.Rand) float64 { return r.NormFloat64() + 2 },
		"stuck": func(r *rand.Rand) float64 { return 1.5 },
	} {
		rng := rand.New(rand.NewPCG(6, 6))
		calibration := make([]float64, 200)
		for i := range calibration {
			calibration[i] = rng.NormFloat64()
		}
		m := evaluation.NewMartingale(0.001, nil, calibration, 1)
		now := 0
		for i := range 150 {
			a := m.Add(score(rng))
			if a.Now {
				now++
				if m.RaisedAt() != uint64(i+1) || a.LogWealth < m.Threshold() {
					t.Errorf("%s: raised at %d of %d with %v", name, m.RaisedAt(), i+1, a.LogWealth)
				}
			}
			if a.Raised != (now > 0) {
				t.Errorf("%s: %+v", name, a)
			}
		}
		if now != 1 || m.Highest() < m.Threshold() {
			t.Errorf("%s: %d alarms, at most %v", name, now, m.Highest())
		}
		m.Reset()
		if m.RaisedAt() != 0 || m.LogWealth() != 0 || m.Steps() != 0 {
			t.Errorf("%s: after Reset %+v", name, m)
		}
	}
}

// TestState: a martingale that is stored and read before each score goes on as one
// that is not, and its state stays small.
func TestState(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(7, 7))
	calibration := make([]float64, 400)
	for i := range calibration {
		calibration[i] = rng.NormFloat64()
	}
	one := evaluation.NewMartingale(0.01, nil, calibration, 3)
	two := evaluation.NewMartingale(0.01, nil, calibration, 3)
	for i := range 100_000 {
		score := rng.NormFloat64()
		if i%2000 < 3 || i > 99_990 {
			state, err := two.MarshalBinary()
			if err != nil {
				t.Fatal(err)
			}
			if len(state) > 8<<10 {
				t.Fatalf("%d bytes after %d scores", len(state), i)
			}
			two = &evaluation.Martingale{}
			if err := two.UnmarshalBinary(state); err != nil {
				t.Fatal(err)
			}
			if again, err := two.MarshalBinary(); err != nil || !bytes.Equal(state, again) {
				t.Fatalf("another state is read than was written: %v", err)
			}
		}
		if a, b := one.Add(score), two.Add(score); a != b {
			t.Fatalf("score %d: %+v, without an interruption %+v", i, b, a)
		}
	}
	state, _ := one.MarshalBinary()
	for cut := range len(state) {
		m := evaluation.NewMartingale(0.01, nil, nil, 0)
		if err := m.UnmarshalBinary(state[:cut]); err == nil {
			t.Errorf("a state of %d bytes was read from %d", len(state), cut)
		} else if m.Steps() != 0 {
			t.Error("a state that was refused changed the martingale")
		}
	}
	newer := append([]byte{99}, state[1:]...)
	if err := one.UnmarshalBinary(newer); err == nil {
		t.Error("a newer state was read")
	}
}

// FuzzState: no bytes make UnmarshalBinary or what follows fail otherwise than by an
// error.
func FuzzState(f *testing.F) {
	m := evaluation.NewMartingale(0.01, nil, []float64{1, 2, 3, 4, 5, 6, 7, 8}, 1)
	for i := range 20 {
		m.Add(float64(i))
	}
	state, err := m.MarshalBinary()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(state)
	f.Add(state[:40])
	f.Fuzz(func(t *testing.T, data []byte) {
		m := &evaluation.Martingale{}
		if m.UnmarshalBinary(data) != nil {
			return
		}
		for _, score := range []float64{-1, 3.5, math.NaN()} {
			if p := m.Add(score).PValue; !(p >= 0 && p <= 1) {
				t.Errorf("p-value %v", p)
			}
		}
	})
}

// TestFewScores: any number of calibration scores will do.
func TestFewScores(t *testing.T) {
	t.Parallel()
	for n := range 20 {
		calibration := make([]float64, n)
		for i := range calibration {
			calibration[i] = float64(i % 7)
		}
		m := evaluation.NewMartingale(0.01, nil, calibration, 1)
		for i := range 500 {
			if a := m.Add(float64(i % 7)); math.IsNaN(a.LogWealth) || a.Now {
				t.Errorf("%d calibration scores: %+v", n, a)
			}
		}
	}
}

func BenchmarkAdd(b *testing.B) {
	rng := rand.New(rand.NewPCG(8, 8))
	m := evaluation.NewMartingale(0.01, nil, nil, 1)
	for b.Loop() {
		m.Add(rng.NormFloat64())
	}
}

func ExampleMartingale() {
	calibration := make([]float64, 100) // of a detector
	for i := range calibration {
		calibration[i] = float64(i % 10)
	}
	m := evaluation.NewMartingale(0.01, nil, calibration, 1)
	for i := range 300 {
		score := float64(i % 10)
		if i >= 200 {
			score /= 3 // the camera got dirty
		}
		if m.Add(score).Now {
			fmt.Println("alarm at image", i > 200 && i < 260)
		}
	}
	// Output: alarm at image true
}

// TestWatch: a drift of the images of one class is found among those of all, where
// the class has calibration scores and where it has none; a state goes on.
func TestWatch(t *testing.T) {
	t.Parallel()
	classes := []string{"cat", "dog", "owl"}
	for name, byClass := range map[string]bool{"calibrated by class": true, "calibrated together": false} {
		rng := rand.New(rand.NewPCG(9, 9))
		score := func(class int) float64 { return float64(class) + rng.NormFloat64() }
		c := evaluation.DriftCalibration{Classes: classes, ByClass: map[string][]float64{}}
		for i := range 600 {
			s := score(i % 3)
			c.Scores = append(c.Scores, s)
			if byClass {
				c.ByClass[classes[i%3]] = append(c.ByClass[classes[i%3]], s)
			}
		}
		w := evaluation.NewDriftWatch(0.01, c, 1)
		for i := range 3000 {
			s := score(i % 3)
			if i >= 1500 && i%3 == 1 {
				s -= 1.5
			}
			w.Add(classes[i%3], s)
			if i == 1499 {
				state, err := w.MarshalBinary()
				if err != nil {
					t.Fatal(err)
				}
				for cut := 0; cut < len(state); cut += 97 {
					if err := new(evaluation.DriftWatch).UnmarshalBinary(state[:cut]); err == nil {
						t.Errorf("%d bytes of %d were read", cut, len(state))
					}
				}
				w = &evaluation.DriftWatch{}
				if err := w.UnmarshalBinary(state); err != nil {
					t.Fatal(err)
				}
			}
		}
		if at := w.Class("dog").RaisedAt(); at <= 500 || at > 600 {
			t.Errorf("%s: dog raised at image %d of its class, which drifts from 501 on", name, at)
		}
		if cat, owl := w.Class("cat").RaisedAt(), w.Class("owl").RaisedAt(); cat+owl > 0 {
			t.Errorf("%s: cat raised at %d, owl at %d", name, cat, owl)
		}
		if at := w.All().RaisedAt(); at <= 1500 {
			t.Errorf("%s: all together raised at %d", name, at)
		}
		if w.Class("none") != nil {
			t.Error("a class that was not named is watched")
		}
		if w.Reset(); w.All().RaisedAt()+w.Class("dog").RaisedAt() != 0 {
			t.Error("an alarm is left after Reset")
		}
	}
}

// TestFromTheFirstImage prints when a stream is noticed of which a tenth is lower from the
// first image on: rarely with 200 calibration images. There is nothing else to compare with.
func TestFromTheFirstImage(t *testing.T) {
	t.Parallel()
	runs, missed := 200, map[int]int{}
	if testing.Short() {
		runs = 20
	}
	for _, n := range []int{200, 400, 1000, 4000} {
		for _, shift := range []float64{1, 2, 3} {
			s := stream{Calibration: n, Shift: shift, Share: 0.1, Until: 4000}
			delays := s.Delays(ours, 0.01, runs)
			late := 0
			for _, d := range delays {
				if d == s.Until {
					late++
				}
			}
			missed[n] += late
			t.Logf("%d calibration images, a tenth %g deviations lower: not within 4,000 images in %d of %d runs, median %d", n, shift, late, runs, delays[len(delays)/2])
		}
	}
	if missed[200] <= missed[1000] || evaluation.FewForDrift(1000) || !evaluation.FewForDrift(200) {
		t.Errorf("not noticed with so many calibration images: %v", missed)
	}
}
