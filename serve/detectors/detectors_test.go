package detectors

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"mlrbfn/options"
	"mlrbfn/pipeline"
	"mlrbfn/serve/internal/servetest"
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
	judge, err := pipeline.OpenJudge(t.Context(), file, pipeline.JudgeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer judge.Close()
	s := open(t, Options{Detectors: []Named{{"a", file}}})
	d, shadow := s.Use("")
	defer d.Release()
	if d.Name != "a" || shadow != nil || !d.Images() || len(d.SHA256) != 64 {
		t.Errorf("%+v, %+v", d, shadow)
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
	if main, _ := s.Use("other"); main != nil {
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
	old, shadow := s.Use("a")
	if shadow == nil || !shadow.SharesFeatures(old) || len(s.backbones) != 1 {
		t.Fatal("the shadow does not share the features")
	}
	shadow.Release()

	if err := os.WriteFile(file, []byte("broken"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := s.Reload(t.Context(), "a"); err == nil {
		t.Error("a broken file was taken")
	}
	if now, shadow := s.Use("a"); now != old {
		t.Error("the old one did not stay")
	} else {
		now.Release()
		shadow.Release()
	}

	copyFile(t, second, file)
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() { s.Watch(ctx, time.Millisecond) })
	for {
		now, shadow := s.Use("a")
		changed := now != old
		now.Release()
		shadow.Release()
		if changed {
			if _, other := s.Use("a"); now.SHA256 != other.SHA256 {
				t.Error("it is not what the file has")
			} else {
				now.Release()
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
