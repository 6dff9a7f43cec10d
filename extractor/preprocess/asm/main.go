// Command asm writes the assembly of package preprocess: the inner loops of
// resizing, for AVX2. Run it by go generate there.
//
// Both sum bytes times 32-bit weights in 32-bit lanes, as plain Go does, so
// that nothing is rounded otherwise.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// precision is that of the weights.
const precision = 22

func main() {
	ConstraintExpr("!noasm")
	half := repeated("half", 1<<(precision-1))
	opaque := repeated("opaque", 0xff000000)
	sumColumns(half, opaque)
	sumRows(half, opaque)
	Generate()
}

// repeated returns 32 bytes of read-only memory that repeat c.
func repeated(name string, c uint32) Mem {
	m := GLOBL(name, 8|16) // RODATA, NOPTR
	for i := range 8 {
		DATA(4*i, U32(c))
	}
	return m
}

func load(name string) reg.GPVirtual { return Load(Param(name), GP64()).(reg.GPVirtual) }

// sumColumns makes n ≥ 1 pixels: number x from the taps pixels, an even number,
// that begin at first[x]−origin. weights has each weight four times.
func sumColumns(half, opaque Mem) {
	TEXT("sumColumns", 4, "func(dst, src *uint8, first *int, origin int, weights *int32, taps, n int)") // NOSPLIT
	Pragma("noescape")
	dst, src, first, origin := load("dst"), load("src"), load("first"), load("origin")
	weights, taps, n := load("weights"), load("taps"), load("n")
	SHLQ(U8(2), origin)
	SUBQ(origin, src)
	from, left := GP64(), GP64()
	sum, high, pixels, alpha := YMM(), XMM(), YMM(), XMM()
	VMOVDQU(opaque, alpha)

	Label("pixel")
	MOVQ(Mem{Base: first}, from)
	LEAQ(Mem{Base: src, Index: from, Scale: 4}, from)
	MOVQ(taps, left)
	VMOVDQU(half, sum.AsX()) // its upper lanes become 0
	Label("pair")
	VPMOVZXBD(Mem{Base: from}, pixels)
	VPMULLD(Mem{Base: weights}, pixels, pixels)
	VPADDD(pixels, sum, sum)
	ADDQ(I8(8), from)
	ADDQ(I8(32), weights)
	SUBQ(I8(2), left)
	JNZ(LabelRef("pair"))

	VEXTRACTI128(U8(1), sum, high)
	VPADDD(high, sum.AsX(), sum.AsX())
	VPSRAD(U8(precision), sum.AsX(), sum.AsX())
	VPACKSSDW(sum.AsX(), sum.AsX(), sum.AsX())
	VPACKUSWB(sum.AsX(), sum.AsX(), sum.AsX())
	VPOR(alpha, sum.AsX(), sum.AsX())
	VMOVD(sum.AsX(), Mem{Base: dst})
	ADDQ(I8(4), dst)
	ADDQ(I8(8), first)
	DECQ(n)
	JNZ(LabelRef("pixel"))
	VZEROUPPER()
	RET()
}

// sumRows makes n ≥ 32 bytes, a multiple of 4: each from those below each other in
// taps ≥ 1 rows.
func sumRows(half, opaque Mem) {
	TEXT("sumRows", 4, "func(dst, src *uint8, stride int, weights *int32, taps, n int)") // NOSPLIT
	Pragma("noescape")
	dst, src, stride := load("dst"), load("src"), load("stride")
	weights, taps, n := load("weights"), load("taps"), load("n")
	at, last, from, k := GP64(), GP64(), GP64(), GP64()
	order, alpha, start, weight := YMM(), YMM(), YMM(), YMM()
	sums := []reg.VecVirtual{YMM(), YMM(), YMM(), YMM()}
	products := []reg.VecVirtual{YMM(), YMM(), YMM(), YMM()}
	lanes := GLOBL("lanes", 8|16) // where packing puts the dwords, in order
	for i, lane := range []uint32{0, 4, 1, 5, 2, 6, 3, 7} {
		DATA(4*i, U32(lane))
	}
	VMOVDQU(lanes, order)
	VMOVDQU(opaque, alpha)
	VMOVDQU(half, start)
	XORQ(at, at)
	MOVQ(n, last)
	SUBQ(I8(32), last)

	Label("block")
	LEAQ(Mem{Base: src, Index: at, Scale: 1}, from)
	for _, sum := range sums {
		VMOVDQA(start, sum)
	}
	XORQ(k, k)
	Label("tap")
	VPBROADCASTD(Mem{Base: weights, Index: k, Scale: 4}, weight)
	for i, product := range products {
		VPMOVZXBD(Mem{Base: from, Disp: 8 * i}, product)
		VPMULLD(weight, product, product)
		VPADDD(product, sums[i], sums[i])
	}
	ADDQ(stride, from)
	INCQ(k)
	CMPQ(k, taps)
	JL(LabelRef("tap"))

	for _, sum := range sums {
		VPSRAD(U8(precision), sum, sum)
	}
	VPACKSSDW(sums[1], sums[0], sums[0])
	VPACKSSDW(sums[3], sums[2], sums[2])
	VPACKUSWB(sums[2], sums[0], sums[0])
	VPERMD(sums[0], order, sums[0])
	VPOR(alpha, sums[0], sums[0])
	VMOVDQU(sums[0], Mem{Base: dst, Index: at, Scale: 1})
	// The last block ends where the row does and may overlap the one before.
	CMPQ(at, last)
	JGE(LabelRef("done"))
	ADDQ(I8(32), at)
	CMPQ(at, last)
	CMOVQGT(last, at)
	JMP(LabelRef("block"))
	Label("done")
	VZEROUPPER()
	RET()
}
