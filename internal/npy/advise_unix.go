//go:build unix

package npy

import (
	"os"

	"golang.org/x/sys/unix"
)

// need and release are advice: a system that cannot follow it loses nothing but
// time or memory, so that there is no error to report.

func need(mem []byte, from, to int) {
	from -= from % os.Getpagesize()
	if to = min(to, len(mem)); from < to {
		_ = unix.Madvise(mem[from:to], unix.MADV_WILLNEED)
	}
}

func release(mem []byte) { _ = unix.Madvise(mem, unix.MADV_DONTNEED) }
