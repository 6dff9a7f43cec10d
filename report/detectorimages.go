package report

import (
	"cmp"
	"errors"
	"fmt"
	"html/template"
	"image"
	"slices"
	"strconv"
	"strings"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/pipeline/evaluation"
	"github.com/mlrbfn/mlrbfn/pipeline/training"
)

// This file makes what the page of a detector shows of images: the map, and those that
// came closest to the threshold.

// picture adds an image to the page's album, and notes why it cannot be shown.
func (v *detectorView) picture(img images.Picture, side int) *picture {
	if decode := img.Decode; decode != nil {
		img.Decode = func() (_ image.Image, err error) {
			defer func() {
				if r := recover(); r != nil {
					err = errors.New("its decoder failed")
				}
				if err != nil {
					v.mu.Lock()
					defer v.mu.Unlock()
					v.NotShown = append(v.NotShown, notShown{img.Path, err.Error()})
				}
			}()
			return decode()
		}
	}
	return v.Page.Album.of(img, side)
}

// mostNotShown is how many images that could not be shown are listed.
const mostNotShown = 200

func (v *detectorView) listNotShown() {
	slices.SortFunc(v.NotShown, func(a, b notShown) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), strings.Compare(a.Error, b.Error))
	})
	v.NotShown = slices.Compact(v.NotShown)
	if n := len(v.NotShown); n > 0 {
		v.Page.Notes = append(v.Page.Notes, fmt.Sprintf("%s could not be shown: see the list below.", count(n)))
		v.link("not-shown", "Images not shown")
	}
}

// Listed returns the images that could not be shown, not more than a page holds.
func (v *detectorView) Listed() []notShown { return v.NotShown[:min(len(v.NotShown), mostNotShown)] }

func (v *detectorView) closest() {
	if len(v.Closest) == 0 {
		return
	}
	v.link("closest", "Closest to the threshold")
	for _, c := range v.Closest {
		t := &tile{picture: v.picture(c.Image, thumbnailSide), Class: c.Image.Label}
		side := "accepted"
		if c.OOD {
			side = "flagged"
		}
		for _, line := range []tileLine{{"label", c.Image.Label, false}, {"given", c.Given, c.Image.Label != "" && c.Image.Label != c.Given},
			{"score", number(c.Score), false}, {"threshold", number(c.Threshold), false}, {"so it is", side, c.OOD}} {
			if line.Value != "" {
				t.Lines = append(t.Lines, line)
			}
		}
		v.Tiles = append(v.Tiles, t)
	}
}

// lowest shows the calibration images that a person may look through.
func (v *detectorView) lowest() {
	if len(v.Lowest) == 0 {
		return
	}
	v.link("lowest", "The lowest")
	csv := func(list ...training.ReviewedImage) string {
		var text strings.Builder
		_ = training.FormatReview(&text, list) // a Builder takes all
		return text.String()
	}
	v.ReviewHead = csv()
	for _, c := range v.Lowest {
		t := &tile{picture: v.picture(c.Image, thumbnailSide), Class: c.Label, Review: strings.TrimPrefix(csv(c.ReviewedImage), v.ReviewHead), Mark: "of no class"}
		for _, line := range []tileLine{{"label", c.Label, false}, {"given", c.Class, c.Label != "" && c.Label != c.Class}, {"score", number(c.Score), false}, {"p-value", number(c.PValue), false}} {
			if line.Value != "" {
				t.Lines = append(t.Lines, line)
			}
		}
		v.LowestTiles = append(v.LowestTiles, t)
	}
}

// MoreLowest tells whether more images than are shown must be looked at.
func (v *detectorView) MoreLowest() bool {
	d := v.Detector.Detector
	return len(v.Lowest) <= detector.Rank(len(d.CalibrationScores), d.TargetTPR)
}

// The map is drawn as SVG, so that it can be seen without scripts.

const (
	mapWidth, mapHeight = 900, 600
	mapMargin           = 14
	mapThumbnail        = 72
)

// mapView is a SummaryMap as the template reads it.
type mapView struct {
	Note    string // which images, and what the axes are
	Axes    []string
	Classes []mapClass
	Views   []mapPlane
	Marks   []mapMark
}

// mapPlane is two axes that a map shows.
type mapPlane struct {
	First int // of the axes
	X, Y  string
}

// mapClass is a class with its mark.
type mapClass struct {
	Name          string
	Colour, Shape int
}

// mapMark is a point with its place in pixels.
type mapMark struct {
	evaluation.Point
	mapClass          // its label
	Places   []string // on each axis, in pixels
	Picture  *picture
	Text     string
}

// mapShapes are the marks of classes, of about the same area.
var mapShapes = []template.HTML{
	`<circle r="5.5"/>`, `<path d="M-5-5h10v10h-10z"/>`, `<path d="M0-7l6.5 11.5h-13z"/>`, `<path d="M0-7.2L7.2 0 0 7.2-7.2 0z"/>`, `<path d="M0 7l6.5-11.5h-13z"/>`,
}

// Shapes returns the marks.
func (m *mapView) Shapes() []template.HTML { return mapShapes }

// newMap says which images a map shows, and what its axes are.
func newMap(given *evaluation.SummaryMap) *mapView {
	m := &mapView{}
	for i, share := range given.Shares {
		label := fmt.Sprintf("axis %d", i+1)
		if share > 0 {
			label += fmt.Sprintf(" (%.0f%% of the variance between classes)", 100*share)
		}
		m.Axes = append(m.Axes, label)
	}
	m.Note = fmt.Sprintf("Features as the head reads them, on the axes that tell the classes apart best (linear discriminants); one unit is a standard deviation within a class. Shown are %d of %d labelled images, spread evenly over the classes.", len(given.Points), given.Images)
	switch {
	case given.Shares[1] > 0:
		m.Note += " Classes that lie on each other here may differ along other axes."
	case given.Shares[0] > 0:
		m.Note += " Two classes differ along one axis; the second is the one along which the images differ most otherwise."
	default:
		m.Note += " The axes are those along which the images differ most."
	}
	return m
}

func (v *detectorView) drawMap() {
	given := v.Map
	if given == nil || len(given.Points) == 0 {
		return
	}
	v.link("map", "Map")
	m := newMap(given)
	used := make([]*mapClass, len(v.Classes))
	for _, p := range given.Points {
		used[p.Class] = &mapClass{}
	}
	for i, c := range used {
		if n := len(m.Classes); c != nil {
			*c = mapClass{v.Classes[i].Name, n % len(lineStyles), n / len(lineStyles) % len(mapShapes)}
			m.Classes = append(m.Classes, *c)
		}
	}
	var places [][]string // by axis, then by point
	for axis := range m.Axes {
		places = append(places, placesOf(given.Points, axis))
	}
	for i, p := range given.Points {
		state := "accepted"
		if p.Verdict.OOD {
			state = "flagged"
		}
		mark := mapMark{Point: p, mapClass: *used[p.Class], Picture: v.picture(p.Image, mapThumbnail)}
		mark.Text = fmt.Sprintf("%s: %s, %s image, given %s, %s", mark.Name, p.Image.Path, p.Part, p.Verdict.Class, state)
		for axis := range m.Axes {
			mark.Places = append(mark.Places, places[axis][i])
		}
		m.Marks = append(m.Marks, mark)
	}
	for axis := 0; axis+1 < len(m.Axes); axis += 2 {
		m.Views = append(m.Views, mapPlane{axis, m.Axes[axis], m.Axes[axis+1]})
	}
	v.Plane = m
}

// placesOf returns where points are on the picture of the map, in pixels: an even axis
// goes to the right, an odd one up.
func placesOf(points []evaluation.Point, axis int) (places []string) {
	sign, pixels := 1., float64(mapWidth)
	if axis%2 == 1 {
		sign, pixels = -1, mapHeight
	}
	values := make([]float64, len(points))
	for i, p := range points {
		values[i] = sign * p.At[axis]
	}
	slices.Sort(values)
	// A few far points must not push all others together: they are at the edge.
	n := len(values)
	low, high := values[n/200], values[n-1-n/200]
	slack := 0.15 * (high - low)
	low, high = max(values[0], low-slack), min(values[n-1], high+slack)
	for _, p := range points {
		share := 0.5
		if high > low {
			share = min(max((sign*p.At[axis]-low)/(high-low), 0), 1)
		}
		places = append(places, strconv.FormatFloat(mapMargin+share*(pixels-2*mapMargin), 'f', 1, 64))
	}
	return places
}
