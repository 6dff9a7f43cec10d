package report

import (
	"bytes"
	"container/heap"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/metrics"
)

// The page draws its charts with Chart.js (MIT licence, maintained by a team since
// 2013), from the npm package. uPlot is a quarter of its size (51 of 210 KB), but
// has one maintainer and neither scatter plots with tooltips nor legends that wrap,
// which maps of images need.
//
//go:generate python3 ../scripts/fetch.py npm --name chart.js --version 4.6.1 --integrity sha512-hJyniucsFmq//EvXYvJ6c6mahPoI3kaxdjVH8awTaJ/fDNWeSqqqArixMJWkWNN6fcYvPU3HneSANFNYtRi61g== --take package/dist/chart.umd.min.js --take package/LICENSE.md --into chartjs
//go:embed chartjs/chart.umd.min.js
var chartJS string

// Draw makes a picture of a chart for a file, as "svg" or "png". Whoever links the plotting
// modules sets it once; with nil there are no such files.
var Draw func(c Chart, format string) ([]byte, error)

// Chart is a chart with two axes. The page draws it with Chart.js in the
// reader's colours; without JavaScript it has Text.
type Chart struct {
	Name    string   `json:"-"` // of its files, without an extension
	Caption string   `json:"-"`
	Text    string   `json:"-"` // says what the chart shows, for those who cannot see it
	X       Axis     `json:"x"`
	Y       Axis     `json:"y"`
	Series  []Series `json:"series"` // the first is drawn on top
}

// Axis is an axis of a Chart.
type Axis struct {
	Label    string  `json:"label"`
	Min, Max float64 `json:"-"`
	// Percent says that values are shares: their ticks are in per cent.
	Percent bool `json:"percent,omitempty"`
	// Names are the ticks at 0, 1, 2, …; nil is for numbers.
	Names []string `json:"names,omitempty"`
	// Log makes equal steps of equal ratios; Min and all points are then above 0.
	Log bool `json:"log,omitempty"`
}

// MarshalJSON keeps all digits of the range, which both renderers share.
func (a Axis) MarshalJSON() ([]byte, error) {
	type plain Axis
	return json.Marshal(struct {
		plain
		Min float64 `json:"min"`
		Max float64 `json:"max"`
	}{plain(a), a.Min, a.Max})
}

// Series is points of a Chart in one style.
type Series struct {
	Name   string          `json:"name"`
	Hidden bool            `json:"hidden,omitempty"` // from the legend
	Points []metrics.Point `json:"-"`
	// Bars are the heights of a histogram's bars, instead of Points. They have
	// equal widths and cover the X axis.
	Bars []float64 `json:"-"`
	// Deviations are the lengths of whiskers on either side of each point, along
	// the axis that has no names; nil draws none.
	Deviations []float64 `json:"-"`

	Colour string    `json:"colour"`           // name in Palette
	Width  float64   `json:"width,omitempty"`  // of the line; 0 draws none
	Dashes []float64 `json:"dashes,omitempty"` // of the line
	Fill   float64   `json:"fill,omitempty"`   // opacity below the line
	Marker string    `json:"marker,omitempty"` // "circle" or "square" at each point
}

// MarshalJSON writes points as pairs of numbers, to six digits.
func (s Series) MarshalJSON() ([]byte, error) {
	type plain Series
	var points compact
	for _, p := range s.Points {
		points = append(points, p.X, p.Y)
	}
	return json.Marshal(struct {
		plain
		Points     compact `json:"points,omitempty"`
		Bars       compact `json:"bars,omitempty"`
		Deviations compact `json:"deviations,omitempty"`
	}{plain(s), points, s.Bars, s.Deviations})
}

// compact holds numbers that JSON writes with six digits, to save space.
type compact []float64

func (c compact) MarshalJSON() ([]byte, error) {
	text := []byte{'['}
	for i, v := range c {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendFloat(text, v, 'g', 6, 64)
	}
	return append(text, ']'), nil
}

// A Colour has a shade for light paper and one for dark.
type Colour struct{ Name, Light, Dark string }

// Palette is the colours of the page and its charts. Those of series, c0 to c5, can
// be distinguished by colour-blind readers too (Okabe and Ito 2008, darker or
// lighter where the contrast requires it).
var Palette = []Colour{
	{"paper", "#ffffff", "#15181c"},
	{"ink", "#1b1f24", "#e8eaed"},
	{"faint", "#5a636e", "#a3acb8"},
	{"grid", "#d9dde2", "#383f47"},
	{"panel", "#f3f5f7", "#1f242a"},
	{"mark", "#dcecfa", "#1d3a55"},
	{"link", "#0062a3", "#7cc0f5"},
	{"wrong", "#b54800", "#ff9a4d"},
	{"c0", "#0072b2", "#56b4e9"},
	{"c1", "#c24e00", "#ff9a4d"},
	{"c2", "#007a58", "#3ecfa3"},
	{"c3", "#a8498a", "#f0a3d6"},
	{"c4", "#8a6a00", "#e6c229"},
	{"c5", "#b3123a", "#ff8fa3"},
}

// pageColours declares the palette as CSS variables, in dark mode if the reader's
// browser asks for it.
func pageColours() string {
	var light, dark strings.Builder
	for _, c := range Palette {
		fmt.Fprintf(&light, "--%s:%s;", c.Name, c.Light)
		fmt.Fprintf(&dark, "--%s:%s;", c.Name, c.Dark)
	}
	return ":root{color-scheme:light dark;" + light.String() + "}\n@media(prefers-color-scheme:dark){:root{" + dark.String() + "}}\n"
}

// lineStyles distinguish series without colour.
var lineStyles = []Series{
	{Colour: "c0", Width: 1.8},
	{Colour: "c1", Width: 1.8, Dashes: []float64{7, 3}},
	{Colour: "c2", Width: 1.8, Dashes: []float64{2, 2}},
	{Colour: "c3", Width: 1.8, Dashes: []float64{9, 3, 2, 3}},
	{Colour: "c4", Width: 1.8, Dashes: []float64{4, 4}},
	{Colour: "c5", Width: 1.8, Dashes: []float64{12, 4}},
}

// others is the style of all other methods.
var others = Series{Colour: "faint", Width: 0.6}

// styled returns a series in a style.
func styled(style Series, name string, points []metrics.Point) Series {
	style.Name, style.Points = name, points
	return style
}

// Course adds a line and, unless they are empty, the bounds of the interval that holds it with
// a chance of 95%.
func (c *Chart) Course(name string, line, low, high []metrics.Point) {
	c.Series = append(c.Series, styled(lineStyles[0], name, line))
	if len(high) == 0 {
		return
	}
	bound := lineStyles[2]
	bound.Width = 1
	upper, lower := styled(bound, "95% interval", high), styled(bound, "", low)
	lower.Hidden = true
	c.Series = append(c.Series, upper, lower)
}

// Data returns the chart for the page's script. (The encoder escapes text that
// could end a script element.)
func (c *Chart) Data() (template.JS, error) {
	var b bytes.Buffer
	err := json.NewEncoder(&b).Encode(c)
	return template.JS(bytes.TrimSpace(b.Bytes())), err
}

// number prints a value without the digits of binary rounding.
func number(v float64) string {
	return strings.Replace(strconv.FormatFloat(v, 'g', 6, 64), "-", "−", 1)
}

// bins is the number of bins of a histogram.
const bins = 40

// Outline returns the points of a series, or the outline of its Bars over the X
// axis.
func (s Series) Outline(x Axis) []metrics.Point {
	if s.Bars == nil {
		return s.Points
	}
	edge := func(i int) float64 { return x.Min + (x.Max-x.Min)*float64(i)/float64(len(s.Bars)) }
	points := []metrics.Point{{X: x.Min}}
	for i, height := range s.Bars {
		points = append(points, metrics.Point{X: edge(i), Y: height}, metrics.Point{X: edge(i + 1), Y: height})
	}
	return append(points, metrics.Point{X: x.Max})
}

// histogram returns the share of scores in each of equal bins. The outermost bins
// include all scores beyond them. NaN is in no bin.
func histogram(scores []float64, low, high float64) []float64 {
	shares := make([]float64, bins)
	for _, s := range scores {
		if math.IsNaN(s) {
			continue
		}
		at := (s - low) / (high - low) * bins
		shares[int(min(max(at, 0), bins-1))] += 1 / float64(len(scores))
	}
	return shares
}

// thin removes points of a curve until at most n are left, always the one with
// the smallest triangle with its neighbours (Visvalingam and Whyatt 1993), so that
// corners stay and the area under the curve hardly changes.
func thin(points []metrics.Point, n int) []metrics.Point {
	if len(points) <= n {
		return points
	}
	if points = corners(points); len(points) <= n {
		return points
	}
	t := newTriangles(points)
	for range len(points) - n {
		t.dropSmallest()
	}
	return t.left()
}

// corners removes the points that lie on the line between their neighbours: most
// points of a large curve.
func corners(points []metrics.Point) []metrics.Point {
	left := points[:1:1]
	for i := 1; i < len(points)-1; i++ {
		if triangle(left[len(left)-1], points[i], points[i+1]) != 0 {
			left = append(left, points[i])
		}
	}
	return append(left, points[len(points)-1])
}

// triangle returns twice the area of a triangle.
func triangle(a, b, c metrics.Point) float64 {
	return math.Abs((b.X-a.X)*(c.Y-a.Y) - (c.X-a.X)*(b.Y-a.Y))
}

// triangles is a heap of the inner points of a curve that are left, the one
// with the smallest triangle on top.
type triangles struct {
	points     []metrics.Point
	prev, next []int // neighbours of a point that are left
	area       []float64
	heap       []int
	at         []int // place of a point in the heap; −1 if it is not in it
}

func newTriangles(points []metrics.Point) *triangles {
	n := len(points)
	t := &triangles{points: points, prev: make([]int, n), next: make([]int, n), area: make([]float64, n), at: make([]int, n)}
	for i := range points {
		t.prev[i], t.next[i], t.at[i] = i-1, i+1, -1
	}
	for i := 1; i < n-1; i++ {
		t.area[i], t.at[i] = t.triangle(i), len(t.heap)
		t.heap = append(t.heap, i)
	}
	heap.Init(t)
	return t
}

func (t *triangles) triangle(i int) float64 {
	return triangle(t.points[t.prev[i]], t.points[i], t.points[t.next[i]])
}

func (t *triangles) dropSmallest() {
	i := heap.Pop(t).(int)
	dropped := t.area[i]
	before, after := t.prev[i], t.next[i]
	t.next[before], t.prev[after] = after, before
	for _, j := range []int{before, after} {
		if t.at[j] >= 0 {
			// Never smaller than the removed triangle: otherwise a curve would be
			// removed point by point from a corner.
			t.area[j] = max(dropped, t.triangle(j))
			heap.Fix(t, t.at[j])
		}
	}
}

func (t *triangles) left() (left []metrics.Point) {
	for i := 0; i < len(t.points); i = t.next[i] {
		left = append(left, t.points[i])
	}
	return left
}

func (t *triangles) Len() int { return len(t.heap) }

func (t *triangles) Less(a, b int) bool {
	i, j := t.heap[a], t.heap[b]
	return t.area[i] < t.area[j] || t.area[i] == t.area[j] && i < j
}

func (t *triangles) Swap(a, b int) {
	t.heap[a], t.heap[b] = t.heap[b], t.heap[a]
	t.at[t.heap[a]], t.at[t.heap[b]] = a, b
}

// Push is never called: the heap only shrinks.
func (t *triangles) Push(any) { panic("report: a removed point is never added again") }

func (t *triangles) Pop() any {
	last := t.heap[len(t.heap)-1]
	t.heap, t.at[last] = t.heap[:len(t.heap)-1], -1
	return last
}
