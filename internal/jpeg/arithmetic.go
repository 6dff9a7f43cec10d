package jpeg

// arithmetic decodes arithmetic coding (T.81, annexes D, F.2.4 and G.2). After the
// end of a segment it reads zeros.
type arithmetic struct {
	m *markers
	// code and size are the code register and the size of the interval; spare is
	// how many more bits must be shifted into code, negative at the start of a
	// segment.
	code, size int32
	spare      int
	broken     bool // up to the next restart
	truncated  bool
	even       uint8 // the state that gives 0 and 1 the same probability
	dc         [16][64]uint8
	ac         [16][256]uint8
}

func (a *arithmetic) begin(m *markers) {
	a.m = m
	a.code, a.size, a.spare, a.broken, a.truncated = 0, 0, -16, false, false
	a.even = 113
}

// clear resets the statistics of the tables of a component.
func (a *arithmetic) clear(c *component, dc, ac bool) {
	if dc {
		a.dc[c.dcIndex] = [64]uint8{}
	}
	if ac {
		a.ac[c.acIndex] = [256]uint8{}
	}
}

func (a *arithmetic) next() int32 {
	m := a.m
	if m.pending != 0 {
		return 0
	}
	for i := m.pos; i < len(m.data); i++ {
		v := m.data[i]
		if i == m.pos && v != 0xff {
			m.pos++
			return int32(v)
		}
		if v != 0xff {
			m.pos = i + 1
			if v == 0 {
				return 0xff
			}
			m.pending = v
			return 0
		}
	}
	a.truncated = true
	return 0
}

// bit decodes a decision: state holds the more probable one in its highest bit,
// and an index into the table of probabilities.
func (a *arithmetic) bit(state *uint8) bool {
	for a.size < 0x8000 {
		if a.spare--; a.spare < 0 {
			a.code = a.code<<8 | a.next()
			if a.spare += 8; a.spare < 0 {
				if a.spare++; a.spare == 0 {
					a.size = 0x8000
				}
			}
		}
		a.size <<= 1
	}
	s := *state
	p := &probabilities[s&0x7f]
	less := int32(p.less)
	a.size -= less
	limit := a.size << a.spare
	switch {
	case a.code >= limit:
		a.code -= limit
		swapped := a.size < less
		a.size = less
		if swapped {
			*state = s&0x80 ^ p.afterMore
		} else {
			*state = s&0x80 ^ p.afterLess
			s ^= 0x80
		}
	case a.size < 0x8000:
		if a.size < less {
			*state = s&0x80 ^ p.afterLess
			s ^= 0x80
		} else {
			*state = s&0x80 ^ p.afterMore
		}
	}
	return s>>7 != 0
}

// magnitude decodes the number whose category, a power of two, is m so far: its
// further categories from the states stat[x:] on if more says so, then its bits.
func (a *arithmetic) magnitude(stat []uint8, at, m int) (v, category int, ok bool) {
	for a.bit(&stat[at]) {
		if m <<= 1; m == 0x8000 {
			a.broken = true
			return 0, 0, false
		}
		at++
	}
	v, category = m, m
	for at += 14; m > 1; {
		m >>= 1
		if a.bit(&stat[at]) {
			v |= m
		}
	}
	return v, category, true
}

// dcDifference decodes the difference between a DC coefficient and the one before.
func (a *arithmetic) dcDifference(c *component) bool {
	stat := a.dc[c.dcIndex][:]
	at := c.context
	if !a.bit(&stat[at]) {
		c.context = 0
		return true
	}
	sign := 0
	if a.bit(&stat[at+1]) {
		sign = 1
	}
	at += 2 + sign
	v, m := 0, 0
	if a.bit(&stat[at]) {
		var ok bool
		if v, m, ok = a.magnitude(stat, 20, 1); !ok {
			return false
		}
	}
	switch {
	case m < 1<<a.m.smallest[c.dcIndex]>>1:
		c.context = 0
	case m > 1<<a.m.largest[c.dcIndex]>>1:
		c.context = 12 + 4*sign
	default:
		c.context = 4 + 4*sign
	}
	v++
	if sign != 0 {
		v = -v
	}
	c.dcBefore += int32(v)
	return true
}

// acs decodes the coefficients from first to last.
func (a *arithmetic) acs(c *component, b *block, first, last int, low uint) {
	stat := a.ac[c.acIndex][:]
	for k := first; k <= last; k++ {
		at := 3 * (k - 1)
		if a.bit(&stat[at]) {
			return // end of block
		}
		for !a.bit(&stat[at+1]) {
			at += 3
			if k++; k > last {
				a.broken = true
				return
			}
		}
		negative := a.bit(&a.even)
		at += 2
		v := 0
		if a.bit(&stat[at]) {
			v = 1
			if a.bit(&stat[at]) {
				x := 217
				if k <= int(a.m.lowest[c.acIndex]) {
					x = 189
				}
				var ok bool
				if v, _, ok = a.magnitude(stat, x, 2); !ok {
					return
				}
			}
		}
		v++
		if negative {
			v = -v
		}
		b[natural[k]] = int16(v << low)
	}
}

// block decodes a block of a sequential scan.
func (a *arithmetic) block(c *component, b *block) {
	if !a.broken && a.dcDifference(c) {
		b[0] = int16(c.dcBefore)
		a.acs(c, b, 1, 63, 0)
	}
}

// decoder returns the function that decodes a block of a scan.
func (a *arithmetic) decoder(d *decoder) func(*component, *block) {
	switch {
	case !d.progressive:
		return a.block
	case d.first == 0 && d.high == 0:
		return func(c *component, b *block) {
			if !a.broken && a.dcDifference(c) {
				b[0] = int16(c.dcBefore << d.low)
			}
		}
	case d.first == 0:
		return func(_ *component, b *block) {
			if a.bit(&a.even) {
				b[0] |= 1 << d.low
			}
		}
	case d.high == 0:
		return func(c *component, b *block) {
			if !a.broken {
				a.acs(c, b, d.first, d.last, d.low)
			}
		}
	}
	return func(c *component, b *block) {
		if !a.broken {
			a.refine(c, b, d.first, d.last, 1<<d.low)
		}
	}
}

// refine adds a bit, of value one, to the coefficients from first to last.
func (a *arithmetic) refine(c *component, b *block, first, last int, one int16) {
	stat := a.ac[c.acIndex][:]
	end := last // of the end of the block, as known so far
	for end > 0 && b[natural[end]] == 0 {
		end--
	}
	for k := first; k <= last; k++ {
		at := 3 * (k - 1)
		if k > end && a.bit(&stat[at]) {
			return
		}
		for {
			v := &b[natural[k]]
			if *v != 0 {
				if a.bit(&stat[at+2]) {
					if *v < 0 {
						*v -= one
					} else {
						*v += one
					}
				}
				break
			}
			if a.bit(&stat[at+1]) {
				if *v = one; a.bit(&a.even) {
					*v = -one
				}
				break
			}
			at += 3
			if k++; k > last {
				a.broken = true
				return
			}
		}
	}
}

// probability is a state of the estimation of a decision's probability: the
// probability of the less probable outcome, and the next state after each outcome.
// The highest bit of afterLess says that the more and the less probable outcome are
// exchanged.
type probability struct {
	less                 uint16
	afterLess, afterMore uint8
}

// probabilities is table D.2 of T.81, and one state of probability ½ that never
// changes. Indices of seven bits may exceed its length.
var probabilities = [128]probability{
	{0x5a1d, 129, 1}, {0x2586, 14, 2}, {0x1114, 16, 3}, {0x080b, 18, 4},
	{0x03d8, 20, 5}, {0x01da, 23, 6}, {0x00e5, 25, 7}, {0x006f, 28, 8},
	{0x0036, 30, 9}, {0x001a, 33, 10}, {0x000d, 35, 11}, {0x0006, 9, 12},
	{0x0003, 10, 13}, {0x0001, 12, 13}, {0x5a7f, 143, 15}, {0x3f25, 36, 16},
	{0x2cf2, 38, 17}, {0x207c, 39, 18}, {0x17b9, 40, 19}, {0x1182, 42, 20},
	{0x0cef, 43, 21}, {0x09a1, 45, 22}, {0x072f, 46, 23}, {0x055c, 48, 24},
	{0x0406, 49, 25}, {0x0303, 51, 26}, {0x0240, 52, 27}, {0x01b1, 54, 28},
	{0x0144, 56, 29}, {0x00f5, 57, 30}, {0x00b7, 59, 31}, {0x008a, 60, 32},
	{0x0068, 62, 33}, {0x004e, 63, 34}, {0x003b, 32, 35}, {0x002c, 33, 9},
	{0x5ae1, 165, 37}, {0x484c, 64, 38}, {0x3a0d, 65, 39}, {0x2ef1, 67, 40},
	{0x261f, 68, 41}, {0x1f33, 69, 42}, {0x19a8, 70, 43}, {0x1518, 72, 44},
	{0x1177, 73, 45}, {0x0e74, 74, 46}, {0x0bfb, 75, 47}, {0x09f8, 77, 48},
	{0x0861, 78, 49}, {0x0706, 79, 50}, {0x05cd, 48, 51}, {0x04de, 50, 52},
	{0x040f, 50, 53}, {0x0363, 51, 54}, {0x02d4, 52, 55}, {0x025c, 53, 56},
	{0x01f8, 54, 57}, {0x01a4, 55, 58}, {0x0160, 56, 59}, {0x0125, 57, 60},
	{0x00f6, 58, 61}, {0x00cb, 59, 62}, {0x00ab, 61, 63}, {0x008f, 61, 32},
	{0x5b12, 193, 65}, {0x4d04, 80, 66}, {0x412c, 81, 67}, {0x37d8, 82, 68},
	{0x2fe8, 83, 69}, {0x293c, 84, 70}, {0x2379, 86, 71}, {0x1edf, 87, 72},
	{0x1aa9, 87, 73}, {0x174e, 72, 74}, {0x1424, 72, 75}, {0x119c, 74, 76},
	{0x0f6b, 74, 77}, {0x0d51, 75, 78}, {0x0bb6, 77, 79}, {0x0a40, 77, 48},
	{0x5832, 208, 81}, {0x4d1c, 88, 82}, {0x438e, 89, 83}, {0x3bdd, 90, 84},
	{0x34ee, 91, 85}, {0x2eae, 92, 86}, {0x299a, 93, 87}, {0x2516, 86, 71},
	{0x5570, 216, 89}, {0x4ca9, 95, 90}, {0x44d9, 96, 91}, {0x3e22, 97, 92},
	{0x3824, 99, 93}, {0x32b4, 99, 94}, {0x2e17, 93, 86}, {0x56a8, 223, 96},
	{0x4f46, 101, 97}, {0x47e5, 102, 98}, {0x41cf, 103, 99}, {0x3c3d, 104, 100},
	{0x375e, 99, 93}, {0x5231, 105, 102}, {0x4c0f, 106, 103}, {0x4639, 107, 104},
	{0x415e, 103, 99}, {0x5627, 233, 106}, {0x50e7, 108, 107}, {0x4b85, 109, 103},
	{0x5597, 110, 109}, {0x504f, 111, 107}, {0x5a10, 238, 111}, {0x5522, 112, 109},
	{0x59eb, 240, 111}, {0x5a1d, 113, 113},
}
