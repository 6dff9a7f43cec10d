package pool

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/onnx"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/pipeline"
	"github.com/mlrbfn/mlrbfn/serve/internal/servetest"
)

// copyFile puts the content of a file in the place of another, whole.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to+".new", data, 0o666)
	}
	if err == nil {
		err = os.Rename(to+".new", to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, opts Options) *Set {
	t.Helper()
	s, err := Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// TestSameVerdicts: a detector here says what pipeline.Judge says, from many goroutines
// at once.
func TestSameVerdicts(t *testing.T) {
	file := servetest.Detector(t, 1)
	judge, err := pipeline.OpenJudge(t.Context(), file, extractor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer judge.Close()
	s := open(t, Options{Detectors: []Named{{"a", file}}})
	d := s.Use("")
	defer d.Release()
	if d.Name != "a" || d.Shadow != nil || !d.Images() || len(d.SHA256) != 64 {
		t.Errorf("%+v", d)
	}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			data := servetest.Image(i%2, uint64(100+i))
			want, err := judge.Image(t.Context(), pipeline.Encoded(data))
			if err != nil {
				t.Error(err)
				return
			}
			row, err := d.Features(t.Context(), data)
			if err != nil {
				t.Error(err)
				return
			}
			got, err := d.Judge(t.Context(), row)
			if err != nil || len(got) != 1 || got[0] != want {
				t.Errorf("%+v, %v, want %+v", got, err, want)
			}
		})
	}
	all.Wait()
	if _, err := d.Features(t.Context(), []byte("no image")); !errors.As(err, new(*ImageError)) {
		t.Error(err)
	}
	if s.Use("other") != nil {
		t.Error("there is a detector that was not named")
	}
}

// TestReplace: a file that changes replaces a detector, whose users keep it until they
// are done; one that cannot be used changes nothing.
func TestReplace(t *testing.T) {
	first, second := servetest.Detector(t, 1), servetest.Detector(t, 2)
	file := filepath.Join(t.TempDir(), "detector")
	copyFile(t, first, file)
	var mu sync.Mutex
	var changes []error
	s := open(t, Options{Detectors: []Named{{"a", file}, {"b", second}}, Shadows: []Named{{"a", second}}, Changed: func(name string, shadow bool, err error) {
		mu.Lock()
		defer mu.Unlock()
		if !shadow {
			changes = append(changes, err)
		}
	}})
	old := s.Use("a")
	if old.Shadow == nil || !old.Shadow.SharesFeatures(old.Loaded) || len(s.backbones) != 1 {
		t.Fatal("the shadow does not share the features")
	}
	old.Shadow.Release()

	if err := os.WriteFile(file, []byte("broken"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := s.Reload(t.Context(), "a"); err == nil {
		t.Error("a broken file was taken")
	}
	if now := s.Use("a"); now.Loaded != old.Loaded {
		t.Error("the old one did not stay")
	} else {
		now.Release()
	}

	copyFile(t, second, file)
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { s.Watch(ctx, time.Millisecond) })
	for {
		now := s.Use("a")
		changed := now.Loaded != old.Loaded
		now.Release()
		if changed {
			if other := s.Use("a"); now.SHA256 != other.Shadow.SHA256 {
				t.Error("it is not what the file has")
			} else {
				other.Release()
			}
			break
		}
		time.Sleep(time.Millisecond)
	}
	cancel()
	watching.Wait()
	// Who has the old one still judges by it.
	row, err := old.Features(t.Context(), servetest.Image(0, 7))
	if err != nil {
		t.Error(err)
	}
	if _, err := old.Judge(t.Context(), row); err != nil {
		t.Error(err)
	}
	old.Release()
	mu.Lock()
	defer mu.Unlock()
	if len(changes) != 2 || changes[0] == nil || changes[1] != nil {
		t.Errorf("changes: %v", changes)
	}
	if users := s.backbones[0].users; users != 3 {
		t.Errorf("the backbone has %d users", users)
	}
}

func TestOpenRefuses(t *testing.T) {
	file := servetest.Detector(t, 1)
	for _, tt := range []struct {
		opts   Options
		option string
	}{
		{Options{}, "Detectors"},
		{Options{Detectors: []Named{{"a", file}, {"a", file}}}, "Detectors"},
		{Options{Detectors: []Named{{"a", file}}, Shadows: []Named{{"b", file}}}, "Shadows"},
		{Options{Detectors: []Named{{"a", file}}, Shadows: []Named{{"a", file}, {"a", file}}}, "Shadows"},
	} {
		_, err := Open(t.Context(), tt.opts)
		if e, ok := errors.AsType[*options.Error](err); !ok || e.Option != tt.option {
			t.Errorf("%+v: %v", tt.opts, err)
		}
	}
	if _, err := Open(t.Context(), Options{Detectors: []Named{{"a", file + ".gone"}}}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	// A detector whose calibration scores were altered fails its test.
	load := func(file string) (*pipeline.Detector, error) {
		d, err := pipeline.LoadDetector(file)
		if err == nil {
			d.CalibrationScores[0] = d.CalibrationScores[len(d.CalibrationScores)-1] + 1
		}
		return d, err
	}
	if _, err := Open(t.Context(), Options{Detectors: []Named{{"a", file}}, Load: load}); err == nil || !strings.Contains(err.Error(), "failed its test") {
		t.Error(err)
	}
}

// TestProbeRefuses: a file whose probe another model answered is refused, also where the
// model is open already, and the old detector still serves.
func TestProbeRefuses(t *testing.T) {
	if err := extractor.InitRuntime(testenv.Runtime(t)); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	model, images, set := filepath.Join(dir, "model"), filepath.Join(dir, "images"), filepath.Join(dir, "features")
	for i := range 60 {
		folder := filepath.Join(images, strconv.Itoa(i%2))
		if err := errors.Join(os.MkdirAll(folder, 0o777), os.WriteFile(filepath.Join(folder, strconv.Itoa(i)+".png"), servetest.Image(i%2, uint64(i)), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	m, err := onnx.New(17, "test", "")
	if err != nil {
		t.Fatal(err)
	}
	weights := make([]float32, 192*12)
	for i := range weights {
		weights[i] = float32(i*7919%1013)/1013 - 0.5
	}
	x := m.Op("Reshape", m.Input("image", onnx.Float, onnx.Batch, 3, 8, 8), m.Int64s(-1, 192))
	m.Output("features", m.Op("MatMul", x, m.Floats(weights, 192, 12)), onnx.Float, onnx.Batch, 12)
	var graph bytes.Buffer
	if err := errors.Join(m.Write(&graph), os.Mkdir(model, 0o777), os.WriteFile(filepath.Join(model, "model.onnx"), graph.Bytes(), 0o666), os.WriteFile(filepath.Join(model, "preprocessor_config.json"),
		[]byte(`{"image_processor_type": "ViTImageProcessor", "size": {"height": 8, "width": 8}, "resample": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}`), 0o666)); err != nil {
		t.Fatal(err)
	}
	if _, err := pipeline.Extract(t.Context(), pipeline.ExtractOptions{Model: model, Images: images, Out: set}); err != nil {
		t.Fatal(err)
	}
	opts := pipeline.TrainOptions{Features: []string{set}}
	opts.Train.Epochs, opts.Calibration.Fraction = 3, 0.4
	d, _, err := pipeline.Train(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "detector")
	if err := d.Save(file); err != nil {
		t.Fatal(err)
	}
	s := open(t, Options{Detectors: []Named{{"a", file}}})
	for i := range d.Probe.Features {
		d.Probe.Features[i] *= -1
	}
	if err := d.Save(file); err != nil {
		t.Fatal(err)
	}
	before := s.Use("a")
	defer before.Release()
	if err := s.Reload(t.Context(), "a"); !errors.Is(err, features.ErrDrifted) {
		t.Errorf("a detector of other features: %v", err)
	}
	after := s.Use("a")
	defer after.Release()
	if after.Loaded != before.Loaded {
		t.Error("the old one does not serve")
	}
	if _, err := after.Features(t.Context(), servetest.Image(0, 99)); err != nil {
		t.Error(err)
	}
}
