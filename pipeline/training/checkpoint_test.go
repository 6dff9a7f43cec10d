package training

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/safetensors"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// saved returns the bytes of the detector's file.
func saved(t *testing.T, d *detector.Detector) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "d")
	if err := d.Save(path); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// interrupt cancels training when enough, which is asked after each epoch of a
// head, from several goroutines, says so.
func interrupt(t *testing.T, o Options, enough func() bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	o.Progress = func(int, head.Epoch) {
		if enough() {
			cancel()
		}
	}
	if _, _, err := Train(ctx, o); !errors.Is(err, context.Canceled) {
		t.Fatalf("interrupted: %v", err)
	}
}

// epochs is enough after so many epochs of all heads together.
func epochs(n int64) func() bool {
	var done atomic.Int64
	return func() bool { return done.Add(1) == n }
}

// eachOf is enough when n heads have done an epoch each; they wait for the last.
func eachOf(n int) func() bool {
	var all sync.WaitGroup
	all.Add(n)
	return func() bool {
		all.Done()
		all.Wait()
		return true
	}
}

func TestTrainGoesOnFromACheckpoint(t *testing.T) {
	t.Parallel()
	o := quick(pipetest.Clouds(t, 1, 60, pipetest.TwoLabels, pipetest.Two...), pipetest.Clouds(t, 2, 20, pipetest.TwoLabels, pipetest.Two...))
	o.Seeds = []uint64{3, 1, 2}
	d, _, err := Train(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	want := saved(t, d)

	// Interrupted time and again.
	o.Checkpoint = filepath.Join(t.TempDir(), "c")
	var before []int
	o.Resumed = func(epochs []int) { before = epochs }
	for range 4 {
		interrupt(t, o, epochs(8))
	}
	if len(before) != 3 || before[0]+before[1]+before[2] < 24 {
		t.Errorf("%v epochs behind it after 24", before)
	}
	d, result, err := Train(context.Background(), o)
	if err != nil || !bytes.Equal(saved(t, d), want) {
		t.Errorf("another detector, %v", err)
	}
	if result.Epochs != 20 || result.Steps != 20*3*4 {
		t.Errorf("%+v", result)
	}

	// Whatever file was there at some moment will do: a killed program leaves
	// one of them. They stay when training is done.
	if err := os.Remove(o.Checkpoint); err != nil {
		t.Fatal(err)
	}
	var files [][]byte
	var mu sync.Mutex
	o.CheckpointEvery = time.Nanosecond
	o.Progress = func(int, head.Epoch) {
		mu.Lock()
		defer mu.Unlock()
		if data, err := os.ReadFile(o.Checkpoint); err == nil {
			files = append(files, data)
		}
	}
	if d, _, err = Train(context.Background(), o); err != nil || !bytes.Equal(saved(t, d), want) {
		t.Errorf("watched: another detector, %v", err)
	}
	o.Progress, o.CheckpointEvery = nil, 0
	if len(files) < 30 {
		t.Fatalf("%d files in 60 epochs", len(files))
	}
	for i := 0; i < len(files); i += 7 {
		if err := os.WriteFile(o.Checkpoint, files[i], 0o666); err != nil {
			t.Fatal(err)
		}
		if d, _, err = Train(context.Background(), o); err != nil || !bytes.Equal(saved(t, d), want) {
			t.Errorf("from file %d: another detector, %v", i, err)
		}
	}
}

func TestTrainRefusesOtherCheckpoints(t *testing.T) {
	t.Parallel()
	main := pipetest.Clouds(t, 1, 60, pipetest.TwoLabels, pipetest.Two...)
	o := quick(main)
	o.Checkpoint = filepath.Join(t.TempDir(), "c")
	resumed := 0
	o.Resumed = func([]int) { resumed++ }

	always := o
	always.Resume = ResumeAlways
	if _, _, err := Train(context.Background(), always); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), o.Checkpoint) {
		t.Errorf("nothing to go on from: %v", err)
	}
	interrupt(t, o, epochs(5))
	kept, err := os.ReadFile(o.Checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	for says, change := range map[string]func(*Options){
		"layers was 2 and is 3":         func(o *Options) { o.Head = head.Residual{Layers: 3, Centroids: 8, Projection: 4} },
		"epochs was 20 and is 21":       func(o *Options) { o.Train.Epochs = 21 },
		"lr was 0.02 and is 0.01":       func(o *Options) { o.Train.LR = 0.01 },
		"balance was false and is true": func(o *Options) { o.Train.Balance = true },
		"seeds was [0] and is [0 1]":    func(o *Options) { o.Seeds = []uint64{0, 1} },
		"the training features are others": func(o *Options) {
			o.Features = []string{pipetest.Clouds(t, 9, 60, pipetest.TwoLabels, pipetest.Two...)}
		},
		"the training labels are others": func(o *Options) { o.Features = []string{pipetest.Clouds(t, 1, 60, []int64{1, 0}, pipetest.Two...)} },
		"the classes are others":         func(o *Options) { o.Features = []string{pipetest.Clouds(t, 1, 60, []int64{0, 2}, pipetest.Two...)} },
		"the choice of training images":  func(o *Options) { o.Calibration.Fraction = 0.2 },
		"the validation features are others": func(o *Options) {
			o.Validation.Features = pipetest.Clouds(t, 2, 20, pipetest.TwoLabels, pipetest.Two...)
		},
	} {
		other := o
		change(&other)
		if _, _, err := Train(context.Background(), other); !errors.Is(err, ErrOtherTraining) || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
	if now, err := os.ReadFile(o.Checkpoint); err != nil || !bytes.Equal(now, kept) || resumed != 0 {
		t.Errorf("the checkpoint was touched: %v", err)
	}

	// What trained heads do not depend on may change, and where sets lie.
	moved := o
	moved.Features, moved.TargetTPR = []string{filepath.Join(t.TempDir(), "moved")}, 0.8
	if err := os.CopyFS(moved.Features[0], os.DirFS(main)); err != nil {
		t.Fatal(err)
	}
	interrupt(t, moved, epochs(5))
	slower := always
	slower.Train.LR = 0.01
	if d, _, err := Train(context.Background(), slower); err != nil || !(d.History[0][0].LR > 0.019) || !(d.History[0][18].LR < 0.0001) {
		t.Errorf("another rate by demand: %v", err)
	}
	if resumed != 2 {
		t.Errorf("went on %d times, want 2", resumed)
	}
	again := o
	again.Resume = ResumeNever
	if _, _, err := Train(context.Background(), again); err != nil || resumed != 2 {
		t.Errorf("begun anew: %v", err)
	}

	// What is not a checkpoint is neither read nor replaced.
	newer := func() []byte {
		var b bytes.Buffer
		if err := safetensors.Write(&b, map[string]string{checkpointKey: `{"version":2}`}, nil); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}()
	var detector bytes.Buffer
	if err := safetensors.Write(&detector, map[string]string{"mlrbfn": "{}"}, nil); err != nil {
		t.Fatal(err)
	}
	altered := slices.Clone(kept)
	altered[len(altered)-9] ^= 1
	for name, data := range map[string][]byte{
		"empty": {}, "cut short": kept[:len(kept)-1], "altered": altered, "another": detector.Bytes(), "newer": newer,
	} {
		if err := os.WriteFile(o.Checkpoint, data, 0o666); err != nil {
			t.Fatal(err)
		}
		for _, o := range []Options{o, always, again} {
			if _, _, err := Train(context.Background(), o); !errors.Is(err, ErrCheckpoint) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if now, err := os.ReadFile(o.Checkpoint); err != nil || !bytes.Equal(now, data) {
			t.Errorf("%s: it was replaced: %v", name, err)
		}
	}
}

// TestTrainKeepsGoodHeads spoils the state of some heads, so that they diverge.
func TestTrainKeepsGoodHeads(t *testing.T) {
	t.Parallel()
	o := quick(pipetest.Clouds(t, 1, 60, pipetest.TwoLabels, pipetest.Two...))
	o.Seeds = []uint64{3, 1, 2}
	o.Checkpoint = filepath.Join(t.TempDir(), "c")
	interrupt(t, o, eachOf(3))
	kept, err := os.ReadFile(o.Checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	spoil := func(heads ...int) {
		t.Helper()
		if err := os.WriteFile(o.Checkpoint, kept, 0o666); err != nil {
			t.Fatal(err)
		}
		run, states, err := readCheckpoint(o.Checkpoint)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range heads {
			states[i].Params[0][0] = float32(math.NaN())
		}
		c := &checkpoint{path: o.Checkpoint, run: run, states: states}
		if err := c.flush(true); err != nil {
			t.Fatal(err)
		}
	}
	spoil(1)
	good := o
	good.Checkpoint, good.Seeds = "", []uint64{3, 2}
	want, _, err := Train(context.Background(), good)
	if err != nil {
		t.Fatal(err)
	}
	d, result, err := Train(context.Background(), o)
	if err != nil || !slices.Equal(d.Seeds, []uint64{3, 2}) || !bytes.Equal(saved(t, d), saved(t, want)) {
		t.Errorf("seeds %v, %v", d.Seeds, err)
	}
	if w := strings.Join(result.Warnings, "\n"); !strings.Contains(w, "seed 1 is left out") || !strings.Contains(w, "NaN") {
		t.Errorf("warnings %q", w)
	}

	spoil(0, 1, 2)
	if _, _, err := Train(context.Background(), o); !errors.Is(err, head.ErrDiverged) {
		t.Errorf("all diverged: %v", err)
	}
	if _, states, err := readCheckpoint(o.Checkpoint); err != nil || len(states) != 3 || states[2] == nil {
		t.Errorf("the checkpoint after that: %v", err)
	}
}

// TestTrainOutlivesAFullDisk removes the folder of the checkpoint under it.
func TestTrainOutlivesAFullDisk(t *testing.T) {
	t.Parallel()
	o := quick(pipetest.Clouds(t, 1, 60, pipetest.TwoLabels, pipetest.Two...))
	dir := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	o.Checkpoint = filepath.Join(dir, "c")
	o.Progress = func(_ int, e head.Epoch) {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
	_, result, err := Train(context.Background(), o)
	if err != nil || !strings.Contains(strings.Join(result.Warnings, "\n"), o.Checkpoint) {
		t.Errorf("%+v, %v", result, err)
	}
	if err := os.Mkdir(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	o.Progress = func(_ int, e head.Epoch) {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
		cancel()
	}
	if _, _, err := Train(ctx, o); errors.Is(err, context.Canceled) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("interrupted, and nothing could be kept: %v", err)
	}
}

func TestTrainSaysOfUnequalClasses(t *testing.T) {
	t.Parallel()
	far := [][2]float64{{0, 0}, {4, 0}, {0, 4}, {4, 4}, {8, 0}, {0, 8}, {8, 8}, {4, 8}, {8, 4}, {12, 0}, {0, 12}}
	labels := []int64{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	for _, tt := range []struct {
		clouds int
		says   string
		rows   []int
	}{{11, `100 images to train on of "0", 10 of "1"; they can be shown equally often (‹Train.Balance sample›)`, []int{100, 10}}, {10, "", []int{90, 10}}} {
		o := quick(pipetest.Clouds(t, 1, 10, labels[:tt.clouds], far[:tt.clouds]...))
		o.Validation.None, o.Calibration.None, o.Train.Epochs = true, true, 1
		d, result, err := Train(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		w := strings.Join(result.Warnings, "\n")
		if tt.says == "" && strings.Contains(w, "unequal") || !strings.Contains(w, tt.says) {
			t.Errorf("warnings %q, want %q", w, tt.says)
		}
		if tt.says != "" {
			o.Train.Balance = true
			if _, result, err = Train(context.Background(), o); err != nil || strings.Contains(strings.Join(result.Warnings, "\n"), "unequal") {
				t.Errorf("balanced: warnings %q, %v", result.Warnings, err)
			}
		}
		if !slices.Equal(d.Training.ClassRows, tt.rows) {
			t.Errorf("rows per class %v, want %v", d.Training.ClassRows, tt.rows)
		}
	}
}
