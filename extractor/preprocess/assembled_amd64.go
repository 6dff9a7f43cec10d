//go:build !noasm

package preprocess

import (
	"image"
	"math"
	"slices"

	"golang.org/x/sys/cpu"

	simd "github.com/mlrbfn/mlrbfn/internal/kernels"
)

//go:generate go run -C asm . -out ../resize_amd64.s -stubs ../resize_amd64.go -pkg preprocess

// A machine is the assembly for one kind of processor. It gives the same bits as
// plain Go. asm says what the functions do.
type machine struct {
	name   string
	pixels int // that columns makes at a time
	parts  int
	split  func(weights [4]int32) [4]uint32 // into parts
	// near is columns for groups whose inputs are near each other.
	columns, near func(dst *uint8, rows *[4]*uint8, first *int, weights *uint32, fours, groups int)
	rows          func(dst, ring *uint8, stride int, sources *uint32, slots, n int)
	normalise     func(dst *float32, pixels *uint8, constants *uint32, n int)
}

// nearPixels is the number of pixels that near looks at.
const nearPixels = 16

// machines lists what this machine can run, the fastest first.
func machines() (list []*machine) {
	x := &cpu.X86
	if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VBMI && x.HasAVX512VNNI {
		list = append(list, &machine{"avx512", 4, 3, bytesOf, columnsAVX512, nearColumnsAVX512, rowsAVX512, normaliseAVX512})
	}
	if x.HasAVX2 && x.HasFMA {
		list = append(list, &machine{"avx2", 2, 4, wordsOf, columnsAVX2, nil, rowsAVX2, normaliseAVX2})
	}
	return list
}

// fastest is the machine in use, nil for plain Go: the fastest that is no faster than
// what MLRBFN_KERNELS chooses for package kernels.
var fastest = func() *machine {
	for _, m := range machines() {
		if simd.Name() == "avx512" || simd.Name() == m.name {
			return m
		}
	}
	return nil
}()

// bytesOf splits weights, whose magnitude is below two, into signed bytes: the
// upper ones first.
func bytesOf(weights [4]int32) (parts [4]uint32) {
	for k, w := range weights {
		// Upper bytes are one more where those below are negative.
		digits := (uint32(w) + 0x808080) ^ 0x808080
		parts[0] |= digits >> 16 & 0xff << (8 * k)
		parts[1] |= digits >> 8 & 0xff << (8 * k)
		parts[2] |= digits & 0xff << (8 * k)
	}
	return parts
}

// wordsOf splits weights into the bits above 15, first those of the even ones,
// and the 15 bits below.
func wordsOf(weights [4]int32) (parts [4]uint32) {
	for odd := range 2 {
		a, b := uint32(weights[odd]), uint32(weights[odd+2])
		parts[odd] = a>>15&0xffff | b>>15<<16
		parts[2+odd] = a&0x7fff | b&0x7fff<<16
	}
	return parts
}

// layout is the form in which assembly reads windows, either of columns or of rows.
type layout struct {
	// Columns are cut into groups of pixels, each window into fours of weights.
	near          bool
	groups, fours int
	starts        []int
	parts         []uint32 // of weights, spread as asm wants them

	// Of rows, sources is what each output is made of, up to its end; slots is
	// how many of four rows one needs at most.
	slots   int
	sources []uint32
	ends    []int

	padded []int32 // weights of a window
}

// maxLaidOut bounds the weights that are laid out, of which columns take up to 64
// bytes each: those of 65,500 pixels are fewer.
const maxLaidOut = 1 << 20

// fits reports whether m was set, the columns are enough and the weights not too
// many.
func (l *layout) fits() bool { return l.groups > 0 || l.slots > 0 }

func (l *layout) setColumns(w *windows, m *machine) {
	count := len(w.first)
	l.groups, l.fours = 0, (w.taps+3)/4
	if m == nil || count < 4*m.pixels || 4*l.fours > w.in || len(w.weights) > maxLaidOut {
		return
	}
	l.groups = (count + m.pixels - 1) / m.pixels
	// Windows of whole fours may have to begin earlier.
	start := func(i int) int { return min(w.first[min(i, count-1)], w.in-4*l.fours) }
	l.near = m.near != nil && w.in >= nearPixels
	for i := 0; i < count; i += m.pixels {
		l.near = l.near && start(i+m.pixels-1)-start(i)+4 <= nearPixels
	}
	order := 0 // words of a group's order
	if l.near {
		order = 4 * m.pixels
	}
	step := order + 4*m.pixels*m.parts // words of a group's four
	n := l.groups * l.fours * step
	l.starts, l.parts = l.starts[:0], slices.Grow(l.parts[:0], n)[:n]
	l.padded = slices.Grow(l.padded[:0], 4*l.fours)[:4*l.fours]
	for g := range l.groups {
		i := g * m.pixels
		// Where the pixels begin that the group reads for four k.
		from := func(k int) int { return min(start(i)+4*k, w.in-nearPixels) }
		for k := range l.fours {
			if l.near {
				l.starts = append(l.starts, 4*from(k))
			}
		}
		for x := range m.pixels {
			at := start(i + x)
			if !l.near {
				l.starts = append(l.starts, 4*at)
			}
			clear(l.padded)
			if i+x < count {
				copy(l.padded[w.first[i+x]-at:], w.weights[(i+x)*w.taps:][:w.taps])
			}
			for k := range l.fours {
				four := l.parts[(g*l.fours+k)*step:][:step]
				if l.near {
					bytes := uint32(at+4*k-from(k))*0x04040404 + 0x0c080400
					for channel := range uint32(4) {
						four[4*x+int(channel)] = bytes + channel*0x01010101
					}
				}
				parts := m.split([4]int32(l.padded[4*k:]))
				for part, v := range parts[:m.parts] {
					to := four[order+4*(part*m.pixels+x):][:4]
					to[0], to[1], to[2], to[3] = v, v, v, v
				}
			}
		}
	}
}

func (l *layout) setRows(w *windows, m *machine) {
	l.slots = 0
	if m == nil || len(w.weights) > maxLaidOut {
		return
	}
	from := w.first[0]
	for _, first := range w.first {
		l.slots = max(l.slots, (first-from+w.taps-1)/4-(first-from)/4+1)
	}
	l.sources, l.ends = l.sources[:0], l.ends[:0]
	l.padded = slices.Grow(l.padded[:0], 4*l.slots)[:4*l.slots]
	for y, first := range w.first {
		four := (first - from) / 4
		clear(l.padded)
		copy(l.padded[first-from-4*four:], w.weights[y*w.taps:][:w.taps])
		for k := range l.slots {
			weights := [4]int32(l.padded[4*k:])
			if k > 0 && weights == [4]int32{} {
				continue
			}
			parts := m.split(weights)
			l.sources = append(append(l.sources, uint32((four+k)%l.slots)), parts[:m.parts]...)
		}
		l.ends = append(l.ends, len(l.sources))
	}
}

// assembly holds the rows that it reads besides.
type assembly struct{ four [4]*uint8 } // rows

// assembled is pass with assembly.
func (r *resizer) assembled(dst, src *image.NRGBA, columns, rows *axis) {
	m, c, l := columns.by, &columns.layout, &rows.layout
	sum := m.columns
	if c.near {
		sum = m.near
	}
	size := 16 * m.pixels * c.groups
	r.ring = slices.Grow(r.ring[:0], l.slots*size)[:l.slots*size]
	width := len(columns.first)
	from, last := rows.first[0], rows.in-1
	next, begin := 0, 0 // four rows, and source
	for y, first := range rows.first {
		for next = max(next, (first-from)/4); from+4*next < first+rows.taps; next++ {
			for k := range r.four {
				row := src.Pix[min(from+4*next+k, last)*src.Stride:][:4*columns.in]
				r.four[k] = &row[0]
			}
			sum(&r.ring[next%l.slots*size], &r.four, &c.starts[0], &c.parts[0], c.fours, c.groups)
		}
		row := dst.Pix[y*dst.Stride:][:4*width]
		m.rows(&row[0], &r.ring[0], size, &l.sources[begin], (l.ends[y]-begin)/(1+m.parts), width)
		begin = l.ends[y]
	}
	r.four = [4]*uint8{} // the image is not kept
}

// arithmetic holds the constants with which a machine normalises.
type arithmetic struct {
	machine   *machine // nil where it does not give the bits of the levels
	constants [3][6]uint32
}

// derive prepares the arithmetic of s for m and tries it with every level.
func (a *arithmetic) derive(s *Spec, levels *[3][256]float32, m *machine) {
	a.machine = nil
	if m == nil {
		return
	}
	pixels, got := make([]uint8, 4*256), make([]float32, 256)
	for v := range 256 {
		set(pixels, v, uint8(v), uint8(v), uint8(v))
	}
	scale := float32(s.Scale)
	rest := float32(s.Scale - float64(scale))
	for c := range a.constants {
		mean, std := float32(s.Mean[c]), float32(s.Std[c])
		for i, x := range [5]float32{scale, rest, mean, 1 / std, std} {
			a.constants[c][i] = math.Float32bits(x)
		}
		a.constants[c][5] = uint32(c) * 0x01010101
		m.normalise(&got[0], &pixels[0], &a.constants[c][0], len(got))
		for v, want := range levels[c] {
			if math.Float32bits(got[v]) != math.Float32bits(want) {
				return
			}
		}
	}
	a.machine = m
}

// calculate writes planes of the values of pixels, or returns false where it
// cannot.
func (a *arithmetic) calculate(dst []float32, pixels []uint8) bool {
	plane := len(pixels) / 4
	if a.machine == nil || plane < 4*a.machine.pixels {
		return false
	}
	for c := range len(dst) / plane {
		a.machine.normalise(&dst[c*plane], &pixels[0], &a.constants[c][0], plane)
	}
	return true
}
