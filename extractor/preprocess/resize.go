package preprocess

import (
	"fmt"
	"image"
	"math"
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

	// What resize may take for one image. An image that needs more is a strip
	// a pixel or so wide.
	maxWeights = 1 << 26
	maxEdge    = 1 << 28
)

// window says how one output row or column is made: the weighted sum of the
// inputs from first on.
type window struct {
	first   int
	weights []int32
}

// resize returns the part of src, resized to width×height, that lies in part,
// moved to the origin (imaging, which is at hand, differs from Pillow by up to
// dozens of levels, but for two of the filters). src must begin at 0, 0. The result equals that of
// Pillow 13's Image.resize on 8-bit RGB, which rounds to uint8 between its
// horizontal and its vertical pass.
func resize(src *image.NRGBA, width, height int, part image.Rectangle, filter Filter) (*image.NRGBA, error) {
	w, h := src.Rect.Dx(), src.Rect.Dy()
	// Up to version 12 Pillow always went horizontally first; 13 turns that
	// round where the height shrinks much more than the width.
	rowsFirst := h > height && h-height > 2*(w-width)
	between := part.Dx() * h
	if rowsFirst {
		between = part.Dy() * w
	}
	if max(width, height) > maxEdge || between > DefaultMaxPixels ||
		max(taps(w, width, part.Dx(), filter), taps(h, height, part.Dy(), filter)) > maxWeights {
		return nil, fmt.Errorf("image of %d×%d pixels is too elongated to resize to %d×%d", w, h, width, height)
	}
	columns := windows(w, width, part.Min.X, part.Max.X, filter)
	rows := windows(h, height, part.Min.Y, part.Max.Y, filter)
	if rowsFirst {
		from, to := span(columns)
		return horizontal(vertical(src, from, to, rows), 0, len(rows), columns), nil
	}
	from, to := span(rows)
	return vertical(horizontal(src, from, to, columns), 0, len(columns), rows), nil
}

// taps bounds the number of weights that windows returns.
func taps(in, out, count int, filter Filter) int {
	reach := kernels[filter].support * max(float64(in)/float64(out), 1)
	return count * (2*int(math.Ceil(reach)) + 1)
}

// windows returns the windows of the outputs lo to hi (exclusive) of out that in
// inputs are resized to.
func windows(in, out, lo, hi int, filter Filter) []window {
	scale := float64(in) / float64(out)
	ws := make([]window, 0, hi-lo)
	if filter == Nearest {
		// The sum, not a product: Pillow's error accumulates, and where an
		// output falls between two inputs that decides.
		for o, at := 0, scale*0.5; o < hi; o, at = o+1, at+scale {
			if o >= lo {
				ws = append(ws, window{min(int(at), in-1), []int32{one}})
			}
		}
		return ws
	}
	kernel := kernels[filter]
	stretch := max(scale, 1)
	reach := kernel.support * stretch
	weights := make([]int32, 0, taps(in, out, hi-lo, filter))
	var raw []float64
	for o := lo; o < hi; o++ {
		// The conversion keeps compilers from fusing the product with the sums
		// below, which would move the bounds of a window.
		centre := float64((float64(o) + 0.5) * scale)
		first := max(int(centre-reach+0.5), 0)
		last := min(int(centre+reach+0.5), in)
		raw = raw[:0]
		sum := 0.0
		for i := first; i < last; i++ {
			x := kernel.weight((float64(i) - centre + 0.5) * (1 / stretch))
			raw = append(raw, x)
			sum += x
		}
		from := len(weights)
		for _, x := range raw {
			weights = append(weights, int32(math.Round(x/sum*one)))
		}
		ws = append(ws, window{first, weights[from:len(weights):len(weights)]})
	}
	return ws
}

// span returns the range of inputs that windows, in their order, reach.
func span(ws []window) (from, to int) {
	last := ws[len(ws)-1]
	return ws[0].first, last.first + len(last.weights)
}

// horizontal makes one column for each window from the rows top to bottom
// (exclusive) of src. The rows keep their numbers, the columns count from 0.
func horizontal(src *image.NRGBA, top, bottom int, columns []window) *image.NRGBA {
	dst := image.NewNRGBA(image.Rect(0, top, len(columns), bottom))
	for y := top; y < bottom; y++ {
		from := src.Pix[src.PixOffset(src.Rect.Min.X, y):]
		to := dst.Pix[dst.PixOffset(0, y):]
		for x, column := range columns {
			in := from[4*(column.first-src.Rect.Min.X):]
			r, g, b := int32(one/2), int32(one/2), int32(one/2)
			for _, weight := range column.weights {
				pixel := in[:4:4]
				r += weight * int32(pixel[0])
				g += weight * int32(pixel[1])
				b += weight * int32(pixel[2])
				in = in[4:]
			}
			out := to[4*x : 4*x+4 : 4*x+4]
			out[0], out[1], out[2], out[3] = level(r), level(g), level(b), 255
		}
	}
	return dst
}

// vertical makes one row for each window from the columns left to right
// (exclusive) of src. The columns keep their numbers, the rows count from 0.
func vertical(src *image.NRGBA, left, right int, rows []window) *image.NRGBA {
	dst := image.NewNRGBA(image.Rect(left, 0, right, len(rows)))
	sums := make([]int32, dst.Stride)
	for y, row := range rows {
		for i := range sums {
			sums[i] = one / 2
		}
		for k, weight := range row.weights {
			in := src.Pix[src.PixOffset(left, row.first+k):][:len(sums)]
			for i, v := range in {
				sums[i] += weight * int32(v)
			}
		}
		out := dst.Pix[y*dst.Stride:][:len(sums)]
		for i, sum := range sums {
			out[i] = level(sum)
		}
		for i := 3; i < len(out); i += 4 {
			out[i] = 255
		}
	}
	return dst
}

// level rounds a sum of weighted levels that began at one half and clips it to
// a byte.
func level(sum int32) uint8 {
	return uint8(max(0, min(sum>>precision, 255)))
}
