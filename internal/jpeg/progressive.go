package jpeg

import (
	"context"
	"fmt"
)

// allScans decodes a file of several scans: all coefficients, then the samples.
func (d *decoder) allScans(ctx context.Context) error {
	for i := range d.components {
		if err := d.components[i].makeRoom(ctx, d.mcuRows); err != nil {
			return err
		}
	}
	d.lastGood = 0
	for marker := uint8(mSOS); marker != mEOI; {
		if err := d.beginScan(); err != nil {
			return err
		}
		if err := d.coefficients(ctx); err != nil {
			return err
		}
		var err error
		if marker, err = d.until(); err != nil {
			return err
		}
	}
	smooth := d.canSmooth()
	for row := range d.mcuRows {
		if err := ctx.Err(); err != nil {
			return err
		}
		for i := range d.components {
			c := &d.components[i]
			if smooth {
				c.smoothSamples(d, row)
			} else {
				c.samplesOf(row)
			}
		}
		d.emit(row)
	}
	return nil
}

// makeRoom allocates the coefficients of all MCUs: small amounts in one piece that
// the next image reuses, large ones row by row, since clearing the memory of the
// largest images takes a second.
func (c *component) makeRoom(ctx context.Context, mcuRows int) error {
	const kept = 1 << 16 // blocks of 128 bytes
	rows := mcuRows * c.v
	c.coefs = sized(c.coefs, rows)
	if rows*c.stride <= kept {
		c.store = sized(c.store, rows*c.stride)
		clear(c.store)
	}
	for y := range c.coefs {
		if rows*c.stride <= kept {
			c.coefs[y] = c.store[y*c.stride:][:c.stride]
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		c.coefs[y] = make([]block, c.stride)
	}
	return nil
}

// samplesOf transforms the wanted blocks of a row of MCUs.
func (c *component) samplesOf(row int) {
	w := c.wantedBlocks
	for y := max(row*c.v, w.Min.Y); y < min((row+1)*c.v, w.Max.Y); y++ {
		to := c.plane[(carried*c.v+8*(y-row*c.v))*8*c.stride:]
		for x := w.Min.X; x < w.Max.X; x++ {
			transform(to[8*x:], 8*c.stride, &c.coefs[y][x], &c.quant)
		}
	}
}

// coefficients decodes a scan.
func (d *decoder) coefficients(ctx context.Context) error {
	var decode func(c *component, b *block)
	switch {
	case d.arithmetic:
		decode = d.arith.decoder(d)
	case !d.progressive:
		decode = func(c *component, b *block) {
			var own block
			d.reader.block(&own, &d.dcTables[c.dcIndex], &d.acTables[c.acIndex], &c.dcBefore)
			for i, v := range own {
				if i == 0 || v != 0 { // the result of an earlier scan stays
					b[i] = v
				}
			}
		}
	case d.first == 0 && d.high == 0:
		decode = d.dcFirst
	case d.first == 0:
		decode = d.dcRefine
	case d.high == 0:
		decode = d.acFirst
	default:
		decode = d.acRefine
	}

	if len(d.scan) == 1 {
		c := d.scan[0]
		for y := range c.blocksHigh {
			if err := ctx.Err(); err != nil {
				return err
			}
			for x := range c.blocksWide {
				hasBits, err := d.beginMCU()
				if err != nil {
					return err
				}
				if hasBits {
					d.lastGood = y / c.v
					decode(c, &c.coefs[y][x])
					d.reader.endMCU()
				}
			}
		}
		return nil
	}
	for row := range d.mcuRows {
		if err := ctx.Err(); err != nil {
			return err
		}
		for x := range over(d.width, 8*d.maxH) {
			hasBits, err := d.beginMCU()
			if err != nil {
				return err
			}
			if !hasBits {
				continue
			}
			d.lastGood = row
			for _, c := range d.scan {
				for v := range c.v {
					blocks := c.coefs[row*c.v+v][x*c.h:][:c.h]
					for h := range blocks {
						decode(c, &blocks[h])
					}
				}
			}
			d.reader.endMCU()
		}
	}
	return nil
}

// beginProgressive checks the parameters of a scan, and records what will be known
// after it.
func (d *decoder) beginProgressive() error {
	bad := d.first == 0 && d.last != 0 || d.first > d.last || d.last > 63 ||
		d.first > 0 && len(d.scan) > 1 ||
		d.high != 0 && d.low != d.high-1 || d.low > 13
	if bad {
		return fmt.Errorf("a scan of coefficients %d to %d, bits %d to %d", d.first, d.last, d.high, d.low)
	}
	for _, c := range d.scan {
		for k := min(d.first, 1); k <= max(d.last, smoothed-1); k++ {
			c.knownBefore[k] = c.known[k]
			if d.scans == 1 {
				c.knownBefore[k] = 0
			}
		}
		for k := d.first; k <= d.last; k++ {
			c.known[k] = int8(d.low)
		}
	}
	return nil
}

func (d *decoder) dcFirst(c *component, b *block) {
	if size := d.reader.symbol(&d.dcTables[c.dcIndex]); size > 0 {
		c.dcBefore += int32(extend(d.reader.take(uint(size)), int(size)))
	}
	b[0] = int16(c.dcBefore << d.low)
}

func (d *decoder) dcRefine(_ *component, b *block) {
	if d.reader.take(1) != 0 {
		b[0] |= 1 << d.low
	}
}

func (d *decoder) acFirst(c *component, b *block) {
	if d.eobRun > 0 {
		d.eobRun--
		return
	}
	r := &d.reader
	t := &d.acTables[c.acIndex]
	for k := d.first; k <= d.last; k++ {
		r.fill()
		e := t.look[r.bits>>(64-lookBits)]
		if e == 0 {
			e = t.long(r.bits)
		}
		run, size := int(e.symbol()>>4), e.size()
		if size == 0 && run < 15 {
			r.consume(e)
			d.eobRun = 1<<run + r.take(uint(run)) - 1
			return
		}
		k += run
		if size > 0 {
			b[natural[k&127]&63] = int16(e.value(r.bits) << d.low)
		}
		r.consume(e)
	}
}

func (d *decoder) acRefine(c *component, b *block) {
	r := &d.reader
	t := &d.acTables[c.acIndex]
	one := int16(1) << d.low
	k := d.first
	// correct adds the next bit to a coefficient that is not zero.
	correct := func(v *int16) {
		if r.take(1) != 0 && *v&one == 0 {
			if *v >= 0 {
				*v += one
			} else {
				*v -= one
			}
		}
	}
	if d.eobRun == 0 {
		for ; k <= d.last; k++ {
			s := r.symbol(t)
			run, size := int(s>>4), s&15
			var fresh int16
			if size > 0 { // which should be 1 bit
				fresh = -one
				if r.take(1) != 0 {
					fresh = one
				}
			} else if run < 15 {
				d.eobRun = 1<<run + r.take(uint(run))
				break
			}
			for ; k <= d.last; k++ {
				if v := &b[natural[k&127]&63]; *v != 0 {
					correct(v)
				} else if run--; run < 0 {
					break
				}
			}
			if fresh != 0 {
				b[natural[k&127]&63] = fresh
			}
		}
	}
	if d.eobRun > 0 {
		for ; k <= d.last; k++ {
			if v := &b[natural[k&127]&63]; *v != 0 {
				correct(v)
			}
		}
		d.eobRun--
	}
}
