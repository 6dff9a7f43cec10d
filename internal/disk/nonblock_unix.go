//go:build unix

package disk

import "golang.org/x/sys/unix"

const (
	nonblock  = unix.O_NONBLOCK | unix.O_NOCTTY
	directory = unix.O_DIRECTORY
)
