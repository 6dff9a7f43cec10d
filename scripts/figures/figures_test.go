package figures

import (
	"bytes"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

func TestHistogramSaves(t *testing.T) {
	series := []Series{{"one", []float64{0, 0.2, 1}}, {"two", []float64{math.Inf(-1), 5}}}
	p, err := Histogram("title", "x", 0, 1, 4, series...)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "a.png"), filepath.Join(dir, "a.svg")}
	if err := Save(8*vg.Centimeter, 6*vg.Centimeter, []*plot.Plot{p, p}, files...); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if size := img.Bounds().Size(); math.Abs(float64(size.X)/float64(size.Y)-16./6) > 0.02 {
		t.Errorf("two plots of 8×6 cm make %v", size)
	}
	svg, err := os.ReadFile(files[1])
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"<svg", "title", "one", "two"} {
		if !strings.Contains(string(svg), text) {
			t.Errorf("the SVG has no %q", text)
		}
	}
}

// TestDensities: the bars of each series cover an area of 1, and values outside
// are in the outermost.
func TestDensities(t *testing.T) {
	bars, err := densities([]float64{-7, 0, 0.3, 0.9, 2, 2.1, math.Inf(1), math.Inf(-1)}, 0, 2, 4)
	if err != nil {
		t.Fatal(err)
	}
	want := []plotter.HistogramBin{{Min: 0, Max: 0.5, Weight: 1}, {Min: 0.5, Max: 1, Weight: 0.25}, {Min: 1, Max: 1.5}, {Min: 1.5, Max: 2, Weight: 0.75}}
	for i, b := range bars {
		if b != want[i] {
			t.Errorf("bar %d is %+v, want %+v", i, b, want[i])
		}
	}
}

func TestHistogramRefuses(t *testing.T) {
	for name, draw := range map[string]func() (*plot.Plot, error){
		"no values":  func() (*plot.Plot, error) { return Histogram("", "", 0, 1, 4, Series{Name: "s"}) },
		"NaN":        func() (*plot.Plot, error) { return Histogram("", "", 0, 1, 4, Series{"s", []float64{math.NaN()}}) },
		"no bins":    func() (*plot.Plot, error) { return Histogram("", "", 0, 1, 0) },
		"no range":   func() (*plot.Plot, error) { return Histogram("", "", 1, 1, 4) },
		"no colours": func() (*plot.Plot, error) { return Histogram("", "", 0, 1, 4, make([]Series, 9)...) },
	} {
		if _, err := draw(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	p := plot.New()
	if err := Save(vg.Centimeter, vg.Centimeter, []*plot.Plot{p}, filepath.Join(t.TempDir(), "a.odd")); err == nil || !strings.Contains(err.Error(), "a.odd") {
		t.Error(err)
	}
	if err := Save(vg.Centimeter, vg.Centimeter, nil, "a.png"); err == nil {
		t.Error("no error without plots")
	}
}
