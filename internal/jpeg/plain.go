package jpeg

import "encoding/binary"

// matrix converts YCbCr to RGB: what each value of a component adds to each
// colour, with 16 bits after the point, as libjpeg has it.
var matrix struct {
	y, crR, cbG, crG, cbB [256]int32
}

func init() {
	const half = 1 << 15
	for i := range 256 {
		v, c := int32(i), int32(i-128)
		matrix.y[i] = v<<16 + half
		matrix.crR[i] = 91881 * c // 1.40200
		matrix.cbG[i] = -22554 * c
		matrix.crG[i] = -46802 * c
		matrix.cbB[i] = 116130 * c // 1.77200
	}
}

// coloursPlain converts a row of YCbCr to opaque RGBA.
func coloursPlain(dst, luma, cb, cr []uint8) {
	cb, cr, dst = cb[:len(luma)], cr[:len(luma)], dst[:4*len(luma)]
	m := &matrix
	for x, v := range luma {
		y, b, r := m.y[v], cb[x], cr[x]
		set(dst, x, whole(y+m.crR[r]), whole(y+m.cbG[b]+m.crG[r]), whole(y+m.cbB[b]))
	}
}

// whole drops the bits after the point and clips, with a branch because few
// colours need it.
func whole(v int32) uint8 {
	if uint32(v)>>24 == 0 {
		return uint8(v >> 16)
	}
	return uint8(^(v >> 31)) // 0 below, 255 above
}

// flat fills 8×8 samples with those of a block that has only DC, dequantized.
func flat(dst []uint8, stride int, dc int16) {
	v := uint64(sample((int32(dc<<2)+16)>>5)) * 0x0101010101010101
	for y := range 8 {
		binary.LittleEndian.PutUint64(dst[y*stride:], v)
	}
}

// sample clips what the transform returns, which is 0 for medium grey.
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
			var in [8]int16
			for y := range in {
				in[y] = b[8*y+x] * int16(quant[8*y+x])
			}
			for y, v := range dct(&in) {
				work[8*y+x] = int16(min(max((v+1<<10)>>11, -1<<15), 1<<15-1))
			}
		}
	}
	for y := range 8 {
		out := dst[y*stride:][:8]
		for x, v := range dct((*[8]int16)(work[8*y:])) {
			out[x] = sample((v + 1<<17) >> 18)
		}
	}
}

func dct(in *[8]int16) [8]int32 {
	wide := func(v int16) int32 { return int32(v) }
	sum, difference := wide(in[0]+in[4])<<13, wide(in[0]-in[4])<<13
	a, b := wide(in[2]), wide(in[6])
	e2 := a*4433 + b*(4433-15137)
	e3 := a*(4433+6270) + b*4433
	even := [4]int32{sum + e3, difference + e2, difference - e2, sum - e3}

	a, b = wide(in[7]+in[3]), wide(in[5]+in[1])
	z3 := a*(9633-16069) + b*9633
	z4 := a*9633 + b*(9633-3196)
	a, b = wide(in[7]), wide(in[1])
	o0 := a*(2446-7373) - b*7373 + z3
	o3 := -a*7373 + b*(12299-7373) + z4
	a, b = wide(in[5]), wide(in[3])
	o1 := a*(16819-20995) - b*20995 + z4
	o2 := -a*20995 + b*(25172-20995) + z3
	return [8]int32{
		even[0] + o3, even[1] + o2, even[2] + o1, even[3] + o0,
		even[3] - o0, even[2] - o1, even[1] - o2, even[0] - o3,
	}
}
