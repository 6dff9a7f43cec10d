//go:build !amd64 || noasm

package jpeg

func (r *bitReader) coefficients(b *block, t *decoderTable, k int) int {
	return r.coefficientsPlain(b, t, k)
}

func transform(dst []uint8, stride int, b *block, quant *[64]uint16) {
	transformPlain(dst, stride, b, quant)
}

func interpolate(dst, near, far []uint8, even, odd int) { interpolatePlain(dst, near, far, even, odd) }

func colours(dst, luma, cb, cr []uint8) { coloursPlain(dst, luma, cb, cr) }
