package evaluation

import (
	"image/color"
	"math"
	"path/filepath"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"mlrbfn/pipeline/internal/files"
	"mlrbfn/report/figures"
)

var blue, vermilion = figures.Palette[0], figures.Palette[1]

// groupStyles tell near from far, whatever the colour.
var groupStyles = []struct {
	group, label string
	dashes       []vg.Length
	glyph        draw.GlyphDrawer
}{
	{Near, "near-OOD", nil, draw.CircleGlyph{}},
	{Far, "far-OOD", []vg.Length{vg.Points(5), vg.Points(3)}, draw.SquareGlyph{}},
}

// spread is means with their deviations, on one of the axes.
type spread struct {
	plotter.XYs
	deviations []float64
}

func (s spread) XError(i int) (low, high float64) { return s.deviations[i], s.deviations[i] }
func (s spread) YError(i int) (low, high float64) { return s.deviations[i], s.deviations[i] }

// percent is the ticks of an axis of shares: round figures of at most 100.
type percent struct{}

func (percent) Ticks(low, high float64) []plot.Tick {
	step := 5.0
	switch {
	case high-low > 40:
		step = 10
	case high-low < 10:
		step = 1
	}
	var ticks []plot.Tick
	for v := math.Ceil(low/step) * step; v <= min(high, 100); v += step {
		ticks = append(ticks, plot.Tick{Value: v, Label: strconv.FormatFloat(v, 'f', -1, 64)})
	}
	return ticks
}

// drawAblation draws the figures that there is something for.
func drawAblation(dir string, rows []Figures, opts AblateOptions, layers int) error {
	_, means := overview(rows)
	if len(opts.Depths) > 0 {
		p, err := depthPlot(means, opts.Depths)
		if err != nil {
			return err
		}
		if err := saveFigure(p, 14*vg.Centimeter, 10*vg.Centimeter, filepath.Join(dir, depthFigure)); err != nil {
			return err
		}
	}
	if len(opts.Steps) == 0 {
		return nil
	}
	p, err := stepsPlot(means, append([]string{mlrbfnName(layers)}, opts.Steps...))
	if err != nil {
		return err
	}
	return saveFigure(p, 16*vg.Centimeter, vg.Length(4+len(opts.Steps))*vg.Centimeter, filepath.Join(dir, stepsFigure))
}

// depthPlot is the paper's figure 6: AUROC by the number of layers, for both
// kinds of head and both groups, with the deviations over the seeds.
func depthPlot(means map[summary]Figures, depths []int) (*plot.Plot, error) {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = "layers", "AUROC, %"
	depths = slices.Sorted(slices.Values(depths))
	var ticks plot.ConstantTicks
	for _, d := range depths {
		ticks = append(ticks, plot.Tick{Value: float64(d), Label: strconv.Itoa(d)})
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = ticks, percent{}
	for _, kind := range []struct {
		label string
		name  func(layers int) string
		color color.Color
	}{{"MLRBFN", mlrbfnName, blue}, {"ReLU network, MSP", reluName, vermilion}} {
		for _, style := range groupStyles {
			var s spread
			for _, d := range depths {
				if mean, ok := means[summary{kind.name(d), style.group, "mean"}]; ok {
					s.XYs = append(s.XYs, plotter.XY{X: float64(d), Y: 100 * mean.AUROC})
					s.deviations = append(s.deviations, 100*means[summary{kind.name(d), style.group, "std"}].AUROC)
				}
			}
			if len(s.XYs) == 0 {
				continue
			}
			line, points, err := plotter.NewLinePoints(s)
			if err != nil {
				return nil, err
			}
			bars, err := plotter.NewYErrorBars(s)
			if err != nil {
				return nil, err
			}
			line.Color, line.Dashes, line.Width = kind.color, style.dashes, vg.Points(1.5)
			points.Color, points.Shape, points.Radius = kind.color, style.glyph, vg.Points(3)
			bars.Color = kind.color
			p.Add(line, points, bars)
			p.Legend.Add(kind.label+", "+style.label, line, points)
		}
	}
	p.X.Min, p.X.Max = p.X.Min-0.25, p.X.Max+0.25
	p.Legend.Top, p.Legend.Padding = true, vg.Points(2)
	p.Y.Max += 0.4 * (p.Y.Max - p.Y.Min) // room for the legend
	return p, nil
}

// stepsPlot shows the AUROC of heads, the first of which is what the others are
// compared with, from top to bottom.
func stepsPlot(means map[summary]Figures, names []string) (*plot.Plot, error) {
	p := plot.New()
	p.X.Label.Text = "AUROC, %"
	var ticks plot.ConstantTicks
	for i, name := range names {
		ticks = append(ticks, plot.Tick{Value: -float64(i), Label: name})
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = percent{}, ticks
	p.Y.Min, p.Y.Max = -float64(len(names)), 1
	for at, style := range groupStyles {
		var s spread
		for i, name := range names {
			if mean, ok := means[summary{name, style.group, "mean"}]; ok {
				s.XYs = append(s.XYs, plotter.XY{X: 100 * mean.AUROC, Y: -float64(i)})
				s.deviations = append(s.deviations, 100*means[summary{name, style.group, "std"}].AUROC)
			}
		}
		if len(s.XYs) == 0 {
			continue
		}
		points, err := plotter.NewScatter(s)
		if err != nil {
			return nil, err
		}
		bars, err := plotter.NewXErrorBars(s)
		if err != nil {
			return nil, err
		}
		points.Color, points.Shape, points.Radius = []color.Color{blue, vermilion}[at], style.glyph, vg.Points(3)
		bars.Color = points.Color
		if base, ok := means[summary{names[0], style.group, "mean"}]; ok {
			x := 100 * base.AUROC
			line, err := plotter.NewLine(plotter.XYs{{X: x, Y: p.Y.Min}, {X: x, Y: 0}})
			if err != nil {
				return nil, err
			}
			line.Color, line.Dashes = points.Color, []vg.Length{vg.Points(1), vg.Points(3)}
			p.Add(line)
		}
		p.Add(points, bars)
		p.Legend.Add(style.label, points)
	}
	p.Legend.Top, p.Legend.Left, p.Legend.Padding = true, true, vg.Points(2)
	return p, nil
}

// figureFormats are the formats that every figure is written in.
var figureFormats = []string{"png", "svg"}

// saveFigure writes a figure to path, to which it adds the formats' extensions.
func saveFigure(p *plot.Plot, width, height vg.Length, path string) error {
	var to []string
	for _, format := range figureFormats {
		to = append(to, path+"."+format)
	}
	if err := files.MkdirFor(path); err != nil {
		return err
	}
	return figures.Save(width, height, []*plot.Plot{p}, to...)
}
