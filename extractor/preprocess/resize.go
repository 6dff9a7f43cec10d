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
	columns, rows axes
	// ring holds the last rows of the input after the first pass, in slots:
	// with plain Go a row each, number y in slot y modulo their number.
	ring    []uint8
	sums    []int32
	between []uint8 // a whole image, where rows go first
	assembly
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
		r.pass(middle, src, same(w), rows)
		src, rows = middle, same(part.Dy())
	}
	r.pass(dst, src, columns, rows)
	return nil
}

// pass resizes horizontally, then vertically. It goes from row to row of dst and
// keeps no more of what is between than one of them needs.
func (r *resizer) pass(dst, src *image.NRGBA, columns, rows ask) {
	c, o := r.columns.of(columns, (*layout).setColumns), r.rows.of(rows, (*layout).setRows)
	if c.fits() && o.fits() {
		r.assembled(dst, src, c, o)
	} else {
		r.plain(dst, src, &c.windows, &o.windows)
	}
}

// same asks for windows that leave n inputs as they are.
func same(n int) ask { return ask{n, n, 0, n, Nearest} }

// crop returns a part of an image that begins at 0, 0, moved to there.
func crop(img *image.NRGBA, part image.Rectangle) *image.NRGBA {
	return &image.NRGBA{Pix: img.Pix[part.Min.Y*img.Stride+4*part.Min.X:], Stride: img.Stride, Rect: part.Sub(part.Min)}
}

// windows say how the rows or the columns of an output are made: number o is
// the sum over k of weights[o·taps+k] times the input number first[o]+k. None
// begins before the one before.
type windows struct {
	ask
	taps    int
	first   []int
	weights []int32
	// Before they are cut to what is not 0, windows lie in bounds of the inputs,
	// with their weights in whole.
	bounds []struct{ from, to int }
	whole  []int32
	raw    []float64 // of one window
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

// set computes the windows.
func (w *windows) set(a ask) {
	w.ask = a
	count := a.hi - a.lo
	w.first = slices.Grow(w.first[:0], count)[:count]
	if a.filter == Nearest {
		w.taps = 1
		w.weights = w.weights[:0]
		// The sum, not a product: Pillow's error accumulates, and where an
		// output falls between two inputs that decides.
		scale := float64(a.in) / float64(a.out)
		for o, at := 0, scale*0.5; o < a.hi; o, at = o+1, at+scale {
			if o >= a.lo {
				w.first[o-a.lo] = min(int(at), a.in-1)
				w.weights = append(w.weights, one)
			}
		}
		return
	}
	room := taps(a.in, a.out, a.filter)
	w.weigh(room)
	// Much of a window may be 0: its rim after rounding, and most of it where
	// outputs fall on inputs.
	w.taps = 1
	begin, end := a.in, 0
	for i := range w.bounds {
		b := &w.bounds[i]
		weights := w.whole[i*room:][:b.to-b.from]
		last := len(weights)
		for last > 0 && weights[last-1] == 0 {
			last--
		}
		end = max(end, b.from+last)
		b.to = end
	}
	for i := count - 1; i >= 0; i-- {
		b := w.bounds[i]
		weights := w.whole[i*room:][:b.to-b.from]
		zeros := 0
		for zeros < len(weights) && weights[zeros] == 0 {
			zeros++
		}
		begin = min(begin, b.from+zeros)
		w.first[i] = begin
		w.taps = max(w.taps, b.to-begin)
	}
	w.weights = slices.Grow(w.weights[:0], count*w.taps)[:count*w.taps]
	clear(w.weights)
	for i, first := range w.first {
		b := w.bounds[i]
		// Where a window would reach beyond the edge it begins earlier.
		w.first[i] = min(first, a.in-w.taps)
		copy(w.weights[i*w.taps+first-w.first[i]:], w.whole[i*room+first-b.from:][:b.to-first])
	}
}

// weigh computes the bounds of windows and their weights, room for each.
func (w *windows) weigh(room int) {
	count := len(w.first)
	w.bounds = slices.Grow(w.bounds[:0], count)[:count]
	w.whole = slices.Grow(w.whole[:0], count*room)[:count*room]
	scale := float64(w.in) / float64(w.out)
	kernel := kernels[w.filter]
	stretch := max(scale, 1)
	reach := kernel.support * stretch
	for i := range w.bounds {
		// The conversion keeps compilers from fusing the product with the sums
		// below, which would move the bounds of a window.
		centre := float64((float64(w.lo+i) + 0.5) * scale)
		b := &w.bounds[i]
		b.from = max(int(centre-reach+0.5), 0)
		b.to = min(int(centre+reach+0.5), w.in)
		w.raw = w.raw[:0]
		sum := 0.0
		for in := b.from; in < b.to; in++ {
			x := kernel.weight((float64(in) - centre + 0.5) * (1 / stretch))
			w.raw = append(w.raw, x)
			sum += x
		}
		for k, x := range w.raw {
			w.whole[i*room+k] = int32(math.Round(x / sum * one))
		}
	}
}

// An axis says how the columns or the rows of images are resized.
type axis struct {
	windows
	by *machine // what layout is for
	layout
}

// axes are those that were asked for last, the latest first: the images of a set
// have few sizes.
type axes struct{ recent []*axis }

const (
	maxRecent = 16
	// An axis with more weights than this goes, with its memory, when the next
	// is asked for.
	maxRecentWeights = 1 << 16
)

// of returns what is asked, laid out by lay.
func (x *axes) of(a ask, lay func(*layout, *windows, *machine)) *axis {
	i := slices.IndexFunc(x.recent, func(k *axis) bool { return k.ask == a && k.by == fastest })
	if i < 0 {
		x.recent = slices.DeleteFunc(x.recent, func(k *axis) bool { return len(k.whole) > maxRecentWeights })
		if len(x.recent) < maxRecent {
			x.recent = append(x.recent, new(axis))
		}
		i = len(x.recent) - 1
		k := x.recent[i]
		k.set(a)
		k.by = fastest
		lay(&k.layout, &k.windows, k.by)
	}
	k := x.recent[i]
	copy(x.recent[1:], x.recent[:i])
	x.recent[0] = k
	return k
}

// plain is pass in plain Go.
func (r *resizer) plain(dst, src *image.NRGBA, columns, rows *windows) {
	n, taps := 4*len(columns.first), rows.taps
	r.ring = slices.Grow(r.ring[:0], taps*n)[:taps*n]
	r.sums = slices.Grow(r.sums[:0], n)[:n]
	sums, next := r.sums, 0
	for y, first := range rows.first {
		for next = max(next, first); next < first+taps; next++ {
			columns.plainRow(r.ring[next%taps*n:][:n], src.Pix[next*src.Stride:][:4*columns.in])
		}
		for i := range sums {
			sums[i] = one / 2
		}
		for k, weight := range rows.weights[y*taps:][:taps] {
			in := r.ring[(first+k)%taps*n:][:len(sums)]
			for i, v := range in {
				sums[i] += weight * int32(v)
			}
		}
		to := dst.Pix[y*dst.Stride:][:len(sums)]
		for i, sum := range sums {
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
