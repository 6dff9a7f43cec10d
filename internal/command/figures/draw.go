// Package figures draws the charts of reports as static pictures with gonum/plot.
package figures

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/mlrbfn/mlrbfn/report"
)

const (
	chartWidth   = 360 // points
	chartHeight  = 230 // without the legend
	legendHeight = 15  // of a line
	legendKey    = 24  // width of the line or mark before a name
)

func init() { report.Draw = Draw }

// Draw makes a static picture of a chart, as "svg" or "png", on white. Importing this
// package makes it [report.Draw].
func Draw(c report.Chart, format string) ([]byte, error) {
	p := plot.New()
	p.BackgroundColor = Shade("paper")
	for _, axis := range []struct {
		plot *plot.Axis
		report.Axis
	}{{&p.X, c.X}, {&p.Y, c.Y}} {
		a := axis.plot
		a.Min, a.Max = axis.Min, axis.Max
		a.Label.Text, a.Label.TextStyle.Font, a.Label.TextStyle.Color = axis.Label, sans(10), Shade("faint")
		a.Tick.Label.Font, a.Tick.Label.Color, a.Tick.Marker = sans(9), Shade("faint"), ticks(axis.Axis)
		if axis.Log {
			a.Scale = plot.LogScale{}
		}
		a.Tick.Length, a.Padding, a.Label.Padding = 0, 4, 3
		a.LineStyle.Width = 0
	}
	grid := plotter.NewGrid()
	for _, line := range []*draw.LineStyle{&grid.Horizontal, &grid.Vertical} {
		line.Color, line.Width = Shade("grid"), 1
	}
	if c.Y.Names != nil {
		grid.Horizontal.Width = 0
	}
	p.Add(grid)
	for i := len(c.Series) - 1; i >= 0; i-- {
		if err := add(p, c.Series[i], c); err != nil {
			return nil, fmt.Errorf("chart %s, %s: %w", c.Name, c.Series[i].Name, err)
		}
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = c.X.Min, c.X.Max, c.Y.Min, c.Y.Max // replaces the range of the series

	var listed []report.Series
	for _, s := range c.Series {
		if !s.Hidden {
			listed = append(listed, s)
		}
	}
	below := vg.Length((len(listed)+1)/2) * legendHeight
	canvas, err := draw.NewFormattedCanvas(chartWidth, chartHeight+below, format)
	if err != nil {
		return nil, fmt.Errorf("chart %s: %w", c.Name, err)
	}
	all := draw.New(canvas)
	p.Draw(draw.Crop(all, 4, -10, below+4, -8))
	style := p.Legend.TextStyle
	style.Font, style.Color, style.YAlign = sans(9), Shade("ink"), draw.YCenter
	for i, s := range listed {
		at := vg.Point{X: 10 + vg.Length(i%2)*chartWidth/2, Y: below - (vg.Length(i/2)+.5)*legendHeight + 2}
		drawKey(all, s, at)
		room := vg.Length(chartWidth/2 - 16 - legendKey - 4)
		all.FillText(style, vg.Point{X: at.X + legendKey + 4, Y: at.Y}, clip(s.Name, func(text string) bool { return style.Width(text) <= room }))
	}
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return nil, fmt.Errorf("chart %s: %w", c.Name, err)
	}
	return b.Bytes(), nil
}

// add draws a series on a plot.
func add(p *plot.Plot, s report.Series, c report.Chart) error {
	outline := s.Outline(c.X)
	if len(outline) == 0 {
		return nil
	}
	points := make(plotter.XYs, len(outline))
	for i, at := range outline {
		points[i] = plotter.XY{X: at.X, Y: at.Y}
	}
	if s.Fill > 0 {
		area, err := plotter.NewPolygon(points)
		if err != nil {
			return err
		}
		area.Color, area.LineStyle.Width = faintly(Shade(s.Colour), s.Fill), 0
		p.Add(area)
	}
	if s.Width > 0 {
		line, err := plotter.NewLine(points)
		if err != nil {
			return err
		}
		line.LineStyle = lineStyle(s)
		p.Add(line)
	}
	if s.Deviations != nil {
		spread := spread{points, s.Deviations}
		var bars plot.Plotter
		if c.Y.Names != nil {
			x, err := plotter.NewXErrorBars(spread)
			if err != nil {
				return err
			}
			x.Color, x.Width, x.CapWidth, bars = Shade(s.Colour), 1.2, 0, x
		} else {
			y, err := plotter.NewYErrorBars(spread)
			if err != nil {
				return err
			}
			y.Color, y.Width, y.CapWidth, bars = Shade(s.Colour), 1.2, 0, y
		}
		p.Add(bars)
	}
	if s.Marker != "" {
		marks, err := plotter.NewScatter(points)
		if err != nil {
			return err
		}
		marks.GlyphStyle = glyph(s)
		p.Add(marks)
	}
	return nil
}

// drawKey draws the line or mark before a name in the legend.
func drawKey(c draw.Canvas, s report.Series, at vg.Point) {
	if s.Fill > 0 {
		c.FillPolygon(faintly(Shade(s.Colour), s.Fill), []vg.Point{{X: at.X, Y: at.Y - 4}, {X: at.X, Y: at.Y + 4}, {X: at.X + legendKey, Y: at.Y + 4}, {X: at.X + legendKey, Y: at.Y - 4}})
	}
	if s.Width > 0 {
		c.StrokeLine2(lineStyle(s), at.X, at.Y, at.X+legendKey, at.Y)
	}
	if s.Marker != "" {
		c.DrawGlyph(glyph(s), vg.Point{X: at.X + legendKey/2, Y: at.Y})
	}
}

func lineStyle(s report.Series) draw.LineStyle {
	style := draw.LineStyle{Color: Shade(s.Colour), Width: vg.Length(s.Width)}
	for _, d := range s.Dashes {
		style.Dashes = append(style.Dashes, vg.Length(d))
	}
	return style
}

func glyph(s report.Series) draw.GlyphStyle {
	style := draw.GlyphStyle{Color: Shade(s.Colour), Radius: 3, Shape: draw.CircleGlyph{}}
	if s.Marker == "square" {
		style.Shape = draw.BoxGlyph{}
	}
	return style
}

// spread holds points with their deviations along one axis.
type spread struct {
	plotter.XYs
	deviations []float64
}

func (s spread) XError(i int) (low, high float64) { return s.deviations[i], s.deviations[i] }
func (s spread) YError(i int) (low, high float64) { return s.deviations[i], s.deviations[i] }

// ticks returns the ticks of an axis.
func ticks(a report.Axis) plot.Ticker {
	if a.Names != nil {
		var named plot.ConstantTicks
		for i, name := range a.Names {
			named = append(named, plot.Tick{Value: float64(i), Label: name})
		}
		return named
	}
	scale := 1.0
	if a.Percent {
		scale = 100
	}
	if a.Log {
		return plot.TickerFunc(func(low, high float64) (ticks []plot.Tick) {
			for v := math.Pow(10, math.Ceil(math.Log10(low)-1e-9)); v <= high*1.001; v *= 10 {
				ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(scale*v, 'g', 6, 64)})
			}
			return ticks
		})
	}
	return plot.TickerFunc(func(low, high float64) (ticks []plot.Tick) {
		low, high = low*scale, high*scale
		step := math.Pow(10, math.Floor(math.Log10((high-low)/5)))
		for _, times := range []float64{2, 2.5, 2} { // 2, 5, 10 times the power of ten
			if (high-low)/step > 5.5 {
				step *= times
			}
		}
		for n := range 8 { // bounded even for a narrow range of large numbers
			v := (math.Ceil(low/step-1e-9) + float64(n)) * step
			if v > high+1e-9*step {
				break
			}
			label := strings.Replace(strconv.FormatFloat(v+0, 'g', 6, 64), "-", "−", 1) // +0 turns −0 into 0
			ticks = append(ticks, plot.Tick{Value: v / scale, Label: label})
		}
		return ticks
	})
}

// Shade returns a colour of the report's palette in light mode.
func Shade(name string) color.NRGBA {
	for _, c := range report.Palette {
		if c.Name == name {
			v, _ := strconv.ParseUint(c.Light[1:], 16, 32)
			return color.NRGBA{uint8(v >> 16), uint8(v >> 8), uint8(v), 255}
		}
	}
	return color.NRGBA{A: 255}
}

func faintly(c color.NRGBA, opacity float64) color.NRGBA {
	c.A = uint8(255*opacity + .5)
	return c
}

func sans(size float64) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Length(size)}
}

// clip shortens a text until it fits.
func clip(text string, fits func(string) bool) string {
	if fits(text) {
		return text
	}
	letters := []rune(text)
	for len(letters) > 1 && !fits(string(letters)+"…") {
		letters = letters[:len(letters)-1]
	}
	return string(letters) + "…"
}
