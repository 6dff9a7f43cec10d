//go:build (!amd64 && !arm64) || noasm

package kernels

func wideOf(string) wideKernels { return plainWide }
