package jpeg

// smoothed is how many coefficients, in zigzag order, are estimated from the DC
// coefficients of the surrounding blocks if a progressive file omits them.
const smoothed = 10

// kernel estimates a coefficient from the DC coefficients of the surrounding 5×5 blocks.
type kernel [25]int

// If there are no AC coefficients, all are estimated, and DC itself is smoothed.
var dcKernels = [smoothed]kernel{
	{-2, -6, -8, -6, -2, -6, 6, 42, 6, -6, -8, 42, 152, 42, -8, -6, 6, 42, 6, -6, -2, -6, -8, -6, -2},
	{-1, -1, 0, 1, 1, -3, 13, 0, -13, 3, -3, 38, 0, -38, 3, -3, 13, 0, -13, 3, -1, -1, 0, 1, 1},
	{-1, -3, -3, -3, -1, -1, 13, 38, 13, -1, 0, 0, 0, 0, 0, 1, -13, -38, -13, 1, 1, 3, 3, 3, 1},
	{0, 0, 1, 0, 0, 0, 2, 7, 2, 0, 0, -5, -14, -5, 0, 0, 2, 7, 2, 0, 0, 0, 1, 0, 0},
	{-1, 0, 0, 0, 1, 0, 9, 0, -9, 0, 0, 0, 0, 0, 0, 0, -9, 0, 9, 0, 1, 0, 0, 0, -1},
	{0, 0, 0, 0, 0, 0, 2, -5, 2, 0, 1, 7, -14, 7, 1, 0, 2, -5, 2, 0, 0, 0, 0, 0, 0},
	{0, 0, 0, 0, 0, 0, 1, 0, -1, 0, 0, 2, 0, -2, 0, 0, 1, 0, -1, 0, 0, 0, 0, 0, 0},
	{0, 0, 0, 0, 0, 0, 1, -3, 1, 0, 0, 0, 0, 0, 0, 0, -1, 3, -1, 0, 0, 0, 0, 0, 0},
	{0, 0, 0, 0, 0, 0, 1, 0, -1, 0, 0, -3, 0, 3, 0, 0, 1, 0, -1, 0, 0, 0, 0, 0, 0},
	{0, 0, 0, 0, 0, 0, 1, 2, 1, 0, 0, 0, 0, 0, 0, 0, -1, -2, -1, 0, 0, 0, 0, 0, 0},
}

// If there are some, only the missing ones of the first five are estimated.
var acKernels = [6]kernel{
	1: {10: -7, 11: 50, 13: -50, 14: 7},
	2: {2: -7, 7: 50, 17: -50, 22: 7},
	3: {2: -1, 7: 13, 12: -24, 17: 13, 22: -1},
	4: {1: -1, 3: 1, 5: -1, 6: 10, 8: -10, 9: 1, 15: 1, 16: -10, 18: 10, 19: -1, 21: 1, 23: -1},
	5: {10: -1, 11: 13, 12: -24, 13: 13, 14: -1},
}

// canSmooth reports whether blocks are to be smoothed: some coefficients are not
// known to the last bit.
func (d *decoder) canSmooth() bool {
	useful := false
	for i := range d.components {
		c := &d.components[i]
		if !d.progressive || !c.quantKnown || c.known[0] < 0 {
			return false
		}
		for k := range smoothed {
			if c.quant[natural[k]] == 0 {
				return false
			}
			useful = useful || k > 0 && c.known[k] != 0
		}
		if d.scans == 1 {
			for k := 1; k < smoothed; k++ {
				c.knownBefore[k] = -1
			}
		}
	}
	return useful
}

// smoothSamples transforms a row of MCUs after it estimated the missing
// coefficients from the DC coefficients of the surrounding blocks.
func (c *component) smoothSamples(d *decoder, row int) {
	known := &c.known
	if row > d.lastGood {
		known = &c.knownBefore
	}
	kernels := dcKernels[:]
	for k := 1; k < smoothed; k++ {
		if known[k] != -1 {
			kernels = acKernels[:]
		}
	}
	high := c.v
	if row == d.mcuRows-1 && c.blocksHigh%c.v != 0 {
		high = c.blocksHigh % c.v
	}
	for v := range high {
		at := row*c.v + v
		// libjpeg's count, which differs from at in the last row.
		counted, rows := row*high+v, high*d.mcuRows
		var around [5][]block
		line := func(y int) []block { return c.coefs[y][:c.blocksWide] }
		around[2] = line(at)
		around[1], around[3] = around[2], around[2]
		if counted > 0 {
			around[1] = line(at - 1)
		}
		around[0] = around[1]
		if counted > 1 {
			around[0] = line(at - 2)
		}
		if counted < rows-1 {
			around[3] = line(at + 1)
		}
		around[4] = around[3]
		if counted < rows-2 {
			around[4] = line(at + 2)
		}
		to := c.plane[(carried*c.v+8*v)*8*c.stride:]
		for x := range c.blocksWide {
			var dc [25]int
			for i := range dc {
				dc[i] = int(around[i/5][min(max(x+i%5-2, 0), c.blocksWide-1)][0])
			}
			b := around[2][x]
			for k := len(kernels) - 1; k >= 0; k-- {
				z := natural[k]
				if k == 0 && len(kernels) < smoothed || k > 0 && (known[k] == 0 || b[z] != 0) {
					continue
				}
				b[z] = estimate(&kernels[k], &dc, int(c.quant[0]), int(c.quant[z]), int(known[k]), k == 0)
			}
			transform(to[8*x:], 8*c.stride, &b, &c.quant)
		}
	}
}

// estimate returns a coefficient, from 1/256 of the kernel's weighted sum, limited
// to values below bit known.
func estimate(k *kernel, dc *[25]int, quantDC, quant, known int, whole bool) int16 {
	sum := 0
	for i, weight := range k {
		sum += weight * dc[i]
	}
	sum *= quantDC
	v := (quant<<7 + max(sum, -sum)) / (quant << 8)
	if known > 0 && !whole {
		v = min(v, 1<<known-1)
	}
	if sum < 0 {
		v = -v
	}
	return int16(v)
}
