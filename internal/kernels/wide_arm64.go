//go:build !noasm

package kernels

// wideOf returns the kernels of float64 that go with a set.
func wideOf(name string) wideKernels {
	if name == "neon" {
		return wideKernels{rows: 4, width: 4, tiles: wideNEON, narrow: narrowNEON, four: packFour, sweep: sweepNEON, stripe: 16, symmetricRow: symmetricRow, dot32: dot32NEON, dot64: dot64NEON, below: plainWide.below, atLeast: plainWide.atLeast}
	}
	return plainWide
}
