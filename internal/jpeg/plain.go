package jpeg

import (
	"encoding/binary"
)

// fullRange is libjpeg's conversion: luma from 0 to 255.
var fullRange YCbCr

func init() {
	const half = 1 << 15
	for i := range 256 {
		v, c := int32(i), int32(i-128)
		fullRange.Y[i] = v<<16 + half
		fullRange.CrR[i] = 91881 * c // 1.40200
		fullRange.CbG[i] = -22554 * c
		fullRange.CrG[i] = -46802 * c
		fullRange.CbB[i] = 116130 * c // 1.77200
	}
}

// coloursPlain converts a row of YCbCr to opaque RGBA.
func coloursPlain(dst, luma, cb, cr []uint8) { fullRange.RGBA(dst, luma, cb, cr) }

// flat fills 8×8 samples with the value of a block that has only a DC coefficient,
// dequantized.
func flat(dst []uint8, stride int, dc int16) {
	v := uint64(sample((int32(dc<<2)+16)>>5)) * 0x0101010101010101
	for y := range 8 {
		binary.LittleEndian.PutUint64(dst[y*stride:], v)
	}
}

// sample converts the transform's result, which is 0 for medium grey, to a sample
// and clips it.
func sample(v int32) uint8 { return uint8(min(max(v, -128), 127) + 128) }

// transformPlain dequantizes a block and transforms it to 8×8 samples, by the
// inverse DCT of Loeffler, Ligtenberg and Moschytz with 13 bits after the point.
// It rounds as libjpeg's accurate integer transform does and, beyond what
// sensible coefficients reach, wraps and saturates as libjpeg-turbo's vector
// code does.
func transformPlain(dst []uint8, stride int, b *block, quant *[64]uint16) {
	var work [64]int16 // the transforms of columns
	if *(*[56]int16)(b[8:]) == [56]int16{} {
		for i := range work {
			work[i] = b[i%8] * int16(quant[i%8]) << 2
		}
	} else {
		for x := range 8 {
			in := func(y int) int16 { return b[8*y+x] * int16(quant[8*y+x]) }
			out := func(y int, v int32) { work[8*y+x] = int16(min(max((v+1<<10)>>11, -1<<15), 1<<15-1)) }
			v0, v1, v2, v3, v4, v5, v6, v7 := dct(in(0), in(1), in(2), in(3), in(4), in(5), in(6), in(7))
			out(0, v0)
			out(1, v1)
			out(2, v2)
			out(3, v3)
			out(4, v4)
			out(5, v5)
			out(6, v6)
			out(7, v7)
		}
	}
	for y := range 8 {
		in := work[8*y:][:8]
		out := dst[y*stride:][:8]
		v0, v1, v2, v3, v4, v5, v6, v7 := dct(in[0], in[1], in[2], in[3], in[4], in[5], in[6], in[7])
		const half = 1 << 17
		out[0], out[1], out[2], out[3] = sample((v0+half)>>18), sample((v1+half)>>18), sample((v2+half)>>18), sample((v3+half)>>18)
		out[4], out[5], out[6], out[7] = sample((v4+half)>>18), sample((v5+half)>>18), sample((v6+half)>>18), sample((v7+half)>>18)
	}
}

// dct transforms eight coefficients, in registers.
func dct(in0, in1, in2, in3, in4, in5, in6, in7 int16) (o0, o1, o2, o3, o4, o5, o6, o7 int32) {
	a, b := int32(in2), int32(in6)
	e2, e3 := a*4433+b*(4433-15137), a*(4433+6270)+b*4433
	sum, difference := int32(in0+in4)<<13, int32(in0-in4)<<13
	p0, p3 := sum+e3, sum-e3
	p1, p2 := difference+e2, difference-e2

	a, b = int32(in7+in3), int32(in5+in1)
	z3, z4 := a*(9633-16069)+b*9633, a*9633+b*(9633-3196)
	a, b = int32(in7), int32(in1)
	q0, q3 := a*(2446-7373)-b*7373+z3, b*(12299-7373)-a*7373+z4
	a, b = int32(in5), int32(in3)
	q1, q2 := a*(16819-20995)-b*20995+z4, b*(25172-20995)-a*20995+z3
	return p0 + q3, p1 + q2, p2 + q1, p3 + q0, p3 - q0, p2 - q1, p1 - q2, p0 - q3
}
