package head_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
)

// bytesOf returns all parameters of a head.
func bytesOf(h *head.Head) []byte {
	var b bytes.Buffer
	write := func(v any) {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			panic(err)
		}
	}
	var layers []head.Layer
	switch n := h.Network.(type) {
	case *head.PaperNetwork:
		layers = n.Layers
	case *head.ResidualNetwork:
		layers = n.Layers
		write(n.Density.Means)
		write([]float64{n.Density.Middle, n.Density.Radius})
		write(n.Score)
	}
	for _, l := range layers {
		for _, array := range [][]float32{l.Centroids, l.Beta, l.Projections, {l.InitBeta}} {
			write(array)
		}
	}
	return b.Bytes()
}

// TestResumeBitIdentical stops runs after any of their steps and resumes them:
// each ends with a bit-identical head and the same history.
func TestResumeBitIdentical(t *testing.T) {
	train, val := head.Blobs(90, 5, 3, 1), head.Blobs(40, 5, 3, 2)
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]string{"paper", "residual", "linear"}).Draw(t, "kind")
		layers := rapid.IntRange(1, 3).Draw(t, "layers")
		var cfg head.Config = head.Paper{Layers: layers, Centroids: 6, Projection: 4}
		if kind == "residual" {
			cfg = head.Residual{Layers: layers, Centroids: 6, Projection: 4}
		}
		opts := head.TrainOptions{
			Epochs: 6, Batch: rapid.IntRange(2, 50).Draw(t, "batch"), LR: rapid.SampledFrom([]float64{0.02, 0.3}).Draw(t, "rate"), Patience: 1,
			Seed: rapid.Uint64().Draw(t, "seed"), Balance: rapid.Bool().Draw(t, "balance"),
			Schedule: rapid.SampledFrom([]head.Schedule{head.Plateau, head.Cosine}).Draw(t, "schedule"),
		}
		val := val
		if rapid.Bool().Draw(t, "no validation") {
			val = features.Rows{}
		}
		run := func(ctx context.Context, opts head.TrainOptions) ([]byte, []head.Epoch, error) {
			if kind == "linear" {
				m, epochs, err := head.TrainMLP(ctx, head.MLPConfig{}, train, val, 3, opts)
				if err != nil {
					return nil, epochs, err
				}
				layer := head.Layer{Centroids: make([]float32, len(m[0].Weights)), Beta: make([]float32, len(m[0].Bias))}
				kernels.Convert(layer.Centroids, m[0].Weights)
				kernels.Convert(layer.Beta, m[0].Bias)
				return bytesOf(&head.Head{Network: &head.PaperNetwork{Layers: []head.Layer{layer}}}), epochs, nil
			}
			m, epochs, err := head.Train(ctx, cfg, train, val, 3, opts)
			if err != nil {
				return nil, epochs, err
			}
			return bytesOf(m), epochs, nil
		}
		want, history, err := run(t.Context(), opts)
		if errors.Is(err, head.ErrDiverged) {
			t.Skip("the rate is too large for these rows")
		}
		if err != nil {
			t.Fatal(err)
		}
		same := func(what string, opts head.TrainOptions) {
			got, epochs, err := run(t.Context(), opts)
			if err != nil || !bytes.Equal(got, want) || !slices.Equal(epochs, history) {
				t.Fatalf("%s: another head or history, %v", what, err)
			}
		}
		// One call after each step and each epoch; the state that is taken at
		// one of them is not disturbed by what comes after.
		stop := rapid.IntRange(1, 6+6*((90+opts.Batch-1)/opts.Batch)).Draw(t, "stop")
		calls := 0
		var taken *head.State
		watched := opts
		watched.Checkpoint = func(_ int, take func() *head.State) error {
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
		watched.Checkpoint = func(int, func() *head.State) error {
			if calls++; calls == stop {
				cancel()
			}
			return nil
		}
		_, _, err = run(ctx, watched)
		var stopped *head.StoppedError
		if errors.As(err, &stopped) != (err != nil) || err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled: %v", err)
		}
		if err != nil { // the last call comes too late to be cancelled
			resumed.Resume = stopped.State
			same("gone on", resumed)
		}
	})
}

// TestDivergedKeepsWhatWasGood continues a good state with a far too large
// learning rate, and then with a sensible one.
func TestDivergedKeepsWhatWasGood(t *testing.T) {
	train, val := head.Blobs(90, 5, 3, 1), head.Blobs(40, 5, 3, 2)
	cfg, opts := head.Paper{Layers: 2, Centroids: 6, Projection: 4}, head.TrainOptions{Epochs: 8, Batch: 30, LR: 0.01}
	ctx, cancel := context.WithCancel(t.Context())
	opts.Progress = func(e head.Epoch) {
		if e.Epoch == 3 {
			cancel()
		}
	}
	_, _, err := head.Train(ctx, cfg, train, val, 3, opts)
	var stopped *head.StoppedError
	if !errors.As(err, &stopped) || len(stopped.State.Epochs) != 3 {
		t.Fatal(err)
	}
	good := stopped.State
	opts.Progress = nil
	bad := opts
	bad.Resume, bad.LR = good, math.MaxFloat32
	_, epochs, err := head.Train(t.Context(), cfg, train, val, 3, bad)
	if !errors.Is(err, head.ErrDiverged) || !errors.As(err, &stopped) || len(stopped.State.Epochs) != len(epochs) || stopped.State.FirstLoss != good.FirstLoss {
		t.Fatalf("%v after %d epochs", err, len(epochs))
	}
	for _, array := range slices.Concat(stopped.State.Params, stopped.State.M, stopped.State.V) {
		if slices.ContainsFunc(array, func(v float32) bool { return v-v != 0 }) {
			t.Error("the saved state is not finite")
		}
	}
	opts.Resume = stopped.State
	m, epochs, err := head.Train(t.Context(), cfg, train, val, 3, opts)
	if err != nil || len(epochs) != 8 || m.Validate() != nil || !(epochs[7].TrainLoss < epochs[0].TrainLoss) {
		t.Errorf("continued with a sensible learning rate: %+v, %v", epochs, err)
	}
	// Without a good epoch there is no state.
	opts.Resume, opts.LR = nil, 1e3
	if _, _, err := head.Train(t.Context(), cfg, train, val, 3, opts); !errors.Is(err, head.ErrDiverged) || errors.As(err, new(*head.StoppedError)) {
		t.Errorf("in the first epoch: %v", err)
	}
}

// scripted is a head of one parameter whose steps have the losses of a script.
type scripted struct {
	losses      []float64
	value, grad []float32
}

func (s *scripted) Params() (params, gradients [][]float32) {
	return [][]float32{s.value}, [][]float32{s.grad}
}
func (s *scripted) Constants() []*float64 { return nil }
func (s *scripted) Draw(head.Random)      {}
func (s *scripted) Start(context.Context, []float32, int, features.Rows, head.Random) error {
	return nil
}
func (s *scripted) Logits(_ []float32, b int) []float32 { return make([]float32, b) }
func (s *scripted) Loss([]int) float64                  { return 0 }

func (s *scripted) Step([]float32, []int) float64 {
	loss := s.losses[0]
	s.losses = s.losses[1:]
	s.grad[0] = 1
	return loss
}

func TestWhatDiverges(t *testing.T) {
	data := head.Blobs(20, 1, 1, 1) // two steps an epoch
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
		"rises to a guess":        {[]float64{1e-6, 1e-6, 2.1, 2.1, 1e-6, 1e-6}, 3, ""},
		"rises above guesses":     {[]float64{1e-6, 1e-6, 11.1, 11.1}, 1, "11.1 in epoch 2"},
		"NaN":                     {[]float64{0.5, 0.5, 0.4, math.NaN()}, 1, "NaN in epoch 2"},
		"infinite":                {[]float64{0.5, 0.5, 0.4, 0.4, math.Inf(1)}, 2, "+Inf in epoch 3"},
	} {
		t.Run(name, func(t *testing.T) {
			opts, err := head.TrainOptions{Epochs: 3, Batch: 10}.WithDefaults()
			if err != nil {
				t.Fatal(err)
			}
			m := &scripted{tt.losses, []float32{0}, []float32{0}}
			classes := 1
			if strings.Contains(name, "guess") {
				classes = 3 // a guess has a loss of 1.1
			}
			epochs, err := head.Fit(t.Context(), m, data, features.Rows{}, classes, opts)
			if len(epochs) != tt.good || errors.Is(err, head.ErrDiverged) != (tt.says != "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%d good epochs, %v; want %d, %q", len(epochs), err, tt.good, tt.says)
			}
			if stopped := (*head.StoppedError)(nil); errors.As(err, &stopped) != (tt.good > 0 && err != nil) || stopped != nil && stopped.State.Steps != 2*tt.good {
				t.Errorf("the saved state is %+v", stopped)
			}
		})
	}
}

func TestResumeRefuses(t *testing.T) {
	data := head.Blobs(90, 5, 3, 1)
	cfg := head.Paper{Layers: 2, Centroids: 6, Projection: 4}
	state := func() (taken *head.State) {
		_, _, err := head.Train(t.Context(), cfg, data, features.Rows{}, 3, head.TrainOptions{Epochs: 1, Checkpoint: func(_ int, take func() *head.State) error {
			taken = take()
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		return taken
	}
	for name, spoil := range map[string]func(*head.State){
		"no steps":     func(s *head.State) { s.Steps = 0 },
		"lost steps":   func(s *head.State) { s.Epochs[0].Steps++ },
		"fewer rows":   func(s *head.State) { s.Order = s.Order[1:] },
		"row outside":  func(s *head.State) { s.Order[3] = 90 },
		"a parameter":  func(s *head.State) { s.Params[1] = s.Params[1][1:] },
		"a moment":     func(s *head.State) { s.V = s.V[1:] },
		"a constant":   func(s *head.State) { s.Constants = nil },
		"no generator": func(s *head.State) { s.Random = nil },
		"nothing":      func(s *head.State) { *s = head.State{} },
	} {
		s := state()
		spoil(s)
		if _, _, err := head.Train(t.Context(), cfg, data, features.Rows{}, 3, head.TrainOptions{Epochs: 2, Resume: s}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	failure := errors.New("no")
	_, _, err := head.Train(t.Context(), cfg, data, features.Rows{}, 3, head.TrainOptions{Checkpoint: func(int, func() *head.State) error { return failure }})
	if !errors.Is(err, failure) {
		t.Errorf("an error of Checkpoint: %v", err)
	}
}

// TestStepsAllocateNothing checks that one epoch and four allocate equally often.
func TestStepsAllocateNothing(t *testing.T) {
	const rows, batch, perEpoch = 2000, 10, 20
	allocations := func(cfg head.Config, epochs int) float64 {
		data := head.Blobs(rows, 5, 3, 1)
		return testing.AllocsPerRun(2, func() {
			_, history, err := head.Train(t.Context(), cfg, data, features.Rows{}, 3, head.TrainOptions{Epochs: epochs, Batch: batch, Schedule: head.Cosine})
			if err != nil || len(history) != epochs {
				t.Fatalf("%d epochs, %v", len(history), err)
			}
		})
	}
	for _, cfg := range []head.Config{head.Paper{Layers: 2, Centroids: 6}, head.Residual{Layers: 2, Centroids: 6}} {
		if few, many := allocations(cfg, 1), allocations(cfg, 4); many > few+3*perEpoch {
			t.Errorf("%T: %d steps allocate %g times, %d steps %g times", cfg, rows/batch, few, 4*rows/batch, many)
		}
	}
}

// A cancelled training continues as if it had not been cancelled.
func ExampleStoppedError() {
	data := head.Blobs(90, 5, 3, 1)
	opts := head.TrainOptions{Epochs: 20, LR: 0.01}
	ctx, cancel := context.WithCancel(context.Background())
	opts.Progress = func(e head.Epoch) {
		if e.Epoch == 7 {
			cancel()
		}
	}
	_, _, err := head.TrainMLP(ctx, head.MLPConfig{}, data, features.Rows{}, 3, opts)
	var stopped *head.StoppedError
	if errors.As(err, &stopped) {
		fmt.Printf("%v after %d epochs\n", err, len(stopped.State.Epochs))
		opts.Resume = stopped.State
	}
	_, epochs, err := head.TrainMLP(context.Background(), head.MLPConfig{}, data, features.Rows{}, 3, opts)
	fmt.Println(len(epochs), "epochs", err)
	// Output:
	// context canceled after 7 epochs
	// 20 epochs <nil>
}

// TestTrainPaged: with rows in a file the same seed gives bit-identical heads,
// even if training was interrupted and resumed with another amount of memory.
func TestTrainPaged(t *testing.T) {
	data, val := head.Blobs(900, 6, 3, 1), head.Blobs(90, 6, 3, 2)
	for _, cfg := range []head.Config{head.Paper{Layers: 2, Centroids: 6}, head.Residual{Layers: 2, Centroids: 6}} {
		_, isResidual := cfg.(head.Residual)
		opts := head.TrainOptions{Epochs: 4, Batch: 16, LR: 0.001, Schedule: head.Plateau, Seed: 3}
		train := func(ctx context.Context, memory int64, opts head.TrainOptions) (*head.Head, error) {
			var space *features.Space
			own := data
			if memory > 0 {
				own = head.Paged(t, data, memory)
				space = features.NewSpace(memory, t.TempDir(), 1)
				defer space.Close()
			}
			p, err := cfg.Prepare(ctx, own, val, 3, space)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			m, _, err := p.Train(ctx, opts)
			return m, err
		}
		run := func(memory int64, opts head.TrainOptions) []byte {
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
			t.Errorf("residual %v: the same windows gave two heads", isResidual)
		}
		if bytes.Equal(small1, whole) {
			t.Errorf("residual %v: windows changed nothing", isResidual)
		}
		ctx, cancel := context.WithCancel(t.Context())
		interrupted := opts
		interrupted.Checkpoint = func(epochs int, _ func() *head.State) error {
			if epochs == 2 {
				cancel()
			}
			return nil
		}
		if o := opts; isResidual {
			if o.Window = -1; !bytes.Equal(whole, run(small, o)) {
				t.Error("all rows shuffled together gave another head where they are in a file")
			}
		}
		var stopped *head.StoppedError
		if _, err := train(ctx, small, interrupted); !errors.As(err, &stopped) || stopped.State.Window == 0 {
			t.Fatalf("residual %v: interrupted with %v", isResidual, err)
		}
		for _, memory := range []int64{small, small / 2, 2 * all} {
			// Like a head that had not begun when others were interrupted.
			begun := opts
			begun.Window = stopped.State.Window
			if !bytes.Equal(small1, run(memory, begun)) {
				t.Errorf("residual %v: the same windows with %d bytes gave another head", isResidual, memory)
			}
			resumed := opts
			resumed.Resume = stopped.State
			if !bytes.Equal(small1, run(memory, resumed)) {
				t.Errorf("residual %v: continuing with %d bytes gave another head", isResidual, memory)
			}
		}
	}
}
