package head

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestResumeToTheBit stops runs after any of their steps and lets them go on:
// each ends in the same bytes with the same history.
func TestResumeToTheBit(t *testing.T) {
	train, val := blobs(90, 5, 3, 1), blobs(40, 5, 3, 2)
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]string{"paper", "open", "linear"}).Draw(t, "kind")
		cfg := Config{Layers: rapid.IntRange(1, 3).Draw(t, "layers"), Centroids: 6, Projection: 4, Open: kind == "open"}
		opts := TrainOptions{
			Epochs: 6, Batch: rapid.IntRange(2, 50).Draw(t, "batch"), LR: rapid.SampledFrom([]float64{0.02, 0.3}).Draw(t, "rate"), Patience: 1,
			Seed: rapid.Uint64().Draw(t, "seed"), Balance: rapid.Bool().Draw(t, "balance"),
			Schedule: rapid.SampledFrom([]Schedule{Plateau, Cosine}).Draw(t, "schedule"),
		}
		val := val
		if rapid.Bool().Draw(t, "no validation") {
			val = Data{}
		}
		run := func(ctx context.Context, opts TrainOptions) ([]byte, []Epoch, error) {
			if kind == "linear" {
				m, epochs, err := TrainMLP(ctx, MLPConfig{}, train, val, 3, opts)
				if err != nil {
					return nil, epochs, err
				}
				return bytesOf(&MLRBFN{Layers: []Layer{{Centroids: m.Layers[0].Weights, Beta: m.Layers[0].Bias}}}), epochs, nil
			}
			m, epochs, err := Train(ctx, cfg, train, val, 3, opts)
			if err != nil {
				return nil, epochs, err
			}
			return bytesOf(m), epochs, nil
		}
		want, history, err := run(t.Context(), opts)
		if errors.Is(err, ErrDiverged) {
			t.Skip("the rate is too large for these rows")
		}
		if err != nil {
			t.Fatal(err)
		}
		same := func(what string, opts TrainOptions) {
			got, epochs, err := run(t.Context(), opts)
			if err != nil || !bytes.Equal(got, want) || !slices.Equal(epochs, history) {
				t.Fatalf("%s: another head or history, %v", what, err)
			}
		}
		// One call after each step and each epoch; the state that is taken at
		// one of them is not disturbed by what comes after.
		stop := rapid.IntRange(1, 6+6*((90+opts.Batch-1)/opts.Batch)).Draw(t, "stop")
		calls := 0
		var taken *State
		watched := opts
		watched.Checkpoint = func(_ int, take func() *State) error {
			if calls++; calls == stop {
				taken = take()
			}
			return nil
		}
		same("watched", watched)
		resumed := opts
		resumed.Resume = taken
		same("resumed", resumed)
		same("resumed again", resumed)

		// Cancelled there.
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		calls = 0
		watched.Checkpoint = func(int, func() *State) error {
			if calls++; calls == stop {
				cancel()
			}
			return nil
		}
		_, _, err = run(ctx, watched)
		var stopped *StoppedError
		if errors.As(err, &stopped) != (err != nil) || err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled: %v", err)
		}
		if err != nil { // the last call comes too late to be cancelled
			resumed.Resume = stopped.State
			same("gone on", resumed)
		}
	})
}

// TestDivergedKeepsWhatWasGood lets a good state go on with a rate that is far
// too large, and then with a sound one again.
func TestDivergedKeepsWhatWasGood(t *testing.T) {
	train, val := blobs(90, 5, 3, 1), blobs(40, 5, 3, 2)
	cfg, opts := Config{Layers: 2, Centroids: 6, Projection: 4}, TrainOptions{Epochs: 8, Batch: 30, LR: 0.01}
	ctx, cancel := context.WithCancel(t.Context())
	opts.Progress = func(e Epoch) {
		if e.Epoch == 3 {
			cancel()
		}
	}
	_, _, err := Train(ctx, cfg, train, val, 3, opts)
	var stopped *StoppedError
	if !errors.As(err, &stopped) || len(stopped.State.Epochs) != 3 {
		t.Fatal(err)
	}
	good := stopped.State
	opts.Progress = nil
	bad := opts
	bad.Resume, bad.LR = good, math.MaxFloat32
	_, epochs, err := Train(t.Context(), cfg, train, val, 3, bad)
	if !errors.Is(err, ErrDiverged) || !errors.As(err, &stopped) || len(stopped.State.Epochs) != len(epochs) || stopped.State.FirstLoss != good.FirstLoss {
		t.Fatalf("%v after %d epochs", err, len(epochs))
	}
	for _, array := range slices.Concat(stopped.State.Params, stopped.State.M, stopped.State.V) {
		if slices.ContainsFunc(array, notFinite) {
			t.Error("what is kept is not finite")
		}
	}
	opts.Resume = stopped.State
	m, epochs, err := Train(t.Context(), cfg, train, val, 3, opts)
	if err != nil || len(epochs) != 8 || m.Validate() != nil || !(epochs[7].TrainLoss < epochs[0].TrainLoss) {
		t.Errorf("going on with a sound rate: %+v, %v", epochs, err)
	}
	// With nothing good to keep there is no state.
	opts.Resume, opts.LR = nil, 1e3
	if _, _, err := Train(t.Context(), cfg, train, val, 3, opts); !errors.Is(err, ErrDiverged) || errors.As(err, new(*StoppedError)) {
		t.Errorf("in the first epoch: %v", err)
	}
}

// scripted is a head of one parameter whose steps have the losses of a script.
type scripted struct {
	losses []float64
	param[float32]
}

func (s *scripted) params() []param[float32]                                 { return []param[float32]{s.param} }
func (s *scripted) constants() []*float64                                    { return nil }
func (s *scripted) start(context.Context, []float32, int, Data, draws) error { return nil }
func (s *scripted) logits(_ []float32, b int) []float32                      { return make([]float32, b) }
func (s *scripted) loss([]int) float64                                       { return 0 }

func (s *scripted) step([]float32, []int) float64 {
	loss := s.losses[0]
	s.losses = s.losses[1:]
	s.grad[0] = 1
	return loss
}

func TestWhatDiverges(t *testing.T) {
	data := blobs(20, 1, 1, 1) // two steps an epoch
	for name, tt := range map[string]struct {
		losses []float64
		good   int // epochs
		says   string
	}{
		"falls":                   {[]float64{0.5, 0.4, 0.3, 0.2, 0.1, 0.1}, 3, ""},
		"rises tenfold at most":   {[]float64{0.5, 0.5, 4.9, 4.9, 0.5, 0.5}, 3, ""},
		"rises more":              {[]float64{0.5, 0.5, 5.1, 5.1}, 1, "5.1 in epoch 2"},
		"one step rises":          {[]float64{0.5, 0.5, 8, 0.5, 0.5, 0.5}, 3, ""},
		"rises in the first":      {[]float64{0.5, 30}, 0, "15.25 in epoch 1"},
		"rises from next to none": {[]float64{1e-6, 1e-6, 0.9, 0.9, 1.1, 1.1}, 2, "1.1 in epoch 3"},
		"NaN":                     {[]float64{0.5, 0.5, 0.4, math.NaN()}, 1, "NaN in epoch 2"},
		"infinite":                {[]float64{0.5, 0.5, 0.4, 0.4, math.Inf(1)}, 2, "+Inf in epoch 3"},
	} {
		t.Run(name, func(t *testing.T) {
			opts, err := TrainOptions{Epochs: 3, Batch: 10}.WithDefaults()
			if err != nil {
				t.Fatal(err)
			}
			m := &scripted{losses: tt.losses, param: param[float32]{[]float32{0}, []float32{0}}}
			epochs, err := fit(t.Context(), m, data, Data{}, 1, opts, newRand(1))
			if len(epochs) != tt.good || errors.Is(err, ErrDiverged) != (tt.says != "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%d good epochs, %v; want %d, %q", len(epochs), err, tt.good, tt.says)
			}
			if stopped := (*StoppedError)(nil); errors.As(err, &stopped) != (tt.good > 0 && err != nil) || stopped != nil && stopped.State.Steps != 2*tt.good {
				t.Errorf("it keeps %+v", stopped)
			}
		})
	}
}

func TestResumeRefuses(t *testing.T) {
	data := blobs(90, 5, 3, 1)
	cfg := Config{Layers: 2, Centroids: 6, Projection: 4}
	state := func() (taken *State) {
		_, _, err := Train(t.Context(), cfg, data, Data{}, 3, TrainOptions{Epochs: 1, Checkpoint: func(_ int, take func() *State) error {
			taken = take()
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		return taken
	}
	for name, spoil := range map[string]func(*State){
		"no steps":     func(s *State) { s.Steps = 0 },
		"lost steps":   func(s *State) { s.Epochs[0].Steps++ },
		"fewer rows":   func(s *State) { s.Order = s.Order[1:] },
		"row outside":  func(s *State) { s.Order[3] = 90 },
		"a parameter":  func(s *State) { s.Params[1] = s.Params[1][1:] },
		"a moment":     func(s *State) { s.V = s.V[1:] },
		"a constant":   func(s *State) { s.Constants = nil },
		"no generator": func(s *State) { s.Random = nil },
		"nothing":      func(s *State) { *s = State{} },
	} {
		s := state()
		spoil(s)
		if _, _, err := Train(t.Context(), cfg, data, Data{}, 3, TrainOptions{Epochs: 2, Resume: s}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	failure := errors.New("no")
	_, _, err := Train(t.Context(), cfg, data, Data{}, 3, TrainOptions{Checkpoint: func(int, func() *State) error { return failure }})
	if !errors.Is(err, failure) {
		t.Errorf("an error of Checkpoint: %v", err)
	}
}

func TestBalance(t *testing.T) {
	data := Data{D: 1}
	for i := range 90 {
		y := int64(2) // class 1 is empty
		if i%10 == 0 {
			y = 0
		}
		data.Labels, data.X, data.Rows = append(data.Labels, y), append(data.X, 0), append(data.Rows, i)
	}
	opts := TrainOptions{Batch: 10, Balance: true}
	f := newFitting(mlpOf[float32](&MLP{Layers: []Dense{{In: 1, Out: 3}}}, 10), data, opts, newRand(1))
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

// TestStepsAllocateNothing compares one epoch with four, which have no more to
// allocate than that they begin.
func TestStepsAllocateNothing(t *testing.T) {
	const rows, batch, perEpoch = 2000, 10, 20
	allocations := func(cfg Config, epochs int) float64 {
		data := blobs(rows, 5, 3, 1)
		return testing.AllocsPerRun(2, func() {
			_, history, err := Train(t.Context(), cfg, data, Data{}, 3, TrainOptions{Epochs: epochs, Batch: batch, Schedule: Cosine})
			if err != nil || len(history) != epochs {
				t.Fatalf("%d epochs, %v", len(history), err)
			}
		})
	}
	for _, open := range []bool{false, true} {
		cfg := Config{Layers: 2, Centroids: 6, Open: open}
		if few, many := allocations(cfg, 1), allocations(cfg, 4); many > few+3*perEpoch {
			t.Errorf("open %v: %d steps allocate %g times, %d steps %g times", open, rows/batch, few, 4*rows/batch, many)
		}
	}
}

// A training that is cancelled goes on as if nothing had happened.
func ExampleStoppedError() {
	data := blobs(90, 5, 3, 1)
	opts := TrainOptions{Epochs: 20, LR: 0.01}
	ctx, cancel := context.WithCancel(context.Background())
	opts.Progress = func(e Epoch) {
		if e.Epoch == 7 {
			cancel()
		}
	}
	_, _, err := TrainMLP(ctx, MLPConfig{}, data, Data{}, 3, opts)
	var stopped *StoppedError
	if errors.As(err, &stopped) {
		fmt.Printf("%v after %d epochs\n", err, len(stopped.State.Epochs))
		opts.Resume = stopped.State
	}
	_, epochs, err := TrainMLP(context.Background(), MLPConfig{}, data, Data{}, 3, opts)
	fmt.Println(len(epochs), "epochs", err)
	// Output:
	// context canceled after 7 epochs
	// 20 epochs <nil>
}
