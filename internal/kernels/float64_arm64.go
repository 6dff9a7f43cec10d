//go:build !noasm

package kernels

// float64Of returns the float64 kernels of a set.
func float64Of(name string) float64Kernels {
	if name == "neon" {
		return float64Kernels{tiles: tiles{4, float64TilesNEON, float32TilesNEON}, width: 4, four: packFour, symmetricRows: symmetricRows, rowsTimes: rowsTimes, timesRows: timesRows, secularTerms: plainSecularTerms, quotients: plainQuotients, dot32: dot32NEON, dot64: dot64NEON, below: plainFloat64.below, atLeast: plainFloat64.atLeast}
	}
	return plainFloat64
}
