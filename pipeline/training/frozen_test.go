package training

import (
	"bytes"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/head"
	"github.com/mlrbfn/mlrbfn/internal/kernels"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// frozen are trainings of testdata/checkpoint/features whose checkpoints the
// `train` of commit c08d7a4 left when it was killed, with MLRBFN_KERNELS=go,
// which computes the same on every processor of x86-64, and --checkpoint-every 1ms:
//
//   - residual: --centroids 6 --projection 3 --batch 16 --epochs 60 --seeds 3,1;
//   - paper: --paper --layers 3 --norm 1.5 --centroids 6 --projection 4
//     --batch 16 --epochs 40 --seeds 3,1 --balance sample.
//
// The files stay as they are.
var frozen = map[string]struct {
	epochs  []int // that are complete
	options func(*Options)
}{
	"residual": {[]int{18, 28}, func(o *Options) {
		o.Head = head.Residual{Centroids: 6, Projection: 3}
		o.Train.Batch, o.Train.Epochs = 16, 60
	}},
	"paper": {[]int{9, 13}, func(o *Options) {
		o.Head = head.Paper{Layers: 3, Norm: 1.5, Centroids: 6, Projection: 4}
		o.Train.Batch, o.Train.Epochs, o.Train.Balance = 16, 40, true
	}},
}

func frozenOptions(change func(*Options)) Options {
	o := Options{Features: []string{filepath.Join("testdata", "checkpoint", "features")}, Seeds: []uint64{3, 1}}
	change(&o)
	o.fromMeans = true
	return o
}

// TestFrozenCheckpoints: the names in checkpoints, and how values are written,
// never change. An old one is recognised, and written again it is bit-identical.
func TestFrozenCheckpoints(t *testing.T) {
	t.Parallel()
	for name, f := range frozen {
		file := filepath.Join("testdata", "checkpoint", name+".checkpoint")
		was, states, err := readCheckpoint(file)
		if err != nil {
			t.Fatal(err)
		}
		data, err := Open(t.Context(), frozenOptions(f.options))
		if err != nil {
			t.Fatal(err)
		}
		is, err := data.identify(t.Context())
		data.Close()
		if err != nil || !maps.Equal(was, is) {
			t.Errorf("%s: it is of\n%v\nand the same training is now\n%v, %v", name, was, is, err)
		}
		again := &checkpoint{path: filepath.Join(t.TempDir(), "c"), run: is, states: states}
		if err := again.flush(true); err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(again.path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: written again it differs, %v", name, err)
		}
	}
	for want, got := range map[string]string{
		"1e-7": written(1e-7), "0.003": written(0.003), "1e+21": written(1e21), "false": written(false), "18446744073709551615": written(uint64(math.MaxUint64)),
	} {
		if got != want {
			t.Errorf("a value is written as %s, and was as %s", got, want)
		}
	}
}

// TestOldCheckpointsEndAlike: a training that the old program began and this one
// ends gives the same bytes as one that this program does alone. It runs itself
// again, with the arithmetic that the old program used. For processors other than
// x86-64 Go rounds sums of products and exponentials otherwise: what was computed
// there and here differs by as much as a training amplifies that.
func TestOldCheckpointsEndAlike(t *testing.T) {
	t.Parallel()
	if kernels.Name() != "go" {
		again := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		again.Env = append(os.Environ(), "MLRBFN_KERNELS=go")
		if out, err := again.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
			t.Errorf("%v:\n%s", err, out)
		}
		return
	}
	for name, f := range frozen {
		o := frozenOptions(f.options)
		whole, _, err := Train(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join("testdata", "checkpoint", name+".checkpoint"))
		if err != nil {
			t.Fatal(err)
		}
		o.Checkpoint, o.fromMeans = filepath.Join(t.TempDir(), "c"), false // the checkpoint says it
		if err := os.WriteFile(o.Checkpoint, text, 0o666); err != nil {
			t.Fatal(err)
		}
		var before []int
		o.Resumed = func(epochs []int) { before = epochs }
		resumed, _, err := Train(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(before, f.epochs) {
			t.Errorf("%s: it went on from epochs %v, want %v", name, before, f.epochs)
		}
		if runtime.GOARCH == "amd64" {
			if !bytes.Equal(saved(t, resumed), saved(t, whole)) {
				t.Errorf("%s: the detector differs from that of an uninterrupted training", name)
			}
			continue
		}
		set, err := features.Open(t.Context(), o.Features[0])
		if err != nil {
			t.Fatal(err)
		}
		rows := slices.Clone(set.Features())
		set.Close()
		want := pipetest.Verdicts(t, whole, rows)
		low, high, most := math.Inf(1), math.Inf(-1), 0.0
		for i, v := range pipetest.Verdicts(t, resumed, rows) {
			if v.Class != want[i].Class {
				t.Errorf("%s: row %d is of class %s, in an uninterrupted training of %s", name, i, v.Class, want[i].Class)
			}
			low, high, most = min(low, want[i].Score), max(high, want[i].Score), max(most, math.Abs(v.Score-want[i].Score))
		}
		if most > 0.012*(high-low) { // 0.008 on arm64
			t.Errorf("%s: scores differ by up to %.3g from those of an uninterrupted training, which go from %.3g to %.3g", name, most, low, high)
		}
	}
}
