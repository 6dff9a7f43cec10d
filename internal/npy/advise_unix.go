//go:build unix

package npy

import (
	"os"

	"golang.org/x/sys/unix"
)

// need and release are advice: ignoring it costs only time or memory, so errors are
// not reported.

func need(mem []byte, from, to int) {
	from -= from % os.Getpagesize()
	if to = min(to, len(mem)); from < to {
		_ = unix.Madvise(mem[from:to], unix.MADV_WILLNEED)
	}
}

func release(mem []byte) { _ = unix.Madvise(mem, unix.MADV_DONTNEED) }
