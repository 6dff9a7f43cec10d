package pipeline

import (
	"context"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/extractor/preprocess"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// striped draws stripes of a kind, lying or standing, with noise, and a strange
// region where there is one.
func striped(t *testing.T, path string, kind int, seed uint64, strange image.Rectangle) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, uint64(kind)))
	img := image.NewNRGBA(image.Rect(0, 0, 16, 16))
	for y := range 16 {
		for x := range 16 {
			v := 60 + 120*([]int{x, y}[kind]/4%2) + int(20*rng.Float64())
			img.Set(x, y, color.NRGBA{uint8(v), uint8(v), uint8(v), 255})
		}
	}
	draw.Draw(img, strange, image.NewUniform(color.NRGBA{255, 0, 0, 255}), image.Point{}, draw.Src)
	testenv.SavePNG(t, path, img)
}

// TestExplainImages: Detect and Judge give the same explanations and unchanged
// verdicts; the map of a flagged image is highest where it is strange; an image that
// was moved can still be shown.
func TestExplainImages(t *testing.T) {
	dir := t.TempDir()
	images, set := filepath.Join(dir, "images"), filepath.Join(dir, "features")
	for i := range 120 {
		striped(t, filepath.Join(images, []string{"lying", "standing"}[i%2], fmt.Sprint(i, ".png")), i%2, uint64(i), image.Rectangle{})
	}
	if _, err := Extract(t.Context(), ExtractOptions{Model: extractor.PixelsName, Images: images, Out: set}); err != nil {
		t.Fatal(err)
	}
	o := quick(set)
	o.Calibration.Fraction = 0.3
	d, _, err := Train(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	fresh := filepath.Join(dir, "new")
	strange := image.Rect(10, 2, 14, 6) // in the grid of 8 × 8 cells: columns 5 and 6, rows 1 and 2
	striped(t, filepath.Join(fresh, "a.png"), 0, 1000, image.Rectangle{})
	striped(t, filepath.Join(fresh, "b.png"), 1, 1001, strange)
	if err := os.WriteFile(filepath.Join(fresh, "c.png"), []byte("no image"), 0o666); err != nil {
		t.Fatal(err)
	}
	e, err := NewExplainer(t.Context(), d, ExplainOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	detect := func(opts DetectOptions) (all []Judgement) {
		opts.Detector, opts.Paths = d, []string{fresh}
		if _, err := Detect(t.Context(), opts, func(j Judgement) error { all = append(all, j); return nil }); err != nil {
			t.Fatal(err)
		}
		return all
	}
	plain, got := detect(DetectOptions{}), detect(DetectOptions{Explain: e, Where: true})
	for i, j := range got {
		if j.Path != plain[i].Path || j.Verdict != plain[i].Verdict || plain[i].Explanation != nil {
			t.Errorf("%+v, and without explanation %+v", j, plain[i])
		}
	}
	if got[0].OOD || got[0].Explanation.Where != nil || !got[1].OOD || got[2].Err == nil || got[2].Explanation != nil {
		t.Fatalf("%+v", got)
	}
	for _, n := range got[0].Explanation.Nearest {
		if n.Class != "lying" || filepath.Dir(n.Image.Path) != "lying" || got[0].Class != "lying" {
			t.Errorf("near to lying stripes: %+v", n)
		}
		if img, err := n.Image.Decode(); err != nil || img.Bounds().Dx() != 16 {
			t.Errorf("the picture of %s: %v, %v", n.Image.Path, img, err)
		}
	}
	m := got[1].Explanation.Where
	if m.Width != 8 || m.Height != 8 || len(m.Values) != 64 || m.Area != [4]float64{0, 0, 1, 1} {
		t.Fatalf("%+v", m)
	}
	high := slices.Sorted(slices.Values(m.Values))[60:] // the four highest
	for cell, v := range m.Values {
		x, y := cell%8, cell/8
		if within := (x == 5 || x == 6) && (y == 1 || y == 2); within != (v >= high[0]) {
			t.Errorf("cell %d, %d has %g; the four highest are %g", x, y, v, high)
		}
	}
	if again := detect(DetectOptions{Explain: e, Where: true}); !slices.Equal(again[1].Explanation.Where.Values, m.Values) {
		t.Errorf("another map: %v, want %v", again[1].Explanation.Where, m)
	}

	judge, err := NewJudge(t.Context(), d, "", extractor.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer judge.Close()
	var pictures []Picture
	for _, j := range got {
		pictures = append(pictures, File(j.Path))
	}
	answers, err := judge.Explain(t.Context(), e, true, pictures...)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		if (a.Err == nil) != (got[i].Err == nil) || a.Verdict != got[i].Verdict {
			t.Errorf("%+v, want %+v", a, got[i])
		}
		if a.Err != nil {
			continue
		}
		if want := got[i].Explanation; a.Explanation.Why != want.Why || !reflect.DeepEqual(a.Explanation.Parts, want.Parts) || !reflect.DeepEqual(a.Explanation.Where, want.Where) {
			t.Errorf("%+v, want %+v", a.Explanation, want)
		}
	}

	// As they come, each in its turn.
	rounds := [][]string{{filepath.Join(fresh, "b.png")}, {filepath.Join(fresh, "a.png")}}
	var seen []string
	more := func(context.Context) ([]string, error) {
		if len(seen) != 2-len(rounds) {
			t.Errorf("asked for more after %q", seen)
		}
		if len(rounds) == 0 {
			return nil, io.EOF
		}
		next := rounds[0]
		rounds = rounds[1:]
		return next, nil
	}
	if _, err := Detect(t.Context(), DetectOptions{Detector: d, More: more, Explain: e}, func(j Judgement) error {
		seen = append(seen, j.Path)
		return nil
	}); err != nil || len(seen) != 2 {
		t.Errorf("%q, %v", seen, err)
	}

	moved := detect(DetectOptions{Explain: e, Where: true, SetAside: filepath.Join(dir, "aside")})
	if moved[1].SetAside == "" || !slices.Equal(moved[1].Explanation.Where.Values, m.Values) {
		t.Errorf("%+v", moved[1])
	}
	for _, j := range moved[:2] {
		if img, err := j.Image(t.Context(), preprocess.DecodeOptions{}); err != nil || img.Bounds().Dx() != 16 {
			t.Errorf("the picture of %s: %v, %v", j.Path, img, err)
		}
	}
	if img, err := moved[2].Image(t.Context(), preprocess.DecodeOptions{}); err == nil || img != nil {
		t.Errorf("the picture of a broken file: %v, %v", img, err)
	}
}
