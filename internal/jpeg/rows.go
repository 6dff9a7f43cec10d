package jpeg

// carried is how many groups of rows a plane retains from the previous row of MCUs,
// where a group becomes maxV rows of the image. A group is written when the next
// one is known, and it needs the one before it.
const carried = 2

// emit writes the rows of the image that can be computed from the samples of a row
// of MCUs: all but its last group.
func (d *decoder) emit(mcuRow int) {
	first, last := 8*mcuRow-1, 8*mcuRow+6
	if mcuRow == d.mcuRows-1 {
		last++
	}
	for group := max(first, 0); group <= last; group++ {
		for i := 0; i < d.maxV && d.row < d.height; i++ {
			if d.wanted.Min.Y <= d.row && d.row < d.wanted.Max.Y {
				for j := range d.components {
					d.components[j].widen(d, mcuRow, d.row)
				}
				d.convert()
			}
			d.row++
		}
	}
	for i := range d.components {
		c := &d.components[i]
		n := carried * c.v * 8 * c.stride
		copy(c.plane[:n], c.plane[len(c.plane)-n:])
	}
}

// samples returns row y of the component. The plane holds the rows of one row of
// MCUs and the carried rows above it.
func (c *component) samples(mcuRow, y int) []uint8 {
	at := y - 8*c.v*mcuRow + carried*c.v
	return c.plane[at*8*c.stride:][:c.width]
}

// widen makes the wanted part of row y of the image. Chroma at half the resolution
// is interpolated between the centres of samples, other chroma is replicated.
func (c *component) widen(d *decoder, mcuRow, y int) {
	right, down := d.maxH/c.h, d.maxV/c.v
	own := y / down
	near := c.samples(mcuRow, own)
	far := near
	// libjpeg does not interpolate lossless chroma, nor columns of images that are no wider than
	// two samples, and then does not interpolate rows either.
	smooth := (right == 1 && down == 2 || right == 2 && down <= 2 && c.width > 2) && !d.predicted
	if smooth && down == 2 {
		far = c.samples(mcuRow, min(max(own-1+y%2*2, 0), c.height-1))
	}
	if right == 1 && down == 1 {
		c.wide = near
		return
	}
	c.wide = c.line
	from, to := c.wanted.Min.X, c.wanted.Max.X
	line := c.line[right*from:]
	near, far = near[from:to], far[from:to]
	switch {
	case !smooth:
		replicate(line, near, right)
	case right == 1:
		blend(line, near, far, 1+y%2)
	case down == 1:
		// Rounded alternately down and up, as in libjpeg, in sixteenths.
		interpolate(line, near, far, 4, 8)
	default:
		interpolate(line, near, far, 8, 7)
	}
}

func replicate(dst, src []uint8, times int) {
	if times == 1 {
		copy(dst, src)
		return
	}
	for i, v := range src {
		for j := range times {
			dst[times*i+j] = v
		}
	}
}

// blend makes a row between two rows, weighted towards near.
func blend(dst, near, far []uint8, bias int) {
	far, dst = far[:len(near)], dst[:len(near)]
	for i, v := range near {
		dst[i] = uint8((3*int(v) + int(far[i]) + bias) >> 2)
	}
}

// interpolatePlain makes a row twice as wide from the nearest row of samples and the
// next nearest, with weights 3:1 across rows and columns; the two are the same
// where only columns are halved. even and odd round the columns, in sixteenths.
func interpolatePlain(dst, near, far []uint8, even, odd int) {
	far, dst = far[:len(near)], dst[:2*len(near)]
	this := 3*int(near[0]) + int(far[0])
	last := this
	for x := 1; x < len(near); x++ {
		next := 3*int(near[x]) + int(far[x])
		pair := dst[2*x-2 : 2*x : 2*x]
		pair[0] = uint8((3*this + last + even) >> 4)
		pair[1] = uint8((3*this + next + odd) >> 4)
		last, this = this, next
	}
	pair := dst[2*len(near)-2:]
	pair[0] = uint8((3*this + last + even) >> 4)
	pair[1] = uint8((4*this + odd) >> 4)
}

// convert writes the wanted part of a row of the image from the rows of the
// components.
func (d *decoder) convert() {
	c, from, to := d.components, d.wanted.Min.X, d.wanted.Max.X
	w := to - from
	size := 4
	if d.raw {
		size = len(c)
	}
	dst := d.pix[size*(d.row*d.width+from):][:size*w]
	a := c[0].wide[from:to]
	switch {
	case d.raw && d.asYCC:
		line := sized(d.line, 4*w)
		colours(line, a, c[1].wide[from:to], c[2].wide[from:to])
		for x := range w {
			copy(dst[3*x:3*x+3], line[4*x:])
		}
		d.line = line
		return
	case d.raw:
		for i := range c {
			for x, v := range c[i].wide[from:to] {
				dst[x*size+i] = v
			}
		}
		return
	case len(c) == 1:
		for x, v := range a {
			set(dst, x, v, v, v)
		}
		return
	}
	b, e := c[1].wide[from:to], c[2].wide[from:to]
	ycc := d.hasYCC()
	if ycc {
		colours(dst, a, b, e)
	} else {
		for x, v := range a {
			set(dst, x, v, b[x], e[x])
		}
	}
	if len(c) < 4 {
		return
	}
	// Pillow assumes that all inks are Adobe's, which are stored inverted. Inks
	// that were converted to RGB are the light that remains, so they are inverted
	// already.
	for x, light := range c[3].wide[from:to] {
		pixel := dst[4*x:][:3]
		for i, ink := range pixel {
			if !ycc {
				ink = 255 - ink
			}
			pixel[i] = lit(ink, int(light))
		}
	}
}

// hasYCC reports whether the components are luma and chroma, by the rules of
// libjpeg.
func (d *decoder) hasYCC() bool {
	c := d.components
	switch {
	case len(c) == 4:
		return d.adobe && d.transform != 0
	case d.predicted:
		return false
	case d.jfif:
		return true
	case d.adobe:
		return d.transform != 0
	}
	return c[0].id != 'R' || c[1].id != 'G' || c[2].id != 'B'
}

func set(dst []uint8, x int, r, g, b uint8) {
	pixel := dst[4*x : 4*x+4 : 4*x+4]
	pixel[0], pixel[1], pixel[2], pixel[3] = r, g, b, 255
}

// lit returns how much of the light that passes the black ink also passes another
// ink, rounded as in Pillow's cmyk2rgb.
func lit(ink uint8, light int) uint8 {
	product := int(ink)*light + 128
	return uint8(light - (product+product>>8)>>8)
}
