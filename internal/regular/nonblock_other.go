//go:build !unix

package regular

const nonblock, directory = 0, 0
