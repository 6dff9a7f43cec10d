//go:build !noasm

package jpeg

import "golang.org/x/sys/cpu"

//go:generate sh -c "cd asm && go run . -out ../kernels_amd64.s -stubs ../stubs_amd64.go -pkg jpeg"

// assembled says whether this machine can run the assembly. Tests change it.
var assembled = cpu.X86.HasAVX2 && cpu.X86.HasBMI2

// lanes is how many samples the assembly computes at a time.
const lanes = 16

func (r *bitReader) coefficients(b *block, t *decoderTable, k int) int {
	if !assembled {
		return r.coefficientsPlain(b, t, k)
	}
	return coefficientsBMI2(&r.bits, &r.window[0], &b[0], (*uint32)(&t.look[0]), k)
}

func transform(dst []uint8, stride int, b *block, quant *[64]uint16) {
	if !assembled {
		transformPlain(dst, stride, b, quant)
		return
	}
	_ = dst[7*stride+7]
	transformAVX2(&dst[0], stride, &b[0], &quant[0])
}

func interpolate(dst, near, far []uint8, even, odd int) {
	n := len(near)
	if !assembled || n < lanes+2 {
		interpolatePlain(dst, near, far, even, odd)
		return
	}
	_, _ = far[n-1], dst[2*n-1]
	interpolatePlain(dst[:2*2], near[:2], far[:2], even, odd)
	interpolatePlain(dst[2*(n-2):], near[n-2:], far[n-2:], even, odd)
	inner := (n - 2) &^ (lanes - 1)
	interpolateAVX2(&dst[2], &near[1], &far[1], inner, even, odd)
	if 1+inner < n-1 { // the last lanes again, up to the end
		at := n - 1 - lanes
		interpolateAVX2(&dst[2*at], &near[at], &far[at], lanes, even, odd)
	}
}

func colours(dst, luma, cb, cr []uint8) {
	n := len(luma)
	if !assembled || n < lanes {
		coloursPlain(dst, luma, cb, cr)
		return
	}
	_, _, _ = cb[n-1], cr[n-1], dst[4*n-1]
	whole := n &^ (lanes - 1)
	coloursAVX2(&dst[0], &luma[0], &cb[0], &cr[0], whole)
	if whole < n {
		at := n - lanes
		coloursAVX2(&dst[4*at], &luma[at], &cb[at], &cr[at], lanes)
	}
}
