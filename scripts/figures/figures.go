// Package figures draws the figures of the examples with gonum/plot.
package figures

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/mlrbfn/mlrbfn/internal/command/figures"
	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// Palette holds the colours of series, as in the report in light mode.
var Palette = []color.NRGBA{figures.Shade("c0"), figures.Shade("c1"), figures.Shade("c2"), figures.Shade("c3")}

// A Series is a named list of values.
type Series struct {
	Name   string
	Values []float64
}

// Histogram draws the density of each series over bins of equal width between
// low and high, in the colours of [Palette], one over another. Values outside
// count as the nearest value inside. An empty series, a NaN, an empty range or more
// series than colours are errors.
func Histogram(title, label string, low, high float64, bins int, series ...Series) (*plot.Plot, error) {
	if !(low < high) || bins < 1 || len(series) > len(Palette) {
		return nil, fmt.Errorf("histogram of %d series in %d bins from %g to %g", len(series), bins, low, high)
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, label, "density"
	p.X.Min, p.X.Max = low, high
	p.Legend.Top = true
	for i, s := range series {
		bars, err := densities(s.Values, low, high, bins)
		if err != nil {
			return nil, fmt.Errorf("histogram of %s: %w", s.Name, err)
		}
		h := &plotter.Histogram{Bins: bars, Width: (high - low) / float64(bins), FillColor: faint(Palette[i])}
		h.LineStyle = draw.LineStyle{Color: Palette[i], Width: vg.Points(0.5)}
		p.Add(h)
		p.Legend.Add(s.Name, h)
	}
	return p, nil
}

// densities returns the bars of a histogram with a total area of 1.
func densities(values []float64, low, high float64, bins int) ([]plotter.HistogramBin, error) {
	if len(values) == 0 {
		return nil, errors.New("it is empty")
	}
	width := (high - low) / float64(bins)
	bars := make([]plotter.HistogramBin, bins)
	for i := range bars {
		bars[i].Min, bars[i].Max = low+float64(i)*width, low+float64(i+1)*width
	}
	for _, v := range values {
		if math.IsNaN(v) {
			return nil, errors.New("it holds a NaN")
		}
		// Clip before the conversion: the value may be infinite.
		at := int(max(0, min(math.Floor((v-low)/width), float64(bins-1))))
		bars[at].Weight += 1 / (float64(len(values)) * width)
	}
	return bars, nil
}

// faint returns a transparent version of a colour.
func faint(c color.NRGBA) color.NRGBA {
	c.A = 0x60
	return c
}

// Save draws plots side by side, each of the given size, to files in the formats
// of their extensions (.png, .svg, .pdf …). Each file is written atomically.
func Save(width, height vg.Length, plots []*plot.Plot, files ...string) error {
	if len(plots) == 0 {
		return errors.New("no plots to draw")
	}
	pad := vg.Centimeter / 4
	tiles := draw.Tiles{Rows: 1, Cols: len(plots), PadX: 2 * pad, PadTop: pad, PadBottom: pad, PadLeft: pad, PadRight: pad}
	for _, file := range files {
		c, err := draw.NewFormattedCanvas(width*vg.Length(len(plots)), height, strings.TrimPrefix(filepath.Ext(file), "."))
		if err != nil {
			return fmt.Errorf("figure %s: %w", file, err)
		}
		for i, canvas := range plot.Align([][]*plot.Plot{plots}, tiles, draw.New(c))[0] {
			plots[i].Draw(canvas)
		}
		if err := disk.Write(file, func(w io.Writer) error { _, err := c.WriteTo(w); return err }); err != nil {
			return fmt.Errorf("figure: %w", err)
		}
	}
	return nil
}
