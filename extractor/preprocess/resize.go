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
	rowsFirst, pass pass
	between         []uint8 // what rowsFirst makes
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
	columns, rows := ask{w, width, part.Min.X, part.Max.X, filter}, ask{h, height, part.Min.Y, part.Max.Y, filter}
	if rowsFirst {
		r.between = slices.Grow(r.between[:0], 4*between)[:4*between]
		middle := &image.NRGBA{Pix: r.between, Stride: 4 * w, Rect: image.Rect(0, 0, w, part.Dy())}
		r.rowsFirst.resize(middle, src, same(w), rows)
		src, rows = middle, same(part.Dy())
	}
	r.pass.resize(dst, src, columns, rows)
	return nil
}

// same asks for windows that leave n inputs as they are.
func same(n int) ask { return ask{n, n, 0, n, Nearest} }

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

// set computes the windows. Their taps are a multiple of step where the inputs
// are enough for that.
func (w *windows) set(a ask, step int) {
	w.ask = a
	w.taps = taps(a.in, a.out, a.filter)
	w.taps = min((w.taps+step-1)/step*step, a.in)
	count := a.hi - a.lo
	w.first = slices.Grow(w.first[:0], count)[:count]
	w.weights = slices.Grow(w.weights[:0], count*w.taps)[:count*w.taps]
	clear(w.weights)
	scale := float64(a.in) / float64(a.out)
	if a.filter == Nearest {
		// The sum, not a product: Pillow's error accumulates, and where an
		// output falls between two inputs that decides.
		for o, at := 0, scale*0.5; o < a.hi; o, at = o+1, at+scale {
			if i := o - a.lo; i >= 0 {
				from := min(int(at), a.in-1)
				w.first[i] = min(from, a.in-w.taps)
				w.weights[i*w.taps+from-w.first[i]] = one
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

// A pass resizes horizontally, then vertically. It goes from row to row of the
// output and keeps no more of what is between than one of them needs.
type pass struct {
	asked struct {
		columns, rows ask
		by            *machine
	}
	columns, rows windows
	// ring is what is made of those rows of the input that were last: with
	// plain Go a row each, number y at y modulo rows.taps; else slots of four.
	ring []uint8
	sums []int32
	assembly
}

// resize makes dst, which has the size of what columns and rows ask for.
func (p *pass) resize(dst, src *image.NRGBA, columns, rows ask) {
	asked := p.asked
	asked.columns, asked.rows, asked.by = columns, rows, fastest
	if p.asked != asked {
		p.asked = asked
		p.rows.set(rows, 1)
		p.fast = fastest != nil && p.assemble(fastest)
		if !p.fast {
			p.columns.set(columns, 1)
			n := 4 * len(p.columns.first)
			p.ring = slices.Grow(p.ring[:0], p.rows.taps*n)[:p.rows.taps*n]
			p.sums = slices.Grow(p.sums[:0], n)[:n]
		}
	}
	if p.fast {
		p.run(dst, src)
	} else {
		p.plain(dst, src)
	}
}

// plain is resize in plain Go.
func (p *pass) plain(dst, src *image.NRGBA) {
	n, taps := 4*len(p.columns.first), p.rows.taps
	next := 0
	for y, first := range p.rows.first {
		for next = max(next, first); next < first+taps; next++ {
			p.columns.plainRow(p.ring[next%taps*n:][:n], src.Pix[next*src.Stride:][:4*src.Rect.Dx()])
		}
		for i := range p.sums {
			p.sums[i] = one / 2
		}
		for k, weight := range p.rows.weights[y*taps:][:taps] {
			in := p.ring[(first+k)%taps*n:][:len(p.sums)]
			for i, v := range in {
				p.sums[i] += weight * int32(v)
			}
		}
		to := dst.Pix[y*dst.Stride:][:len(p.sums)]
		for i, sum := range p.sums {
			to[i] = level(sum)
		}
		for i := 3; i < len(to); i += 4 {
			to[i] = 255
		}
	}
}

// plainRow makes a row of dst, with a pixel for each window, from one of src.
func (w *windows) plainRow(dst, src []uint8) {
	for x, first := range w.first {
		in := src[4*first:]
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

// level rounds a sum of weighted levels that began at one half and clips it to
// a byte.
func level(sum int32) uint8 {
	return uint8(max(0, min(sum>>precision, 255)))
}
