//go:build amd64 && !linux && !noasm

package kernels

// hasAMX: other systems than Linux are not asked for tiles.
func hasAMX() bool { return false }
