// Command asm writes the assembly of package jpeg and the Go declarations for
// it. Run it by go generate in package jpeg.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// lookBits is that of package jpeg.
const lookBits = 10

func main() {
	ConstraintExpr("!noasm")
	coefficients()
	transform()
	interpolate()
	colours()
	Generate()
}

// coefficients reads two to four coefficients each time that it fills the bits: as
// many as these surely suffice for. Constants to shift by are moved to registers in
// 32 bits: Intel's Alder Lake takes three times as long for a shift by one that
// came in 64 (T. Barnes, The Alder Lake SHLX anomaly, 2025).
func coefficients() {
	TEXT("coefficientsBMI2", 4, "func(bits *uint64, window *uint8, b *int16, look *uint32, k int) int")
	Pragma("noescape")
	Doc("coefficientsBMI2 is coefficientsPlain; bits are the first of a bitReader's fields.")
	state, window := Load(Param("bits"), GP64()), Load(Param("window"), GP64())
	b, look, k := Load(Param("b"), GP64()), Load(Param("look"), GP64()), Load(Param("k"), GP64())
	bits, n, at := GP64(), GP64(), GP64()
	MOVQ(Mem{Base: state}, bits)
	MOVQ(Mem{Base: state, Disp: 8}, n)
	MOVQ(Mem{Base: state, Disp: 16}, at)
	natural, zero, ones, top := GP64(), GP64(), GP64(), GP64()
	LEAQ(Mem{Symbol: Symbol{Name: "·natural"}, Base: reg.StaticBase}, natural)
	XORQ(zero, zero)
	MOVQ(I32(-1), ones)
	MOVL(U32(64-lookBits), top.As32())
	code, spare, value, mask := GP64(), GP64(), GP64(), GP64()

	Label("fill")
	MOVQ(Mem{Base: window, Index: at, Scale: 1}, value)
	BSWAPQ(value)
	SHRXQ(n, value, value)
	ORQ(value, bits)
	MOVQ(n, spare) // (63-n)/8 more bytes
	XORQ(U8(63), spare)
	SHRQ(U8(3), spare)
	ADDQ(spare, at)
	ORQ(U8(56), n)
	for i := range 4 {
		if i >= 2 {
			CMPQ(n, U8(lookBits+15))
			JL(LabelRef("fill"))
		}
		SHRXQ(top, bits, code)
		MOVL(Mem{Base: look, Index: code, Scale: 4}, code.As32())
		TESTL(code.As32(), code.As32())
		JZ(LabelRef("done"))
		MOVQ(code, spare)
		NEGQ(spare)
		SHRXQ(spare, bits, value) // the bits of code and value are the last
		SHLXQ(code, bits, bits)
		MOVBQZX(code.As8(), spare)
		SUBQ(spare, n)
		MOVQ(code, spare)
		SHRQ(U8(8), spare)
		BZHIQ(spare, value, value)
		BZHIQ(spare, ones, mask)
		// A value whose first bit is 0 is that less the largest one.
		MOVQ(mask, spare)
		SHRQ(U8(1), spare)
		CMPQ(value, spare)
		CMOVQHI(zero, mask)
		SUBQ(mask, value)
		SHRQ(U8(24), code)
		ADDQ(code, k)
		MOVBQZX(Mem{Base: natural, Index: k, Scale: 1}, spare)
		MOVW(value.As16(), Mem{Base: b, Index: spare, Scale: 2})
		CMPQ(k, U8(63))
		JGE(LabelRef("done"))
	}
	JMP(LabelRef("fill"))

	Label("done")
	Load(Param("bits"), value)
	MOVQ(bits, Mem{Base: value})
	MOVQ(n, Mem{Base: value, Disp: 8})
	MOVQ(at, Mem{Base: value, Disp: 16})
	Store(k, ReturnIndex(0))
	RET()
}

var constants = map[string]Mem{}

// repeated returns 32 bytes of read-only memory that repeat 16-bit values.
func repeated(values ...int) Mem {
	name := fmt.Sprint(values)
	m, ok := constants[name]
	if !ok {
		m = GLOBL(fmt.Sprintf("c%d", len(constants)), 8|16) // RODATA, NOPTR
		for i := range 16 {
			DATA(2*i, U16(uint16(values[i%len(values)])))
		}
		constants[name] = m
	}
	return m
}

// wide returns 32 bytes that repeat a 32-bit value.
func wide(v int) Mem { return repeated(v&0xffff, v>>16) }

// of returns a fresh register with the result of an operation on a and b, in this
// order.
func of(op func(...Op), a, b Op) reg.VecVirtual {
	r := YMM()
	op(b, a, r)
	return r
}

// pairs returns the 16-bit values of a and b, eight each, alternately.
func pairs(a, b reg.VecVirtual) reg.VecVirtual {
	low, high := XMM(), XMM()
	VPUNPCKLWD(b, a, low)
	VPUNPCKHWD(b, a, high)
	r := YMM()
	VINSERTI128(U8(1), high, low.AsY(), r)
	return r
}

// dct transforms eight columns, in XMM registers, and returns what is to become
// rows y and y+4 in one register each, shifted right with rounding and saturated:
// columns 0 to 3 of both rows, then 4 to 7.
func dct(in [8]reg.VecVirtual, shift uint8) [4]reg.VecVirtual {
	madd := func(x Op, c ...int) reg.VecVirtual { return of(VPMADDWD, x, repeated(c...)) }
	add := func(a, b Op) reg.VecVirtual { return of(VPADDD, a, b) }
	subtract := func(a, b Op) reg.VecVirtual { return of(VPSUBD, a, b) }

	// The even part; the rounding is added here.
	scaled := func(op func(...Op)) reg.VecVirtual {
		x, r := XMM(), YMM()
		op(in[4], in[0], x)
		VPMOVSXWD(x, r)
		VPSLLD(U8(13), r, r)
		VPADDD(wide(1<<(shift-1)), r, r)
		return r
	}
	sum, difference := scaled(VPADDW), scaled(VPSUBW)
	z := pairs(in[2], in[6])
	e2, e3 := madd(z, 4433, 4433-15137), madd(z, 4433+6270, 4433)
	even := [4]reg.VecVirtual{add(sum, e3), add(difference, e2), subtract(difference, e2), subtract(sum, e3)}

	// The odd part.
	x, y := XMM(), XMM()
	VPADDW(in[3], in[7], x)
	VPADDW(in[1], in[5], y)
	z = pairs(x, y)
	z3, z4 := madd(z, 9633-16069, 9633), madd(z, 9633, 9633-3196)
	z = pairs(in[7], in[1])
	o0, o3 := add(madd(z, 2446-7373, -7373), z3), add(madd(z, -7373, 12299-7373), z4)
	z = pairs(in[5], in[3])
	o1, o2 := add(madd(z, 16819-20995, -20995), z4), add(madd(z, -20995, 25172-20995), z3)

	var out [8]reg.VecVirtual
	for i, odd := range []reg.VecVirtual{o3, o2, o1, o0} {
		out[i], out[7-i] = add(even[i], odd), subtract(even[i], odd)
		VPSRAD(U8(shift), out[i], out[i])
		VPSRAD(U8(shift), out[7-i], out[7-i])
	}
	var rows [4]reg.VecVirtual
	for i := range rows {
		rows[i] = of(VPACKSSDW, out[i], out[i+4])
	}
	return rows
}

// transpose takes what dct returns and gives columns x and x+4, of eight values
// each, in one register.
func transpose(rows [4]reg.VecVirtual) [4]reg.VecVirtual {
	low := func(a, b Op) reg.VecVirtual { return of(VPUNPCKLWD, a, b) }
	high := func(a, b Op) reg.VecVirtual { return of(VPUNPCKHWD, a, b) }
	a, b := low(rows[0], rows[2]), high(rows[0], rows[2]) // rows 0 and 2, 4 and 6
	c, d := low(rows[1], rows[3]), high(rows[1], rows[3]) // 1 and 3, 5 and 7
	e, f := low(a, c), high(a, c)                         // 0 to 3 of columns 0, 1 and 2, 3
	g, h := low(b, d), high(b, d)                         // 4 to 7
	return [4]reg.VecVirtual{
		of(VPUNPCKLQDQ, e, g), of(VPUNPCKHQDQ, e, g),
		of(VPUNPCKLQDQ, f, h), of(VPUNPCKHQDQ, f, h),
	}
}

func transform() {
	TEXT("transformAVX2", 4, "func(dst *uint8, stride int, b *int16, quant *uint16)")
	Pragma("noescape")
	Doc("transformAVX2 is transformPlain.")
	dst, stride := Load(Param("dst"), GP64()), Load(Param("stride"), GP64())
	b, quant := Load(Param("b"), GP64()), Load(Param("quant"), GP64())
	row := func(y int) reg.VecVirtual {
		r := XMM()
		VMOVDQU(Mem{Base: b, Disp: 16 * y}, r)
		VPMULLW(Mem{Base: quant, Disp: 16 * y}, r, r)
		return r
	}
	// The rows, as input of the second pass.
	var middle [8]reg.VecVirtual
	for i := range middle {
		middle[i] = XMM()
	}

	// If only the first row is not zero, so are the transforms of columns.
	any := XMM()
	VMOVDQU(Mem{Base: b, Disp: 16}, any)
	for y := 2; y < 8; y++ {
		VPOR(Mem{Base: b, Disp: 16 * y}, any, any)
	}
	VPTEST(any, any)
	JNE(LabelRef("columns"))
	first := row(0)
	VPSLLW(U8(2), first, first)
	for x := range middle {
		// Value x into all lanes.
		select_ := XMM()
		if x < 4 {
			VPSHUFLW(U8(x*0x55), first, select_)
			VPSHUFD(U8(0), select_, middle[x])
		} else {
			VPSHUFHW(U8((x-4)*0x55), first, select_)
			VPSHUFD(U8(0xff), select_, middle[x])
		}
	}
	JMP(LabelRef("rows"))

	Label("columns")
	var in [8]reg.VecVirtual
	for y := range in {
		in[y] = row(y)
	}
	for x, r := range transpose(dct(in, 11)) {
		VMOVDQA(r.AsX(), middle[x])
		VEXTRACTI128(U8(1), r, middle[x+4])
	}

	Label("rows")
	rows := transpose(dct(middle, 18))
	for i := 0; i < 4; i += 2 { // rows i, i+1 and i+4, i+5
		two := of(VPACKSSWB, rows[i], rows[i+1])
		VPXOR(repeated(0x8080), two, two)
		upper := XMM()
		VEXTRACTI128(U8(1), two, upper)
		rows[i], rows[i+1] = two, upper
	}
	for y := range 8 {
		r := rows[y/4+y%4&^1].AsX()
		if y%2 == 0 {
			VMOVQ(r, Mem{Base: dst})
		} else {
			VMOVHPS(r, Mem{Base: dst})
		}
		if y < 7 {
			ADDQ(stride, dst)
		}
	}
	VZEROUPPER()
	RET()
}

func interpolate() {
	TEXT("interpolateAVX2", 4, "func(dst, near, far *uint8, n, even, odd int)")
	Pragma("noescape")
	Doc("interpolateAVX2 is interpolatePlain for n samples, a multiple of 16, each of which", "has neighbours on both sides.")
	dst := Load(Param("dst"), GP64())
	near, far := Load(Param("near"), GP64()), Load(Param("far"), GP64())
	n := Load(Param("n"), GP64())
	bias := func(name string) reg.VecVirtual {
		x, r := XMM(), YMM()
		v := Load(Param(name), GP64())
		VMOVQ(v, x)
		VPBROADCASTW(x, r)
		return r
	}
	even, odd := bias("even"), bias("odd")
	Label("loop")
	blended := func(at int) reg.VecVirtual {
		a, b, r := YMM(), YMM(), YMM()
		VPMOVZXBW(Mem{Base: near, Disp: at}, a)
		VPMOVZXBW(Mem{Base: far, Disp: at}, b)
		VPADDW(a, a, r)
		VPADDW(a, r, r)
		VPADDW(b, r, r)
		return r
	}
	last, this, next := blended(-1), blended(0), blended(1)
	three := YMM()
	VPADDW(this, this, three)
	VPADDW(this, three, three)
	for _, side := range []struct{ beside, bias reg.VecVirtual }{{last, even}, {next, odd}} {
		VPADDW(three, side.beside, side.beside)
		VPADDW(side.bias, side.beside, side.beside)
		VPSRLW(U8(4), side.beside, side.beside)
	}
	VPSLLW(U8(8), next, next)
	VPOR(last, next, next)
	VMOVDQU(next, Mem{Base: dst})
	ADDQ(U8(16), near)
	ADDQ(U8(16), far)
	ADDQ(U8(32), dst)
	SUBQ(U8(16), n)
	JNE(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

func colours() {
	TEXT("coloursAVX2", 4, "func(dst, luma, cb, cr *uint8, n int)")
	Pragma("noescape")
	Doc("coloursAVX2 is coloursPlain for n pixels, a multiple of 16.")
	dst := Load(Param("dst"), GP64())
	luma, cb, cr := Load(Param("luma"), GP64()), Load(Param("cb"), GP64()), Load(Param("cr"), GP64())
	n := Load(Param("n"), GP64())
	Label("loop")
	chroma := func(p reg.Register) reg.VecVirtual {
		r := YMM()
		VPMOVZXBW(Mem{Base: p}, r)
		VPSUBW(repeated(128), r, r)
		return r
	}
	y, b, r := YMM(), chroma(cb), chroma(cr)
	VPMOVZXBW(Mem{Base: luma}, y)

	// Factors must fit into 16 bits: 1.402 is 1 + 26345/2¹⁶, 1.772 is
	// 2 - 14942/2¹⁶ and -0.714 is 18734/2¹⁶ - 1. Doubling before, and halving
	// after 1 was added, rounds the product.
	product := func(x reg.VecVirtual, by int) reg.VecVirtual {
		p := YMM()
		VPADDW(x, x, p)
		VPMULHW(repeated(by), p, p)
		VPADDW(repeated(1), p, p)
		VPSRAW(U8(1), p, p)
		return p
	}
	red, blue := product(r, 26345), product(b, -14942)
	VPADDW(r, red, red)
	VPADDW(y, red, red)
	VPADDW(b, blue, blue)
	VPADDW(b, blue, blue)
	VPADDW(y, blue, blue)
	half := func(unpack func(...Op)) reg.VecVirtual {
		p := of(unpack, b, r)
		VPMADDWD(repeated(-22554, 18734), p, p)
		VPADDD(wide(1<<15), p, p)
		VPSRAD(U8(16), p, p)
		return p
	}
	green, rest := half(VPUNPCKLWD), half(VPUNPCKHWD)
	VPACKSSDW(rest, green, green)
	VPSUBW(r, green, green)
	VPADDW(y, green, green)

	// Clip, and bring the bytes of pixels together.
	rb, ga := of(VPACKUSWB, red, blue), of(VPACKUSWB, green, repeated(255))
	rg, ba := of(VPUNPCKLBW, rb, ga), of(VPUNPCKHBW, rb, ga)
	low, high := of(VPUNPCKLWD, rg, ba), of(VPUNPCKHWD, rg, ba)
	first, second := YMM(), YMM()
	VPERM2I128(U8(0x20), high, low, first)
	VPERM2I128(U8(0x31), high, low, second)
	VMOVDQU(first, Mem{Base: dst})
	VMOVDQU(second, Mem{Base: dst, Disp: 32})
	for _, p := range []reg.Register{luma, cb, cr} {
		ADDQ(U8(16), p)
	}
	ADDQ(U8(64), dst)
	SUBQ(U8(16), n)
	JNE(LabelRef("loop"))
	VZEROUPPER()
	RET()
}
