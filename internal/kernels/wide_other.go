//go:build !amd64 || noasm

package kernels

func wideOf(string) wideKernels { return plainWide }
