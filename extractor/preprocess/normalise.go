package preprocess

import "encoding/binary"

// A normaliser makes values of pixels. The zero value is ready to be set.
type normaliser struct {
	ready  bool // for these two
	spec   Spec
	by     *machine
	levels [3][256]float32
	// arithmetic gives the same values as levels, where it can.
	arithmetic
}

// set prepares the values of s, unless they are those of before. It fails where
// s is not valid.
func (n *normaliser) set(s *Spec) error {
	if n.ready && n.spec == *s && n.by == fastest {
		return nil
	}
	if err := s.Validate(); err != nil {
		return err
	}
	n.ready, n.spec, n.by, n.levels = true, *s, fastest, s.levels()
	n.derive(s, &n.levels, fastest)
	return nil
}

// levels returns the normalised value of each of the 256 levels of each channel.
func (s *Spec) levels() (table [3][256]float32) {
	for c := range table {
		mean, std := float32(s.Mean[c]), float32(s.Std[c])
		for v := range table[c] {
			table[c][v] = (float32(float64(v)*s.Scale) - mean) / std
		}
	}
	return table
}

// normalise writes the values of pixels to dst.
func (n *normaliser) normalise(dst []float32, pixels []uint8, layout Layout) {
	levels := &n.levels
	switch plane := len(pixels) / 4; {
	case (n.spec.Grey || layout == NCHW) && n.calculate(dst, pixels):
	case n.spec.Grey: // one channel: the layouts are the same
		for i := range dst {
			dst[i] = levels[0][pixels[4*i]]
		}
	case layout == NHWC:
		for len(dst) >= 3 && len(pixels) >= 4 {
			dst[0], dst[1], dst[2] = levels[0][pixels[0]], levels[1][pixels[1]], levels[2][pixels[2]]
			dst, pixels = dst[3:], pixels[4:]
		}
	default:
		r, g, b := dst[:plane], dst[plane:2*plane], dst[2*plane:3*plane]
		for i := range r {
			pixel := binary.LittleEndian.Uint32(pixels[4*i:])
			r[i], g[i], b[i] = levels[0][uint8(pixel)], levels[1][uint8(pixel>>8)], levels[2][uint8(pixel>>16)]
		}
	}
}
