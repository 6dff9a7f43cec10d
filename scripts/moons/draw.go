package main

import (
	"image"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/mlrbfn/mlrbfn/scripts/figures"
)

// drawFigure writes the paper's figure to files: the background has the colour of
// the predicted class, darker for higher confidence, and the data are on top.
// pixels is the width and the height of the background.
func drawFigure(n *network, pixels int, points []point, labels []int64, title string, files ...string) error {
	background := image.NewNRGBA(image.Rect(0, 0, pixels, pixels))
	for row := range pixels {
		for column := range pixels {
			x := left + (right-left)*(float64(column)+0.5)/float64(pixels)
			y := top - (top-bottom)*(float64(row)+0.5)/float64(pixels)
			class, confidence := n.judge(point{x, y})
			background.SetNRGBA(column, row, shade(figures.Palette[class], 0.75*confidence))
		}
	}
	p := plot.New()
	p.Title.Text = title
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = left, right, bottom, top
	p.Add(plotter.NewImage(background, left, bottom, right, top))
	for class := range classes {
		var xys plotter.XYs
		for i, q := range points {
			if labels[i] == int64(class) {
				xys = append(xys, plotter.XY{X: q.x, Y: q.y})
			}
		}
		scatter, err := plotter.NewScatter(xys)
		if err != nil {
			return err
		}
		scatter.Shape = draw.CircleGlyph{}
		scatter.Radius = vg.Points(1.2)
		scatter.Color = figures.Palette[class]
		p.Add(scatter)
	}
	return figures.Save(12*vg.Centimeter, 12*vg.Centimeter, []*plot.Plot{p}, files...)
}

// shade mixes white with a share of c.
func shade(c color.NRGBA, share float64) color.NRGBA {
	mix := func(v uint8) uint8 { return uint8(255 + share*(float64(v)-255)) }
	return color.NRGBA{mix(c.R), mix(c.G), mix(c.B), 255}
}
