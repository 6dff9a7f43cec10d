//go:build !noasm

package kernels

//go:noescape
func bytesAMX(t *bytesTask)
