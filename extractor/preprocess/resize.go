package preprocess

import (
	"fmt"
	"image"
	"math"
	"slices"
)

// Filter is a resampling filter of Pillow's Image.resize.
type Filter string

// The filters, with the numbers that Pillow and preprocessor_config.json give
// them.
const (
	Nearest  Filter = "nearest"  // 0
	Lanczos  Filter = "lanczos"  // 1, three lobes
	Bilinear Filter = "bilinear" // 2
	Bicubic  Filter = "bicubic"  // 3, a = −0.5 (Catmull-Rom)
	Box      Filter = "box"      // 4
	Hamming  Filter = "hamming"  // 5
)

// kernels are the filters that weigh neighbours, each zero outside ±support.
var kernels = map[Filter]struct {
	support float64
	weight  func(x float64) float64
}{
	Lanczos: {3, func(x float64) float64 {
		if x < -3 || x >= 3 {
			return 0
		}
		return sinc(x) * sinc(x/3)
	}},
	Bilinear: {1, func(x float64) float64 {
		return max(1-math.Abs(x), 0)
	}},
	Bicubic: {2, func(x float64) float64 {
		const a = -0.5
		switch x = math.Abs(x); {
		case x < 1:
			return ((a+2)*x-(a+3))*x*x + 1
		case x < 2:
			return (((x-5)*x+8)*x - 4) * a
		}
		return 0
	}},
	Box: {0.5, func(x float64) float64 {
		if x <= -0.5 || x > 0.5 {
			return 0
		}
		return 1
	}},
	Hamming: {1, func(x float64) float64 {
		if math.Abs(x) >= 1 {
			return 0
		}
		return sinc(x) * (0.54 + 0.46*math.Cos(math.Pi*x))
	}},
}

func sinc(x float64) float64 {
	if x == 0 {
		return 1
	}
	x *= math.Pi
	return math.Sin(x) / x
}

const (
	// precision is the number of fractional bits of a weight, as in Pillow: one
	// weight, one level and the overshoot of a Lanczos filter fit into 31 bits.
	precision = 22
	one       = 1 << precision

	// What a resizer may take for one image. An image that needs more is a
	// strip a pixel or so wide.
	maxWeights = 1 << 26
	maxEdge    = 1 << 28
)

// A resizer holds what resizing takes, to be used again for the next image. The
// zero value is ready.
type resizer struct {
	columns, rows windows
	between       []uint8 // what the first pass makes
}

// resize writes to dst the part of src, resized to width×height, that lies in
// part, which has dst's size (imaging, which is at hand, differs from Pillow by
// up to dozens of levels, but for two of the filters). The alpha of src is not
// looked at; dst becomes opaque. The result equals that of Pillow 13's
// Image.resize on 8-bit RGB, which rounds to uint8 between its horizontal and
// its vertical pass.
func (r *resizer) resize(dst, src *image.NRGBA, width, height int, part image.Rectangle, filter Filter) error {
	w, h := src.Rect.Dx(), src.Rect.Dy()
	// Up to version 12 Pillow always went horizontally first; 13 turns that
	// round where the height shrinks much more than the width.
	rowsFirst := h > height && h-height > 2*(w-width)
	between := part.Dx() * h
	if rowsFirst {
		between = part.Dy() * w
	}
	if max(width, height) > maxEdge || between > DefaultMaxPixels ||
		max(part.Dx()*taps(w, width, filter), part.Dy()*taps(h, height, filter)) > maxWeights {
		return fmt.Errorf("image of %d×%d pixels is too elongated to resize to %d×%d", w, h, width, height)
	}
	r.columns.set(ask{w, width, part.Min.X, part.Max.X, filter})
	r.rows.set(ask{h, height, part.Min.Y, part.Max.Y, filter})
	if rowsFirst {
		from, to := r.columns.span()
		middle := r.middle(to-from, part.Dy())
		r.rows.vertical(middle, crop(src, image.Rect(from, 0, to, h)), 0)
		r.columns.horizontal(dst, middle, from)
		return nil
	}
	from, to := r.rows.span()
	middle := r.middle(part.Dx(), to-from)
	r.columns.horizontal(middle, crop(src, image.Rect(0, from, w, to)), 0)
	r.rows.vertical(dst, middle, from)
	return nil
}

// middle returns an image to keep between the passes.
func (r *resizer) middle(width, height int) *image.NRGBA {
	r.between = slices.Grow(r.between[:0], 4*width*height)[:4*width*height]
	return &image.NRGBA{Pix: r.between, Stride: 4 * width, Rect: image.Rect(0, 0, width, height)}
}

// crop returns a part of an image that begins at 0, 0, moved to there.
func crop(img *image.NRGBA, part image.Rectangle) *image.NRGBA {
	return &image.NRGBA{Pix: img.Pix[part.Min.Y*img.Stride+4*part.Min.X:], Stride: img.Stride, Rect: part.Sub(part.Min)}
}

// windows say how the rows or the columns of an output are made: number o is
// the sum over k of weights[o·taps+k] times the input number first[o]+k.
type windows struct {
	ask
	taps    int
	first   []int
	weights []int32
	raw     []float64 // of one window
	// spread has every weight once for each byte of a pixel, as assembly wants
	// them along a row.
	spread []int32
}

// ask says what windows are for: the outputs lo to hi (exclusive) of out that
// in inputs are resized to.
type ask struct {
	in, out, lo, hi int
	filter          Filter
}

// taps is the largest number of inputs that an output is made of.
func taps(in, out int, filter Filter) int {
	if filter == Nearest {
		return 1
	}
	reach := kernels[filter].support * max(float64(in)/float64(out), 1)
	return min(int(2*reach+1e-6)+1, in) // with room for what rounding does
}

// set computes the windows, unless they are those of before.
func (w *windows) set(a ask) {
	if w.ask == a {
		return
	}
	w.ask = a
	w.taps = taps(a.in, a.out, a.filter)
	if w.taps > 1 && assembled {
		w.taps = min(w.taps+w.taps%2, a.in) // an even number is faster
	}
	count := a.hi - a.lo
	w.first = slices.Grow(w.first[:0], count)[:count]
	w.weights = slices.Grow(w.weights[:0], count*w.taps)[:count*w.taps]
	w.spread = w.spread[:0]
	clear(w.weights)
	scale := float64(a.in) / float64(a.out)
	if a.filter == Nearest {
		// The sum, not a product: Pillow's error accumulates, and where an
		// output falls between two inputs that decides.
		for o, at := 0, scale*0.5; o < a.hi; o, at = o+1, at+scale {
			if o >= a.lo {
				w.first[o-a.lo], w.weights[o-a.lo] = min(int(at), a.in-1), one
			}
		}
		return
	}
	kernel := kernels[a.filter]
	stretch := max(scale, 1)
	reach := kernel.support * stretch
	for i := range w.first {
		// The conversion keeps compilers from fusing the product with the sums
		// below, which would move the bounds of a window.
		centre := float64((float64(a.lo+i) + 0.5) * scale)
		first := max(int(centre-reach+0.5), 0)
		last := min(int(centre+reach+0.5), a.in)
		w.raw = w.raw[:0]
		sum := 0.0
		for in := first; in < last; in++ {
			x := kernel.weight((float64(in) - centre + 0.5) * (1 / stretch))
			w.raw = append(w.raw, x)
			sum += x
		}
		// Where a window would reach beyond the edge it begins earlier, with
		// weights of 0.
		w.first[i] = min(first, a.in-w.taps)
		weights := w.weights[i*w.taps+first-w.first[i]:]
		for k, x := range w.raw {
			weights[k] = int32(math.Round(x / sum * one))
		}
	}
}

// span returns the range of inputs that the windows reach.
func (w *windows) span() (from, to int) {
	return w.first[0], w.first[len(w.first)-1] + w.taps
}

// horizontal makes the rows of dst, with a column for each window, from those
// of src. Column 0 of src has the number origin.
func (w *windows) horizontal(dst, src *image.NRGBA, origin int) {
	fast := assembled && w.taps%2 == 0
	if fast && len(w.spread) == 0 {
		for _, v := range w.weights {
			w.spread = append(w.spread, v, v, v, v)
		}
	}
	for y := range dst.Rect.Dy() {
		to := dst.Pix[y*dst.Stride:][:4*len(w.first)]
		from := src.Pix[y*src.Stride:][:4*src.Rect.Dx()]
		if fast {
			// span, by which src was cut out, bounds all that this reads.
			sumColumns(&to[0], &from[0], &w.first[0], origin, &w.spread[0], w.taps, len(w.first))
		} else {
			w.plainRow(to, from, origin)
		}
	}
}

func (w *windows) plainRow(dst, src []uint8, origin int) {
	for x, first := range w.first {
		in := src[4*(first-origin):]
		r, g, b := int32(one/2), int32(one/2), int32(one/2)
		for _, weight := range w.weights[x*w.taps:][:w.taps] {
			pixel := in[:4:4]
			r += weight * int32(pixel[0])
			g += weight * int32(pixel[1])
			b += weight * int32(pixel[2])
			in = in[4:]
		}
		set(dst, x, level(r), level(g), level(b))
	}
}

// vertical makes a row of dst for each window from the rows of src, which has
// dst's width. Row 0 of src has the number origin.
func (w *windows) vertical(dst, src *image.NRGBA, origin int) {
	n := 4 * dst.Rect.Dx()
	fast := assembled && n >= rowBytes
	var sums []int32
	if !fast {
		sums = make([]int32, n)
	}
	for y, first := range w.first {
		to := dst.Pix[y*dst.Stride:][:n]
		from := src.Pix[(first-origin)*src.Stride:][:(w.taps-1)*src.Stride+n]
		weights := w.weights[y*w.taps:][:w.taps]
		if fast {
			sumRows(&to[0], &from[0], src.Stride, &weights[0], w.taps, n)
		} else {
			plainRows(to, from, src.Stride, weights, sums)
		}
	}
}

func plainRows(dst, src []uint8, stride int, weights, sums []int32) {
	for i := range sums {
		sums[i] = one / 2
	}
	for k, weight := range weights {
		in := src[k*stride:][:len(sums)]
		for i, v := range in {
			sums[i] += weight * int32(v)
		}
	}
	dst = dst[:len(sums)]
	for i, sum := range sums {
		dst[i] = level(sum)
	}
	for i := 3; i < len(dst); i += 4 {
		dst[i] = 255
	}
}

// level rounds a sum of weighted levels that began at one half and clips it to
// a byte.
func level(sum int32) uint8 {
	return uint8(max(0, min(sum>>precision, 255)))
}
