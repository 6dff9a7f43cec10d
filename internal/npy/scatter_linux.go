package npy

import (
	"os"

	"golang.org/x/sys/unix"
)

func scatter(f *os.File) { _ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_RANDOM) }
