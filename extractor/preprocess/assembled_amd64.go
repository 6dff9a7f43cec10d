//go:build !noasm

package preprocess

import (
	"image"
	"math"
	"slices"

	"golang.org/x/sys/cpu"

	simd "mlrbfn/internal/kernels"
)

//go:generate go run -C asm . -out ../resize_amd64.s -stubs ../resize_amd64.go -pkg preprocess

// A machine is the assembly for one kind of processor. It gives the same bits as
// plain Go. asm says what the functions do.
type machine struct {
	name   string
	pixels int // that columns makes at a time
	parts  int
	split  func(parts []uint32, weights []int32) // four of them
	// near is columns for groups whose inputs are near each other.
	columns, near func(dst *uint8, rows *[4]*uint8, first *int, weights *uint32, fours, groups int)
	rows          func(dst, ring *uint8, stride int, weights *uint32, slots, n int)
	normalise     func(dst *float32, pixels *uint8, constants *uint32, n int)
}

// nearPixels is the number of pixels that near looks at.
const nearPixels = 16

// machines lists what this machine can run, the fastest first.
func machines() (list []*machine) {
	x := &cpu.X86
	if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VL && x.HasAVX512VBMI && x.HasAVX512VNNI {
		list = append(list, &machine{"avx512", 4, 3, bytesOf, columnsAVX512, nearColumnsAVX512, rowsAVX512, normaliseAVX512})
	}
	if x.HasAVX2 && x.HasFMA {
		list = append(list, &machine{"avx2", 2, 4, wordsOf, columnsAVX2, nil, rowsAVX2, normaliseAVX2})
	}
	return list
}

// fastest is what is used, nil for plain Go: the fastest that is no faster than
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
func bytesOf(parts []uint32, weights []int32) {
	clear(parts[:3])
	for k, w := range weights[:4] {
		low := int32(int8(w))
		w = (w - low) >> 8
		middle := int32(int8(w))
		high := (w - middle) >> 8
		for i, part := range [3]int32{high, middle, low} {
			parts[i] |= uint32(uint8(part)) << (8 * k)
		}
	}
}

// wordsOf splits weights into the bits above 15, first those of the even ones,
// and the 15 bits below.
func wordsOf(parts []uint32, weights []int32) {
	clear(parts[:4])
	for k, w := range weights[:4] {
		parts[k%2] |= uint32(uint16(w>>15)) << (16 * (k / 2))
		parts[2+k%2] |= uint32(w&0x7fff) << (16 * (k / 2))
	}
}

// assembly is what a pass needs for a machine.
type assembly struct {
	fast   bool
	near   bool
	four   [4]*uint8 // rows
	first  []int
	spread []uint32 // the weights of columns
	slots  int
	size   int      // of a slot in bytes
	slot   []uint32 // the weights of rows for each output
}

// assemble prepares m for what p is asked, whose rows are set. It returns false
// where an image is too narrow for m.
func (p *pass) assemble(m *machine) bool {
	p.columns.set(p.asked.columns, 4)
	c := &p.columns
	if len(c.first) < 4*m.pixels || c.taps%4 != 0 {
		return false
	}
	p.near = m.near != nil && c.in >= nearPixels
	for i := 0; i < len(c.first); i += m.pixels {
		last := min(i+m.pixels, len(c.first)) - 1
		p.near = p.near && c.first[last]-c.first[i]+4 <= nearPixels
	}
	p.first, p.spread = p.first[:0], p.spread[:0]
	n := (len(c.first) + m.pixels - 1) / m.pixels * m.pixels
	var parts [4][4]uint32 // of each pixel
	for i := 0; i < n; i += m.pixels {
		if !p.near {
			for x := range m.pixels {
				p.first = append(p.first, 4*c.first[min(i+x, len(c.first)-1)])
			}
		}
		for k := 0; k < c.taps; k += 4 {
			start := min(c.first[i]+k, c.in-nearPixels)
			if p.near {
				p.first = append(p.first, 4*start)
			}
			for x := range m.pixels {
				o := min(i+x, len(c.first)-1)
				if p.near {
					at := uint32(c.first[o]+k-start) * 0x04040404
					for channel := range uint32(4) {
						p.spread = append(p.spread, at+0x0c080400+channel*0x01010101)
					}
				}
				if i+x == o {
					m.split(parts[x][:], c.weights[o*c.taps+k:])
				} else {
					clear(parts[x][:])
				}
			}
			for part := range m.parts {
				for x := range m.pixels {
					v := parts[x][part]
					p.spread = append(p.spread, v, v, v, v)
				}
			}
		}
	}

	r := &p.rows
	from := r.first[0]
	p.slots = 0
	for _, first := range r.first {
		p.slots = max(p.slots, (first-from+r.taps-1)/4-(first-from)/4+1)
	}
	p.size = 16 * n
	p.ring = slices.Grow(p.ring[:0], p.slots*p.size)[:p.slots*p.size]
	p.slot = p.slot[:0]
	p.sums = slices.Grow(p.sums[:0], 4*p.slots)[:4*p.slots]
	weights := p.sums
	for y, first := range r.first {
		clear(weights)
		for k, w := range r.weights[y*r.taps:][:r.taps] {
			weights[(first-from+k)%len(weights)] = w
		}
		for k := 0; k < len(weights); k += 4 {
			m.split(parts[0][:], weights[k:])
			p.slot = append(p.slot, parts[0][:m.parts]...)
		}
	}
	return true
}

// run is pass.resize with assembly.
func (p *pass) run(dst, src *image.NRGBA) {
	m := p.asked.by
	columns := m.columns
	if p.near {
		columns = m.near
	}
	width := len(p.columns.first)
	fours, groups := p.columns.taps/4, p.size/16/m.pixels
	from, last := p.rows.first[0], p.rows.in-1
	next := 0 // four rows
	for y, first := range p.rows.first {
		for next = max(next, (first-from)/4); from+4*next < first+p.rows.taps; next++ {
			for k := range p.four {
				row := src.Pix[min(from+4*next+k, last)*src.Stride:][:4*p.columns.in]
				p.four[k] = &row[0]
			}
			columns(&p.ring[next%p.slots*p.size], &p.four, &p.first[0], &p.spread[0], fours, groups)
		}
		row := dst.Pix[y*dst.Stride:][:4*width]
		m.rows(&row[0], &p.ring[0], p.size, &p.slot[y*p.slots*m.parts], p.slots, width)
	}
	p.four = [4]*uint8{} // the image is not kept
}

// arithmetic is what normalising needs for a machine.
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
