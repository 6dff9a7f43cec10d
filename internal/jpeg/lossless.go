package jpeg

import (
	"context"
	"errors"
	"fmt"
)

// lossless decodes a file of process 14 of T.81 (annex H): samples are predicted
// from their left and upper neighbours, and only the differences are coded.
func (d *decoder) lossless(ctx context.Context) error {
	switch {
	case len(d.components) == 4 && d.hasYCC(), len(d.components) == 3 && (d.jfif || d.adobe && d.transform != 0):
		return errors.New("lossless JPEG with luma and chroma is not supported") // nor by libjpeg
	}
	for i := range d.components {
		c := &d.components[i]
		c.full = sized(c.full, c.width*c.height)
		clear(c.full)
	}
	for marker := uint8(mSOS); marker != mEOI; {
		if err := d.losslessScan(ctx); err != nil {
			return err
		}
		if !d.several {
			break
		}
		var err error
		if marker, err = d.until(); err != nil {
			return err
		}
	}
	for row := range d.mcuRows {
		if err := ctx.Err(); err != nil {
			return err
		}
		for i := range d.components {
			c := &d.components[i]
			for y := 8 * c.v * row; y < min(8*c.v*(row+1), c.height); y++ {
				copy(c.samples(row, y), c.full[y*c.width:][:c.width])
			}
		}
		d.emit(row)
	}
	if d.several {
		return nil
	}
	return d.finish()
}

// losslessScan decodes a scan. Its spectral selection says how to predict.
func (d *decoder) losslessScan(ctx context.Context) error {
	if d.first < 1 || d.first > 7 || d.last != 0 || d.high != 0 || d.low > 7 {
		return fmt.Errorf("a lossless scan of prediction %d, bits %d to %d", d.first, d.high, d.low)
	}
	if err := d.beginScan(); err != nil {
		return err
	}
	alone := len(d.scan) == 1
	wide, high := over(d.width, d.maxH), over(d.height, d.maxV) // in MCUs
	if alone {
		wide, high = d.scan[0].width, d.scan[0].height
	}
	if d.restart%wide != 0 {
		return fmt.Errorf("a restart interval of %d, want whole rows of %d", d.restart, wide)
	}
	for _, c := range d.scan {
		c.boxH, c.boxV = c.h, c.v
		if alone {
			c.boxH, c.boxV = 1, 1
		}
		c.differences = sized(c.differences, c.boxV*wide*c.boxH)
		c.above = sized(c.above, c.width)
	}
	r := &d.reader
	for row := range high {
		if err := ctx.Err(); err != nil {
			return err
		}
		fresh := row == 0 || d.restart > 0 && d.toGo == 0
		// A row without any bits is grey.
		skipped := r.dry
		for x := range wide {
			hasBits, err := d.beginMCU()
			if err != nil {
				return err
			}
			if skipped = skipped && !hasBits; skipped {
				continue
			}
			if r.dry { // the data ended within the row: zeros follow
				r.bits, r.n, r.at = 0, 0, r.end
			}
			for _, c := range d.scan {
				for v := range c.boxV {
					for h := range c.boxH {
						difference, err := r.difference(&d.dcTables[c.dcIndex])
						if err != nil {
							return err
						}
						c.differences[(v*wide+x)*c.boxH+h] = int32(difference)
					}
				}
			}
			r.endMCU()
		}
		for _, c := range d.scan {
			if skipped {
				clear(c.differences)
			}
			for v := range c.boxV {
				if y := row*c.boxV + v; y < c.height {
					c.predict(c.full[y*c.width:][:c.width], c.differences[v*wide*c.boxH:], d.first, d.low, (fresh || skipped) && v == 0)
				}
			}
		}
	}
	return nil
}

// difference reads the difference between a sample and its prediction.
func (r *bitReader) difference(t *decoderTable) (int, error) {
	size, err := r.symbolOfCut(t)
	switch {
	case err != nil:
		return 0, err
	case size == 16:
		return 1 << 15, nil
	}
	return r.valueOfCut(size)
}

// predict adds the differences of a row to the predictions from the left and upper
// neighbours. The first row of a segment has no upper neighbours.
func (c *component) predict(dst []uint8, differences []int32, how int, low uint, first bool) {
	left, aboveLeft := int32(1)<<(8-low-1), int32(0)
	for x := range dst {
		above := c.above[x]
		expected := left
		switch {
		case first:
		case x == 0:
			expected = above
		case how == 2:
			expected = above
		case how == 3:
			expected = aboveLeft
		case how == 4:
			expected = left + above - aboveLeft
		case how == 5:
			expected = left + (above-aboveLeft)>>1
		case how == 6:
			expected = above + (left-aboveLeft)>>1
		case how == 7:
			expected = (left + above) >> 1
		}
		left = (expected + differences[x]) & 0xffff
		c.above[x], aboveLeft = left, above
		dst[x] = uint8(left << low)
	}
}
