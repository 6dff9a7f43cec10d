package pipeline

import (
	"bytes"
	"errors"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/mlrbfn/mlrbfn/extractor"
)

// TestJudge: an image gets one verdict, wherever it comes from: that of Detect.
func TestJudge(t *testing.T) {
	dir := t.TempDir()
	images, features := filepath.Join(dir, "images"), filepath.Join(dir, "features")
	for i := range 60 {
		tile(t, filepath.Join(images, []string{"a", "b"}[i%2], string(rune('A'+i))+".png"), uint64(i))
	}
	extract(t, tiles(images, features))
	o := quick(features)
	o.Calibration.Fraction = 0.4
	d, _, err := Train(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "detector")
	if err := d.Save(file); err != nil {
		t.Fatal(err)
	}
	judge, err := OpenJudge(t.Context(), file, extractor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer judge.Close()

	var paths []string
	var want []Verdict
	if _, err := Detect(t.Context(), DetectOptions{Detector: d, Paths: []string{images}}, func(j Judgement) error {
		paths, want = append(paths, j.Path), append(want, j.Verdict)
		return j.Err
	}); err != nil {
		t.Fatal(err)
	}
	forms := func(path string) map[string]Picture {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		img, err := png.Decode(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		// The same pixels elsewhere in a larger picture, premultiplied.
		large := image.NewRGBA(image.Rect(0, 0, 20, 20))
		draw.Draw(large, image.Rect(7, 5, 11, 8), img, img.Bounds().Min, draw.Src)
		return map[string]Picture{
			"file": File(path), "bytes": Encoded(data), "reader": Reader(iotest.OneByteReader(bytes.NewReader(data))),
			"image": Decoded(img), "part": Decoded(large.SubImage(image.Rect(7, 5, 11, 8))),
		}
	}
	var all sync.WaitGroup
	for i, path := range paths {
		all.Go(func() {
			for form, picture := range forms(path) {
				if got, err := judge.Image(t.Context(), picture); err != nil || got != want[i] {
					t.Errorf("%s as %s: %+v, %v, want %+v", path, form, got, err, want[i])
				}
			}
		})
	}
	all.Wait()

	// Many at a time, some of which cannot be read.
	broken := errors.New("broken")
	clear := image.NewNRGBA(image.Rect(0, 0, 4, 3))
	clear.Set(1, 1, color.NRGBA{200, 100, 50, 0})
	pictures := []Picture{File("gone.png"), File(paths[1]), Reader(iotest.ErrReader(broken)), Encoded([]byte("no image")), Encoded(nil), Decoded(image.NewGray(image.Rect(0, 0, 0, 9))), File(paths[2]), Decoded(clear)}
	answers, err := judge.Images(t.Context(), pictures...)
	if err != nil || len(answers) != len(pictures) {
		t.Fatal(answers, err)
	}
	for i, a := range answers {
		if good := i == 1 || i == 6 || i == 7; (a.Err == nil) != good {
			t.Errorf("picture %d: %v", i, a.Err)
		}
	}
	if answers[1].Verdict != want[1] || answers[6].Verdict != want[2] || !errors.Is(answers[0].Err, os.ErrNotExist) || !errors.Is(answers[2].Err, broken) {
		t.Errorf("%+v", answers)
	}
	if none, err := judge.Images(t.Context()); err != nil || len(none) != 0 {
		t.Errorf("of none: %v, %v", none, err)
	}
	small := extractor.Options{MaxPixels: 11}
	other, err := NewJudge(t.Context(), d, "", small)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for form, picture := range forms(paths[0]) {
		if _, err := other.Image(t.Context(), picture); err == nil || !strings.Contains(err.Error(), "11") {
			t.Errorf("12 pixels as %s where 11 are allowed: %v", form, err)
		}
	}
}

// TestImportsNoPlotting: a program that imports this package does not get modules
// for PDF, LaTeX or plots, nor an SDK for buckets.
func TestImportsNoPlotting(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range strings.Fields(string(out)) {
		for _, unwanted := range []string{"gonum.org/v1/plot", "pdf", "latex", "svgo", "go-fonts", "aws-sdk", "smithy", "github.com/mlrbfn/mlrbfn/internal/command"} {
			if strings.Contains(name, unwanted) {
				t.Errorf("it imports %s", name)
			}
		}
	}
}
