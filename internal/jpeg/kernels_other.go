//go:build !amd64 || noasm

package jpeg

func transform(dst []uint8, stride int, b *block, quant *[64]uint16) {
	transformPlain(dst, stride, b, quant)
}

func interpolate(dst, near, far []uint8, even, odd int) { interpolatePlain(dst, near, far, even, odd) }

func colours(dst, luma, cb, cr []uint8) { coloursPlain(dst, luma, cb, cr) }
