package npy

import "io"

// ReadHeader is readHeader for the tests.
func ReadHeader(r io.Reader) (Header, error) {
	h, _, err := readHeader(r)
	return h, err
}

// Widen converts the bits of a float16.
var Widen = widen
