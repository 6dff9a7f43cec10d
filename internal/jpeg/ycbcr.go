package jpeg

// This file converts pixels from YCbCr to RGBA in fixed-point arithmetic. Each
// decoder brings its own tables, as their rounding differs.

// YCbCr has the tables of a conversion: how much each value of a component adds to
// each colour, in fixed point with 16 fractional bits.
type YCbCr struct {
	Y, CrR, CbG, CrG, CbB [256]int32
}

// RGBA converts a row of YCbCr to opaque RGBA, four bytes for each of luma.
func (m *YCbCr) RGBA(dst, luma, cb, cr []uint8) {
	cb, cr, dst = cb[:len(luma)], cr[:len(luma)], dst[:4*len(luma)]
	for x, v := range luma {
		y, b, r := m.Y[v], cb[x], cr[x]
		pixel := dst[4*x : 4*x+4 : 4*x+4]
		pixel[0] = whole(y + m.CrR[r])
		pixel[1] = whole(y + m.CbG[b] + m.CrG[r])
		pixel[2] = whole(y + m.CbB[b])
		pixel[3] = 255
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
