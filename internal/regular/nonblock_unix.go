//go:build unix

package regular

import "golang.org/x/sys/unix"

const (
	nonblock  = unix.O_NONBLOCK | unix.O_NOCTTY
	directory = unix.O_DIRECTORY
)
