// Command asm writes the assembly of package preprocess: the inner loops of
// resizing and of normalising. Run it by go generate there.
//
// Resizing sums bytes times weights of 24 bits modulo 2³², as plain Go does, so that
// nothing is rounded otherwise. The weights come in parts, as [isa] says, and by
// fours: a lane of 32 bits sums up four neighbours at once.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// precision is that of the weights.
const precision = 22

// isa is a vector instruction set.
type isa struct {
	name   string
	pixels int // that a register holds as 32-bit sums of their four bytes
	parts  int // that four weights are split into, of 32 bits each
}

var (
	// avx2 multiplies 16-bit numbers. Its parts are the upper 17 bits of the
	// even weights and of the odd ones, then the lower 15 bits of both.
	avx2 = isa{"AVX2", 2, 4}
	// avx512, with VNNI, multiplies bytes. Its parts are the upper, the middle
	// and the lower 8 bits of the weights, all signed.
	avx512 = isa{"AVX512", 4, 3}
)

func main() {
	ConstraintExpr("!noasm")
	columns(avx2, false)
	columns(avx512, false)
	columns(avx512, true)
	rows(avx2)
	rows(avx512)
	normalise(avx2)
	normalise(avx512)
	Generate()
}

// columns sums up along four rows, whose taps, a multiple of four, it takes four
// at a time. Group after group of v.pixels pixels it writes, for each byte of a
// pixel, those of the four rows beside each other. weights has the parts of four
// taps of each pixel of a group, four times for the four bytes of a pixel.
//
// Pixel x begins at byte first[x] of the rows. Where near is set, the inputs of a
// group for four taps lie in 64 bytes that begin at the next number of first, and
// before their weights stands which of them go where.
func columns(v isa, near bool) {
	name := "columns" + v.name
	if near {
		name = "nearColumns" + v.name
	}
	TEXT(name, 4, "func(dst *uint8, rows *[4]*uint8, first *int, weights *uint32, fours, groups int)") // NOSPLIT
	Pragma("noescape")
	dst, first, weights, groups := load("dst"), load("first"), load("weights"), load("groups")
	from := make([]reg.GPVirtual, 4)
	table := load("rows")
	for k := range from {
		from[k] = GP64()
		MOVQ(Mem{Base: table, Disp: 8 * k}, from[k])
	}
	var shuffles []reg.VecVirtual
	if !near {
		shuffles = v.shuffles()
	}

	Label("group")
	sums := make([][]reg.VecVirtual, len(from))
	for k := range sums {
		sums[k] = v.start()
	}
	fours := load("fours")
	var at []reg.GPVirtual
	if !near {
		for i := range v.pixels {
			at = append(at, GP64())
			MOVQ(Mem{Base: first, Disp: 8 * i}, at[i])
		}
		ADDQ(I8(8*v.pixels), first)
	}
	Label("four")
	var parts []Op
	if near {
		at = []reg.GPVirtual{GP64()}
		MOVQ(Mem{Base: first}, at[0])
		ADDQ(I8(8), first)
		shuffles = []reg.VecVirtual{v.reg()}
		VMOVDQU64(Mem{Base: weights}, shuffles[0])
		ADDQ(I8(64), weights)
	}
	for i := range v.parts {
		part := Op(Mem{Base: weights, Disp: 16 * v.pixels * i})
		if v == avx512 {
			r := v.reg()
			VMOVDQU64(part, r)
			part = r
		}
		parts = append(parts, part)
	}
	for k, row := range from {
		var data []reg.VecVirtual
		if near {
			data = []reg.VecVirtual{v.reg()}
			VPERMB(Mem{Base: row, Index: at[0], Scale: 1}, shuffles[0], data[0])
		} else {
			pixels := v.reg()
			for i, offset := range at {
				source := Mem{Base: row, Index: offset, Scale: 1}
				switch {
				case i == 0 && v == avx512:
					VBROADCASTI32X4(source, pixels)
				case i == 0:
					VBROADCASTI128(source, pixels)
				case v == avx512:
					VINSERTI32X4(U8(i), source, pixels, pixels)
				default:
					VINSERTI128(U8(i), source, pixels, pixels)
				}
			}
			for _, shuffle := range shuffles {
				r := v.reg()
				VPSHUFB(shuffle, pixels, r)
				data = append(data, r)
			}
		}
		v.accumulate(sums[k], data, parts)
	}
	if !near {
		for _, r := range at {
			ADDQ(I8(16), r)
		}
	}
	ADDQ(I32(16*v.pixels*v.parts), weights)
	DECQ(fours)
	JNZ(LabelRef("four"))

	packed := v.pack(sums)
	VPSHUFB(transposed(), packed, packed)
	v.move(packed, Mem{Base: dst})
	ADDQ(I8(16*v.pixels), dst)
	DECQ(groups)
	JNZ(LabelRef("group"))
	VZEROUPPER()
	RET()
}

// rows makes n ≥ 4·v.pixels opaque pixels, each from those below each other in
// slots of four rows, which lie as columns writes them and begin stride bytes
// apart. sources has the number of a slot and the parts of its weights for each
// of slots.
func rows(v isa) {
	TEXT("rows"+v.name, 4, "func(dst, ring *uint8, stride int, sources *uint32, slots, n int)") // NOSPLIT
	Pragma("noescape")
	dst, ring, stride := load("dst"), load("ring"), load("stride")
	sources, last := load("sources"), load("n")
	block := 4 * v.pixels
	at, from, source := GP64(), GP64(), GP64()
	order := "order" + v.name
	places := GLOBL(order, 8|16) // of the pixels that packing puts elsewhere
	for i := range block {
		DATA(4*i, U32(i%v.pixels*4+i/v.pixels))
	}
	SUBQ(U8(block), last)
	XORQ(at, at)

	Label("block")
	MOVQ(sources, source)
	sums := make([][]reg.VecVirtual, 4)
	for i := range sums {
		sums[i] = v.start()
	}
	slots, begin := load("slots"), GP64()
	MOVQ(at, begin)
	SHLQ(U8(4), begin)
	ADDQ(ring, begin)
	Label("slot")
	MOVL(Mem{Base: source}, from.As32())
	IMULQ(stride, from)
	ADDQ(begin, from)
	var parts []Op
	for i := range v.parts {
		r := v.reg()
		VPBROADCASTD(Mem{Base: source, Disp: 4 + 4*i}, r)
		parts = append(parts, r)
	}
	for i := range sums {
		data := []reg.VecVirtual{v.reg()}
		v.move(Mem{Base: from, Disp: 16 * v.pixels * i}, data[0])
		if v == avx2 {
			data = append(data, v.reg())
			VPSRLW(U8(8), data[0], data[1])
			VPAND(repeated("even", 0x00ff00ff), data[0], data[0])
		}
		v.accumulate(sums[i], data, parts)
	}
	ADDQ(I8(4+4*v.parts), source)
	DECQ(slots)
	JNZ(LabelRef("slot"))

	packed, indices := v.pack(sums), v.reg()
	v.move(places, indices)
	VPERMD(packed, indices, packed)
	if v == avx512 {
		VPORD(repeated("opaque", 0xff000000), packed, packed)
	} else {
		VPOR(repeated("opaque", 0xff000000), packed, packed)
	}
	v.move(packed, Mem{Base: dst, Index: at, Scale: 4})
	v.next(at, last)
}

// normalise writes (x·scale − mean)/std of one channel of n ≥ 4·v.pixels pixels.
// The product is that of scale and of what it lacks as a float32, and the
// quotient the product with 1/std, corrected by what that leaves over: both are
// rounded once but for rare x.
//
// constants are the scale, what it lacks, mean, 1/std, std and, as an integer, the
// channel.
func normalise(v isa) {
	TEXT("normalise"+v.name, 4, "func(dst *float32, pixels *uint8, constants *uint32, n int)") // NOSPLIT
	Pragma("noescape")
	dst, pixels, table, last := load("dst"), load("pixels"), load("constants"), load("n")
	block := 4 * v.pixels
	var constants []reg.VecVirtual
	for i := range 6 {
		r := v.reg()
		VPBROADCASTD(Mem{Base: table, Disp: 4 * i}, r)
		constants = append(constants, r)
	}
	scale, rest, mean, inverse, std, values := constants[0], constants[1], constants[2], constants[3], constants[4], constants[5]
	VPADDD(bytes("values", func(i int) int {
		if i%4 > 0 {
			return 0x80 // zero
		}
		return i
	}), values, values)
	at := GP64()
	SUBQ(U8(block), last)
	XORQ(at, at)

	Label("block")
	x, y, quotient := v.reg(), v.reg(), v.reg()
	v.move(Mem{Base: pixels, Index: at, Scale: 4}, x)
	VPSHUFB(values, x, x)
	VCVTDQ2PS(x, x)
	VMULPS(rest, x, y)
	VFMADD231PS(scale, x, y)
	VSUBPS(mean, y, y)
	VMULPS(inverse, y, quotient)
	VFNMADD231PS(std, quotient, y)
	VFMADD231PS(inverse, y, quotient)
	v.move(quotient, Mem{Base: dst, Index: at, Scale: 4})
	v.next(at, last)
}

// next ends a loop "block" over at: the last block ends where the row does, at
// last, and may overlap the one before.
func (v isa) next(at, last reg.GPVirtual) {
	CMPQ(at, last)
	JGE(LabelRef("done"))
	ADDQ(I8(4*v.pixels), at)
	CMPQ(at, last)
	CMOVQGT(last, at)
	JMP(LabelRef("block"))
	Label("done")
	VZEROUPPER()
	RET()
}

// start returns sums that begin at one half.
func (v isa) start() []reg.VecVirtual {
	var sums []reg.VecVirtual
	half := repeated("half", 1<<(precision-1))
	if v == avx512 {
		for range 2 {
			r := v.reg()
			VPXORD(r, r, r)
			sums = append(sums, r)
		}
		r := v.reg()
		VMOVDQU64(half, r)
		return append(sums, r)
	}
	high, low := v.reg(), v.reg()
	VPXOR(high, high, high)
	VMOVDQU(half, low)
	return []reg.VecVirtual{high, low}
}

// accumulate adds the products of data and weights to sums. For avx512 data are
// bytes by fours; for avx2 they are the even ones and the odd ones, as words, and
// are used up.
func (v isa) accumulate(sums, data []reg.VecVirtual, parts []Op) {
	if v == avx512 {
		for i, sum := range sums {
			dotBytes(parts[i], data[0], sum)
		}
		return
	}
	product := v.reg()
	for i, part := range parts {
		into := product
		if i >= 2 {
			into = data[i%2]
		}
		VPMADDWD(part, data[i%2], into)
		VPADDD(into, sums[i/2], sums[i/2])
	}
}

// dotBytes is VPDPBUSD, which this version of avo lacks.
func dotBytes(signed Op, unsigned, sum reg.VecVirtual) {
	Instruction(&ir.Instruction{
		Opcode:   "VPDPBUSD",
		Operands: []Op{signed, unsigned, sum},
		Inputs:   []Op{signed, unsigned, sum},
		Outputs:  []Op{sum},
		ISA:      []string{"AVX512_VNNI"},
	})
}

// pack makes bytes of four registers of sums. Each 128 bits of the result are one
// pixel of each.
func (v isa) pack(sums [][]reg.VecVirtual) reg.VecVirtual {
	for _, s := range sums {
		if v == avx512 {
			VPSLLD(U8(8), s[0], s[0])
			VPADDD(s[1], s[0], s[0])
			VPSLLD(U8(8), s[0], s[0])
			VPADDD(s[2], s[0], s[0])
		} else {
			VPSLLD(U8(15), s[0], s[0])
			VPADDD(s[1], s[0], s[0])
		}
		VPSRAD(U8(precision), s[0], s[0])
	}
	VPACKSSDW(sums[1][0], sums[0][0], sums[0][0])
	VPACKSSDW(sums[3][0], sums[2][0], sums[2][0])
	VPACKUSWB(sums[2][0], sums[0][0], sums[0][0])
	return sums[0][0]
}

// shuffles returns what brings four pixels into the order of accumulate's data.
func (v isa) shuffles() []reg.VecVirtual {
	if v == avx512 {
		r := v.reg()
		VMOVDQU64(transposed(), r)
		return []reg.VecVirtual{r}
	}
	var shuffles []reg.VecVirtual
	for odd, name := range []string{"evenPixels", "oddPixels"} {
		m := bytes(name, func(i int) int {
			if i%2 == 1 {
				return 0x80 // zero
			}
			return 4*(odd+i%4) + i/4
		})
		r := v.reg()
		VMOVDQU(m, r)
		shuffles = append(shuffles, r)
	}
	return shuffles
}

// transposed shuffles 4×4 bytes.
func transposed() Mem { return bytes("transposed", func(i int) int { return 4*(i%4) + i/4 }) }

func (v isa) reg() reg.VecVirtual {
	if v == avx512 {
		return ZMM()
	}
	return YMM()
}

// move loads or stores a register.
func (v isa) move(from, to Op) {
	if v == avx512 {
		VMOVDQU64(from, to)
	} else {
		VMOVDQU(from, to)
	}
}

var constants = map[string]Mem{}

// bytes returns 64 bytes of read-only memory that repeat the 16 of at.
func bytes(name string, at func(i int) int) Mem {
	m, ok := constants[name]
	if !ok {
		m = GLOBL(name, 8|16) // RODATA, NOPTR
		for i := range 64 {
			DATA(i, U8(at(i%16)))
		}
		constants[name] = m
	}
	return m
}

// repeated returns 64 bytes of read-only memory that repeat c.
func repeated(name string, c uint32) Mem {
	return bytes(name, func(i int) int { return int(c >> (i % 4 * 8) & 255) })
}

func load(name string) reg.GPVirtual { return Load(Param(name), GP64()).(reg.GPVirtual) }
