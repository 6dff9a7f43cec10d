//go:build !noasm

package kernels

// float64Of returns the float64 kernels of a set.
func float64Of(name string) float64Kernels {
	switch name {
	case "avx512":
		return float64Kernels{rows: 8, width: 8, tiles: float64TilesAVX512, tiles32: float32TilesAVX512, four: packFour, sweep: sweepAVX512, stripe: 32, symmetricRow: symmetricRow, dot32: dot32AVX512, dot64: dot64AVX512, below: belowAVX512, atLeast: atLeastAVX512}
	case "avx2":
		return float64Kernels{rows: 4, width: 4, tiles: float64TilesAVX2, tiles32: float32TilesAVX2, four: packFour, sweep: sweepAVX2, stripe: 16, symmetricRow: symmetricRow, dot32: dot32AVX2, dot64: dot64AVX2, below: belowAVX2, atLeast: atLeastAVX2}
	}
	return plainFloat64
}
