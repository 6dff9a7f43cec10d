package preprocess

import (
	"image"
	"math"
)

// kept returns the part of an image of w×h that Crop reads, or little more.
func (s *Spec) kept(w, h int) image.Rectangle {
	if s.validateGeometry() != nil {
		return image.Rectangle{}
	}
	height, width := s.resized(h, w)
	seen := image.Rect(0, 0, s.Width, s.Height).
		Add(image.Pt(s.Rounding.origin(width, s.Width), s.Rounding.origin(height, s.Height))).
		Intersect(image.Rect(0, 0, width, height))
	if seen.Empty() || width == w && height == h {
		return seen
	}
	left, right := s.Filter.reach(w, width, seen.Min.X, seen.Max.X)
	top, bottom := s.Filter.reach(h, height, seen.Min.Y, seen.Max.Y)
	return image.Rect(left, top, right, bottom)
}

// Seen returns the part of the crop of an image of w×h that shows the image, which is
// all of it but for padding, and the part of the image that is seen there: left, top,
// right and bottom as shares of its width and height.
func (s *Spec) Seen(w, h int) (crop image.Rectangle, area [4]float64) {
	height, width := s.resized(h, w)
	from := image.Pt(s.Rounding.origin(width, s.Width), s.Rounding.origin(height, s.Height))
	seen := image.Rect(0, 0, s.Width, s.Height).Add(from).Intersect(image.Rect(0, 0, width, height))
	x, y := float64(width), float64(height)
	return seen.Sub(from), [4]float64{float64(seen.Min.X) / x, float64(seen.Min.Y) / y, float64(seen.Max.X) / x, float64(seen.Max.Y) / y}
}

// reach returns the range of inputs that have a weight in the outputs lo to hi
// (exclusive) of out that in inputs are resized to, and one more on either side
// for what rounding does.
func (f Filter) reach(in, out, lo, hi int) (from, to int) {
	scale := float64(in) / float64(out)
	support := kernels[f].support * max(scale, 1) // 0 for Nearest
	from = int(math.Floor((float64(lo)+0.5)*scale-support)) - 1
	to = int(math.Ceil((float64(hi)-0.5)*scale+support)) + 1
	return max(from, 0), min(to, in)
}
