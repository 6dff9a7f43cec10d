//go:build !noasm

package kernels

var (
	bytesOfAMX  = byteKernels{times: bytesAMX, most: largestByte, largest: largestAVX2, shrink: shrinkAVX2}
	bytesOfAVX2 = byteKernels{times: bytesAVX2, most: mostOfAVX2, offset: mostOfAVX2, largest: largestAVX2, shrink: shrinkAVX2}
)

//go:noescape
func bytesAMX(t *bytesTask)
