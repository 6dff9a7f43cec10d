//go:build !noasm

package kernels

// assembled lists the sets in assembly: every arm64 has NEON.
func assembled(bool) []set {
	return []set{{"neon", "neon", func() Products[float32] { return &products{machine: machineNEON} }, &vectorsNEON}}
}
