package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

// TestDetectOnPixels: a detector of pixels makes those of new images as those
// that it was trained on were made, and refuses what it cannot make so.
func TestDetectOnPixels(t *testing.T) {
	digits, err := filepath.Abs(filepath.Join("..", "scripts", "mnist", "testdata", "mnist", "t10k-images-idx3-ubyte.gz"))
	if err != nil {
		t.Fatal(err)
	}
	opts := ExtractOptions{
		Model: extractor.PixelsName, Images: digits, Out: filepath.Join(t.TempDir(), "features"),
		Options: extractor.Options{Width: 3, Height: 5, Mean: []float64{0.5}, Reading: preprocess.Reading{ApplyEXIF: true}},
	}
	result, err := Extract(t.Context(), opts)
	if err != nil || result.New != 100 || result.Meta.D != 3*5 || len(result.Meta.Classes) != 10 {
		t.Fatalf("%+v, %v", result, err)
	}
	if result, err = Extract(t.Context(), opts); err != nil || result.Reused != 100 || result.New != 0 {
		t.Fatalf("again: %+v, %v", result, err)
	}
	train := quick(opts.Out)
	train.Calibration.None = true
	d, _, err := Train(t.Context(), train)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "detector")
	if err := d.Save(file); err != nil {
		t.Fatal(err)
	}
	if d, err = LoadDetector(file); err != nil {
		t.Fatal(err)
	}
	set, err := features.OpenTable(t.Context(), nil, opts.Out)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	want := pipetest.Verdicts(t, d, set.X)
	n := 0
	stats, err := Detect(t.Context(), DetectOptions{Detector: d, Paths: []string{digits}}, func(j Judgement) error {
		if j.Err != nil || j.Verdict != want[n] {
			t.Errorf("%s: %+v, want %+v", j.Path, j, want[n])
		}
		n++
		return nil
	})
	if err != nil || stats.Images != 100 {
		t.Errorf("%+v, %v", stats, err)
	}

	// While paths may still come nobody knows how many; the two that are no idx
	// file's cannot be read.
	paths := [][]string{{digits}, {"gone.png"}}
	more := func(context.Context) ([]string, error) {
		if len(paths) == 0 {
			return nil, io.EOF
		}
		next := paths[0]
		paths = paths[1:]
		return next, nil
	}
	var said [][3]int
	run := extractor.Options{Progress: func(done, failed, total int) { said = append(said, [3]int{done, failed, total}) }}
	if _, err := Detect(t.Context(), DetectOptions{Detector: d, Paths: []string{"absent.png"}, More: more, Options: run}, func(Judgement) error { return nil }); err != nil {
		t.Fatal(err)
	}
	for i, last := range said {
		want := [3]int{last[0], last[1], -1}
		if i == len(said)-1 {
			want = [3]int{102, 2, 102}
		}
		if last != want {
			t.Errorf("progress %d of %d: %v, want %v", i, len(said), last, want)
		}
	}

	for name, c := range map[string]struct {
		spoil func(*Source)
		model string
		is    error
	}{
		"another model":          {func(*Source) {}, "models/other", ErrOtherModel},
		"another size":           {replace(`"width":3`, `"width":4`), "", ErrOtherModel},
		"another mean":           {replace(`0.5`, `0.25`), "", ErrOtherModel},
		"another arithmetic":     {func(s *Source) { s.Fingerprint = "of a later version" }, "", ErrOtherModel},
		"impossible":             {replace(`"bicubic"`, `"magic"`), "", ErrDetector},
		"no preprocessing":       {func(s *Source) { s.Preprocess = nil }, "", ErrDetector},
		"an empty preprocessing": {func(s *Source) { s.Preprocess = json.RawMessage("null") }, "", ErrDetector},
	} {
		spoilt := *d
		c.spoil(&spoilt.Source)
		if _, err := spoilt.OpenBackbone(t.Context(), c.model, extractor.Options{}); !errors.Is(err, c.is) {
			t.Errorf("%s: %v, want %v", name, err, c.is)
		}
	}
	if model, err := d.OpenBackbone(t.Context(), extractor.PixelsName, extractor.Options{}); err != nil || model.Dim() != 15 {
		t.Errorf("named: %v, %v", model, err)
	}

	broken := filepath.Join(t.TempDir(), "broken-images-idx3-ubyte")
	if err := os.WriteFile(broken, []byte("no idx"), 0o666); err != nil {
		t.Fatal(err)
	}
	_, err = Detect(t.Context(), DetectOptions{Detector: d, Paths: []string{digits, broken}}, func(Judgement) error { return nil })
	if err == nil || !strings.Contains(err.Error(), broken) {
		t.Errorf("a broken idx file: %v", err)
	}
}

// replace changes the text of a source's preprocessing.
func replace(from, to string) func(*Source) {
	return func(s *Source) {
		s.Preprocess = json.RawMessage(strings.ReplaceAll(string(s.Preprocess), from, to))
	}
}
