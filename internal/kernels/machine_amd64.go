//go:build !noasm

package kernels

import "golang.org/x/sys/cpu"

var (
	machineAVX512 = machine{
		16,
		microKernels{productAVX512[:], productAVX512[:], true},
		microKernels{distanceAVX512[:], distanceAVX512[:], false},
		microKernels{signsAVX512[:], signsAVX512[:], false},
		microKernels{foursAVX512[:], foursAVX512[:], true},
	}
	machineAVX2 = machine{
		8,
		microKernels{productAVX2[:], productAVX2Masked[:], true},
		microKernels{distanceAVX2[:], distanceAVX2Masked[:], false},
		microKernels{signsAVX2[:], signsAVX2Masked[:], false},
		microKernels{},
	}
)

// transpose sets dst [cols,rows] to the transpose of src [rows,cols], in strips of
// rows; the last ones overlap those before.
func transpose(dst []float32, ldd int, src []float32, lds, rows, cols int) {
	_, _ = dst[(cols-1)*ldd+rows-1], src[(rows-1)*lds+cols-1]
	const high = 16
	side, strip := 8, transposeStrip
	if cpu.X86.HasAVX512F && cols >= 16 {
		side, strip = 16, transposeStripAVX512
	}
	if rows < high || cols < side {
		const side = 8
		for i := 0; i < rows; i += side {
			for j := 0; j < cols; j += side {
				transposeEdge(&dst[j*ldd+i], ldd, &src[i*lds+j], lds, min(side, rows-i), min(side, cols-j))
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
