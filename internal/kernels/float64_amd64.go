//go:build !noasm

package kernels

// float64Of returns the float64 kernels of a set.
func float64Of(name string) float64Kernels {
	switch name {
	case "amx":
		k := float64Of("avx512")
		k.bytes = &bytesOfAMX
		return k
	case "avx512":
		return float64Kernels{tiles: tiles{8, float64TilesOf8AVX512, float32TilesOf8AVX512}, low: []tiles{{1, float64TilesOf1AVX512, float32TilesOf1AVX512}, {2, float64TilesOf2AVX512, float32TilesOf2AVX512}, {4, float64TilesOf4AVX512, float32TilesOf4AVX512}}, width: 8, four: packFour, copyRows: copyRows, symmetricRows: symmetricRows, rowsTimes: rowsTimes, timesRows: timesRows, secularTerms: secularTerms, quotients: quotients, dot32: dot32AVX512, dot64: dot64AVX512, below: belowAVX512, atLeast: atLeastAVX512, prefetch: prefetchRow}
	case "avx2":
		return float64Kernels{tiles: tiles{4, float64TilesOf4AVX2, float32TilesOf4AVX2}, low: []tiles{{1, float64TilesOf1AVX2, float32TilesOf1AVX2}, {2, float64TilesOf2AVX2, float32TilesOf2AVX2}}, width: 4, four: packFour, copyRows: copyRows, symmetricRows: symmetricRows, rowsTimes: rowsTimes, timesRows: timesRows, secularTerms: secularTerms, quotients: quotients, dot32: dot32AVX2, dot64: dot64AVX2, below: belowAVX2, atLeast: atLeastAVX2, prefetch: prefetchRow, bytes: &bytesOfAVX2}
	}
	return plainFloat64
}
