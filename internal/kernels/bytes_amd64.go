//go:build !noasm

package kernels

var (
	bytesOfAMX  = byteKernels{times: bytesAMX, most: largestByte, largest: largestAVX512, shrink: shrinkAVX512}
	bytesOfAVX2 = byteKernels{times: bytesAVX2, most: mostOfAVX2, offset: mostOfAVX2, largest: largestAVX2, shrink: shrinkAVX2}
)

//go:noescape
func bytesAMX(t *bytesTask)

//go:noescape
func largestAVX512(row *float32, n int) float32

//go:noescape
func shrinkAVX512(to *int8, row *float32, n int, by, scale float32) (sum float32)
