//go:build !unix

package disk

const nonblock, directory = 0, 0
