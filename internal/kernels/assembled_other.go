//go:build !amd64 || noasm

package kernels

func assembled() []set { return nil }
