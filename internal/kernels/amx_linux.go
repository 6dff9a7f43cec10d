//go:build amd64 && !noasm

package kernels

import (
	"sync"

	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"
)

// hasAMX reports whether the processor has tiles of bytes, and asks the system for the
// permission to use them, which it gives if its kernel saves them and the stacks for
// signals of all threads have room for them. From then on it refuses smaller such stacks
// to the whole process (sigaltstack, below some 11 KiB).
var hasAMX = sync.OnceValue(func() bool {
	if x := &cpu.X86; !x.HasAMXTile || !x.HasAMXInt8 {
		return false
	}
	const requestPermission, tileData = 0x1023, 18
	_, _, err := unix.RawSyscall(unix.SYS_ARCH_PRCTL, requestPermission, tileData, 0)
	return err == 0
})
