//go:build !noasm

package kernels

var bytesOfAMX = byteKernels{bytesAMX, largestAVX512, shrinkAVX512}

//go:noescape
func bytesAMX(t *bytesTask)

//go:noescape
func largestAVX512(row *float32, n int) float32

//go:noescape
func shrinkAVX512(to *int8, row *float32, n int, by, scale float32) (sum float32)
