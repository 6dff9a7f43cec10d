package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

var constants = map[uint32]Mem{}

// bits is a constant as its bit pattern.
type bits uint32

// constant returns 64 bytes of read-only memory that repeat c.
func constant(c bits) Mem {
	m, ok := constants[uint32(c)]
	if !ok {
		m = GLOBL(fmt.Sprintf("c%08x", uint32(c)), 8|16) // RODATA, NOPTR
		for i := range 16 {
			DATA(4*i, U32(c))
		}
		constants[uint32(c)] = m
	}
	return m
}

func float(c float64) Mem { return constant(bits(math.Float32bits(float32(c)))) }

// reg returns a fresh vector register.
func (v isa) reg() reg.VecVirtual {
	if v.width == 16 {
		return ZMM()
	}
	return YMM()
}

// copied returns a register with the value of x, a register or memory.
func (v isa) copied(x Op) reg.VecVirtual {
	r := v.reg()
	VMOVUPS(x, r)
	return r
}

func (v isa) broadcast(x Op) reg.VecVirtual {
	r := v.reg()
	VBROADCASTSS(x, r)
	return r
}

func (v isa) zero() reg.VecVirtual {
	r := v.reg()
	VXORPS(r, r, r)
	return r
}

// polynomial evaluates coefficients, the highest first, at r.
func (v isa) polynomial(r reg.Register, coefficients ...float64) reg.VecVirtual {
	p := v.copied(float(coefficients[0]))
	for _, c := range coefficients[1:] {
		VFMADD213PS(float(c), r, p)
	}
	return p
}

// ln2High is ln 2 rounded to few bits, so that its product with an exponent is exact.
const ln2High = 0x1.62e4p-1

// roundingSum is so large that a sum with it is rounded to an integer.
const roundingSum = 3 << 22

// reduced splits x in [-105, 89] into n·ln 2 + r, |r| ≤ ln 2/2, and returns
// n and eʳ−1.
func (v isa) reduced(x reg.Register) (n, p reg.VecVirtual) {
	n, r, square := v.copied(float(roundingSum)), v.copied(x), v.reg()
	VFMADD231PS(float(math.Log2E), x, n)
	VSUBPS(float(roundingSum), n, n)
	VFNMADD231PS(float(ln2High), n, r)
	VFNMADD231PS(float(math.Ln2-ln2High), n, r)
	// Minimax by Lawson's iteration for the relative error of eʳ−1: 1.3e-8.
	p = v.polynomial(r, 0.00138825283, 0.00836653821, 0.0416672006, 0.166665435, 0.49999997)
	VMULPS(r, r, square)
	VFMADD213PS(r, square, p)
	return n, p
}

// scaled multiplies p by 2ⁿ, -152 ≤ n ≤ 129.
func (v isa) scaled(p, n reg.VecVirtual) {
	if v.width == 16 {
		VSCALEFPS(n, p, p)
		return
	}
	half, rest := v.reg(), v.reg() // 2ⁿ itself may be out of range
	VCVTPS2DQ(n, rest)
	VPSRAD(U8(1), rest, half)
	VPSUBD(half, rest, rest)
	for _, e := range []reg.VecVirtual{half, rest} {
		VPADDD(constant(127), e, e)
		VPSLLD(U8(23), e, e)
		VMULPS(e, p, p)
	}
}

// clamped returns x limited to [low, high]; NaN stays NaN.
func (v isa) clamped(x reg.Register, low, high float64) reg.VecVirtual {
	r := v.copied(float(low)) // min and max return their second source if one is NaN
	VMAXPS(x, r, r)
	top := v.copied(float(high))
	VMINPS(r, top, r)
	return r
}

// exp returns eˣ.
func (v isa) exp(x reg.Register) reg.VecVirtual {
	n, p := v.reduced(v.clamped(x, -105, 89))
	VADDPS(float(1), p, p)
	v.scaled(p, n)
	return p
}

// log returns log x; with onlyPositive x must be positive, normal and finite
// or the result is of no meaning.
func (v isa) log(x reg.Register, onlyPositive bool) reg.VecVirtual {
	m, e := v.reg(), v.reg() // x = m·2ᵉ, 0.75 ≤ m < 1.5
	if v.width == 16 {
		part := v.reg()
		VGETMANTPS(U8(0b1011), x, m) // a negative gives NaN
		VGETEXPPS(m, part)
		VGETEXPPS(x, e)
		VSUBPS(part, e, e)
	} else {
		y := v.copied(x)
		small := v.reg()
		if !onlyPositive {
			big := v.reg()
			VCMPPS(U8(0x11), constant(0x00800000), x, small) // below the smallest normal number
			VMULPS(float(1<<23), x, big)
			VBLENDVPS(small, big, y, y)
		}
		VPSUBD(constant(0x3f400000), y, e)
		VPSRAD(U8(23), e, e)
		VPSLLD(U8(23), e, m)
		VPSUBD(m, y, m)
		VCVTDQ2PS(e, e)
		if !onlyPositive {
			VANDPS(float(23), small, small)
			VSUBPS(small, e, e)
		}
	}
	VSUBPS(float(1), m, m)
	square := v.reg()
	VMULPS(m, m, square)
	// Minimax as above for the relative error of log(1+f): 4.9e-9.
	y := v.polynomial(m, -0.0450817458, 0.104645528, -0.13162142, 0.144784912, -0.166472375, 0.19990845, -0.250000983, 0.333334506)
	VMULPS(m, y, y)
	VMULPS(square, y, y)
	VFMADD231PS(float(math.Ln2-ln2High), e, y)
	VFNMADD231PS(float(0.5), square, y)
	VADDPS(m, y, y)
	VFMADD231PS(float(ln2High), e, y)
	if v.width == 8 && !onlyPositive {
		is := v.reg()
		for _, special := range []struct {
			predicate uint8
			of, is    Mem
		}{{0, constant(0x7f800000), constant(0x7f800000)}, {0, constant(0), constant(0xff800000)}, {0x19, constant(0), constant(0x7fc00000)}} {
			VCMPPS(U8(special.predicate), special.of, x, is)
			VBLENDVPS(is, special.is, y, y)
		}
	}
	return y
}

// log1p returns log(1+z) for -1 < z ≤ 1, given u = 1+z, rounded, and inverse = 1/u:
// log u plus the rounding error of u times the derivative.
func (v isa) log1p(z, u, inverse reg.Register) reg.VecVirtual {
	lost := v.reg()
	VSUBPS(float(1), u, lost)
	VSUBPS(lost, z, lost)
	y := v.log(u, true)
	VFMADD231PS(inverse, lost, y)
	return y
}

// inverse returns 1/x, 2⁻¹²⁶ < x < 2¹²⁶, with AVX-512 by an approximation and one
// Newton step, which is three times as fast as its division.
func (v isa) inverse(x reg.VecVirtual) reg.VecVirtual { return v.inverses([]reg.VecVirtual{x})[0] }

func (v isa) inverses(x []reg.VecVirtual) []reg.VecVirtual {
	one := together(len(x), func(int) reg.VecVirtual { return v.copied(float(1)) })
	if v.width == 8 {
		for i, x := range x {
			VDIVPS(x, one[i], one[i])
		}
		return one
	}
	y := together(len(x), func(i int) reg.VecVirtual {
		y := v.reg()
		VRCP14PS(x[i], y)
		return y
	})
	for i, x := range x {
		VFNMADD231PS(y[i], x, one[i])
	}
	for i, y := range y {
		VFMADD231PS(y, one[i], y)
	}
	return y
}

// expOfMinusAbs returns exp(−|x|), or e⁻⁸⁰ if x > 80: negligible compared with 1,
// and not a denormal number, which a processor computes slowly.
func (v isa) expOfMinusAbs(x reg.Register) reg.VecVirtual {
	minus, least := v.reg(), v.copied(float(-80))
	VORPS(constant(0x80000000), x, minus)
	VMINPS(x, least, least)
	VMAXPS(minus, least, minus)
	return v.exp(minus)
}

// softplus returns log(1+eˣ) as max(x, 0) + log1p(exp(−|x|)).
func (v isa) softplus(x reg.Register) reg.VecVirtual {
	z, u, top := v.expOfMinusAbs(x), v.reg(), v.zero()
	VADDPS(float(1), z, u)
	y := v.log1p(z, u, v.inverse(u))
	VMAXPS(x, top, top)
	VADDPS(top, y, y)
	return y
}

// sigmoid returns 1/(1+e⁻ˣ): with z = exp(−|x|), 1/(1+z) or z/(1+z).
func (v isa) sigmoid(x reg.Register) reg.VecVirtual {
	z, u := v.expOfMinusAbs(x), v.reg()
	VADDPS(float(1), z, u)
	if v.width == 16 {
		VPMOVD2M(x, reg.K2)
		one := v.copied(float(1))
		VMOVAPS(z, reg.K2, one)
		VDIVPS(u, one, one)
		return one
	}
	top := v.copied(float(1))
	VBLENDVPS(x, z, top, top)
	VDIVPS(u, top, top)
	return top
}

// sum adds up the lanes of x into the lowest; it overwrites x.
func (v isa) sum(x reg.VecVirtual) reg.VecVirtual {
	v.fold(x, func(a, b reg.Register) { VADDPS(a, b, b) })
	return x
}

// fold combines the lanes of x pairwise until the lowest has the result.
func (v isa) fold(x reg.VecVirtual, join func(a, b reg.Register)) {
	t := YMM()
	if v.width == 16 {
		VEXTRACTF64X4(U8(1), x, t)
		join(t, x.AsY())
	}
	VEXTRACTF128(U8(1), x.AsY(), t.AsX())
	join(t.AsX(), x.AsX())
	VPERMILPS(U8(0b01001110), x.AsX(), t.AsX())
	join(t.AsX(), x.AsX())
	VPERMILPS(U8(0b10110001), x.AsX(), t.AsX())
	join(t.AsX(), x.AsX())
}
