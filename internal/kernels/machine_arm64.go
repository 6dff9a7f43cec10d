//go:build !noasm

package kernels

// machineNEON has no kernels that mask their last vector.
var machineNEON = machine{
	width:    4,
	product:  microKernels{whole: productNEON[:], adds: true},
	distance: microKernels{whole: distanceNEON[:]},
	signs:    microKernels{whole: signsNEON[:]},
}

// transpose sets dst [cols,rows] to the transpose of src [rows,cols], in strips of
// rows; the last ones overlap those before.
func transpose(dst []float32, ldd int, src []float32, lds, rows, cols int) {
	_, _ = dst[(cols-1)*ldd+rows-1], src[(rows-1)*lds+cols-1]
	const side = 4
	high, strip := 16, transposeStrip16
	if rows < high {
		high, strip = 4, transposeStrip4
	}
	if rows < high || cols < side {
		for i := range rows {
			for j := range cols {
				dst[j*ldd+i] = src[i*lds+j]
			}
		}
		return
	}
	for i := 0; i < rows; i += high {
		i := min(i, rows-high)
		strip(&dst[i], ldd, &src[i*lds], lds, cols/side)
		if last := cols - side; cols%side != 0 {
			strip(&dst[last*ldd+i], ldd, &src[i*lds+last], lds, 1)
		}
	}
}
