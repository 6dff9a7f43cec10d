//go:build !noasm

package kernels

// wideOf returns the kernels of float64 that go with a set.
func wideOf(name string) wideKernels {
	switch name {
	case "avx512":
		return wideKernels{rows: 8, width: 8, tiles: wideAVX512, narrow: narrowAVX512, four: packFour, sweep: sweepAVX512, stripe: 32, symmetricRow: symmetricRow, dot32: dot32AVX512, dot64: dot64AVX512, below: belowAVX512, atLeast: atLeastAVX512}
	case "avx2":
		return wideKernels{rows: 4, width: 4, tiles: wideAVX2, narrow: narrowAVX2, four: packFour, sweep: sweepAVX2, stripe: 16, symmetricRow: symmetricRow, dot32: dot32AVX2, dot64: dot64AVX2, below: belowAVX2, atLeast: atLeastAVX2}
	}
	return plainWide
}
