package report

import (
	_ "embed"
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"

	"mlrbfn/metrics"
)

// Figures are SVG that this file draws, the same for the page and for files of
// their own: a page needs its text to follow the reader's colours, which no
// picture drawn elsewhere would do. Series differ in dashes as well as colours.

//go:embed chart.css
var chartCSS string

// palette names the colours of the page and its figures, on white and on dark.
// Those of the series are told apart by colour-blind eyes too (Okabe and Ito
// 2008, darker or lighter where the contrast asked for it).
var palette = []struct{ name, light, dark string }{
	{"paper", "#ffffff", "#15181c"},
	{"ink", "#1b1f24", "#e8eaed"},
	{"faint", "#5a636e", "#a3acb8"},
	{"grid", "#d9dde2", "#383f47"},
	{"panel", "#f3f5f7", "#1f242a"},
	{"mark", "#dcecfa", "#1d3a55"},
	{"link", "#0062a3", "#7cc0f5"},
	{"c0", "#0072b2", "#56b4e9"},
	{"c1", "#c24e00", "#ff9a4d"},
	{"c2", "#007a58", "#3ecfa3"},
	{"c3", "#a8498a", "#f0a3d6"},
	{"c4", "#8a6a00", "#e6c229"},
	{"c5", "#b3123a", "#ff8fa3"},
}

// styles is how many series have a colour and dashes of their own.
const styles = 6

// pageColours declares the palette as CSS variables, dark where the reader asks.
func pageColours() string {
	var light, dark strings.Builder
	for _, c := range palette {
		fmt.Fprintf(&light, "--%s:%s;", c.name, c.light)
		fmt.Fprintf(&dark, "--%s:%s;", c.name, c.dark)
	}
	return ":root{color-scheme:light dark;" + light.String() + "}\n@media(prefers-color-scheme:dark){:root{" + dark.String() + "}}\n"
}

// standalone makes a file of an inline figure: with the style sheet in it, the
// light colours in place of variables, which few programs besides browsers
// know, and paper below it.
func standalone(inline string) string {
	var pairs []string
	for _, c := range palette {
		pairs = append(pairs, "var(--"+c.name+")", c.light)
	}
	open, rest, _ := strings.Cut(inline, ">")
	style := "<style>" + strings.NewReplacer(pairs...).Replace(chartCSS) + "</style><rect width='100%' height='100%' fill='#ffffff'/>"
	return open + ` xmlns="http://www.w3.org/2000/svg">` + style + rest + "\n"
}

// chart is a figure with two axes that is being drawn.
type chart struct {
	strings.Builder
	width, height, left, right, top, bottom float64 // of the picture and its margins
	xMin, xMax, yMin, yMax                  float64
}

// newChart begins a figure. The description is its text for who cannot see it.
func newChart(description string, height, bottom float64) *chart {
	c := &chart{width: 360, height: height, left: 44, right: 10, top: 24, bottom: bottom}
	fmt.Fprintf(c, `<svg class="chart" viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">`, c.width, c.height, html.EscapeString(description))
	return c
}

func (c *chart) x(v float64) float64 {
	return c.left + (c.width-c.left-c.right)*(v-c.xMin)/(c.xMax-c.xMin)
}

func (c *chart) y(v float64) float64 {
	return c.height - c.bottom - (c.height-c.top-c.bottom)*(v-c.yMin)/(c.yMax-c.yMin)
}

func (c *chart) text(class string, x, y float64, anchor, text string) {
	fmt.Fprintf(c, `<text class="%s" x="%s" y="%s" text-anchor="%s">%s</text>`, class, short(x), short(y), anchor, html.EscapeString(text))
}

// axes draws both axes with ticks at the given values, printed times a scale.
func (c *chart) axes(xLabel, yLabel string, xTicks, yTicks []float64, xScale, yScale float64) {
	plotBottom := c.height - c.bottom
	var grid strings.Builder
	for _, v := range xTicks {
		fmt.Fprintf(&grid, "M%s %sv%s", short(c.x(v)), short(c.top), short(plotBottom-c.top))
	}
	for _, v := range yTicks {
		fmt.Fprintf(&grid, "M%s %sh%s", short(c.left), short(c.y(v)), short(c.width-c.left-c.right))
	}
	fmt.Fprintf(c, `<path class="grid" d="%s"/>`, grid.String())
	for _, v := range xTicks {
		c.text("tick", c.x(v), plotBottom+14, "middle", tick(v*xScale))
	}
	for _, v := range yTicks {
		c.text("tick", c.left-5, c.y(v)+3.5, "end", tick(v*yScale))
	}
	c.text("label", (c.left+c.width-c.right)/2, plotBottom+29, "middle", xLabel)
	c.text("label", 2, c.top-10, "start", yLabel)
}

// curve draws a line through points; title is shown where a pointer rests on it.
func (c *chart) curve(class, title string, points []metrics.Point) {
	if len(points) == 0 {
		return
	}
	fmt.Fprintf(c, `<path class="line %s" d="`, class)
	for i, p := range points {
		command := "L"
		if i == 0 {
			command = "M"
		}
		x, y := c.x(p.X), c.y(min(max(p.Y, c.yMin), c.yMax))
		c.WriteString(command + short(x) + " " + short(y))
	}
	fmt.Fprintf(c, `"><title>%s</title></path>`, html.EscapeString(title))
}

// bars draws the outline of a histogram over equal bins.
func (c *chart) bars(class string, shares []float64) {
	fmt.Fprintf(c, `<path class="bars %s" d="M%s %s`, class, short(c.x(c.xMin)), short(c.y(0)))
	for i, share := range shares {
		right := c.xMin + (c.xMax-c.xMin)*float64(i+1)/float64(len(shares))
		fmt.Fprintf(c, "V%sH%s", short(c.y(share)), short(c.x(right)))
	}
	fmt.Fprintf(c, `V%s"/>`, short(c.y(0)))
}

// legend lists series below the axes, in two columns.
func (c *chart) legend(entries []legendEntry) {
	for i, e := range entries {
		x := 12 + float64(i%2)*(c.width-12)/2
		y := c.height - c.bottom + 48 + float64(i/2)*16
		fmt.Fprintf(c, `<path class="line %s" d="M%s %sh26"/>`, e.class, short(x), short(y-4))
		if e.marker != "" {
			c.mark(e.marker, e.class, x+13, y-4)
		}
		c.text("key", x+32, y, "start", clip(e.text, 23))
	}
}

type legendEntry struct{ class, marker, text string }

// legendHeight is the room below the axes that a legend of n entries takes.
func legendHeight(n int) float64 { return 44 + float64((n+1)/2)*16 }

// mark draws a round or a square marker.
func (c *chart) mark(marker, class string, x, y float64) {
	if marker == "square" {
		fmt.Fprintf(c, `<rect class="dot %s" x="%s" y="%s" width="7" height="7"/>`, class, short(x-3.5), short(y-3.5))
		return
	}
	fmt.Fprintf(c, `<circle class="dot %s" cx="%s" cy="%s" r="4"/>`, class, short(x), short(y))
}

func (c *chart) end() string {
	c.WriteString("</svg>")
	return c.String()
}

// short prints a coordinate, to a tenth of a pixel.
func short(v float64) string {
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
}

// tick prints the value of a tick without the noise of binary fractions.
func tick(v float64) string {
	return strings.Replace(strconv.FormatFloat(v, 'g', 6, 64), "-", "−", 1)
}

// ticks returns round values from low to high, about n of them.
func ticks(low, high float64, n int) (values []float64) {
	step := math.Pow(10, math.Floor(math.Log10((high-low)/float64(n))))
	for _, times := range []float64{2, 2.5, 2} { // 2, 5, 10 times the power of ten
		if (high-low)/step > float64(n)+0.5 {
			step *= times
		}
	}
	for k := math.Ceil(low/step - 1e-9); k*step <= high+1e-9*step; k++ {
		values = append(values, k*step+0) // +0 turns −0 into 0
	}
	return values
}

// clip shortens a text to n characters.
func clip(text string, n int) string {
	if r := []rune(text); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return text
}
