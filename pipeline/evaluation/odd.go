package evaluation

import (
	"fmt"
	"math"
	"slices"
)

// Odd is a file that is unlike the others.
type Odd struct {
	Path string
	Row  int
	What string
}

const (
	blankSpread = 2  // deviation of the shades, of 255, below which an image is blank
	oddShape    = 3  // times as long or as wide as is usual
	oddSize     = 16 // times as many or as few pixels
)

// addOdd lists images that are blank, blurred, or of an unusual size or shape.
func (in *inspector) addOdd() {
	n := len(in.Labels)
	var sizes, shapes, details []float64
	for i := range n {
		if p := in.pictures.at(i); p != nil {
			sizes = append(sizes, math.Log(float64(p.Width)*float64(p.Height)))
			shapes = append(shapes, math.Log(float64(p.Width)/float64(p.Height)))
			if p.Detail > 0 {
				details = append(details, -math.Log(p.Detail))
			}
		}
	}
	if len(sizes) == 0 {
		return
	}
	size, shape := median(sizes), median(shapes)
	fence, wide := outerFence(details)
	for i := range n {
		p := in.pictures.at(i)
		if p == nil {
			continue
		}
		add := func(what string) {
			in.report.Odd = append(in.report.Odd, Odd{in.known[i].Path, i, what})
		}
		dims := fmt.Sprintf("%d × %d pixels", p.Width, p.Height)
		if math.Abs(math.Log(float64(p.Width)*float64(p.Height))-size) > math.Log(oddSize) {
			add("unusual size: " + dims)
		}
		if math.Abs(math.Log(float64(p.Width)/float64(p.Height))-shape) > math.Log(oddShape) {
			add("unusual shape: " + dims)
		}
		switch {
		case p.Spread < blankSpread:
			add("blank: all of one shade")
		case wide > 0 && p.Detail > 0 && -math.Log(p.Detail) > fence:
			add("blurred, or enlarged from few pixels")
		}
	}
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
