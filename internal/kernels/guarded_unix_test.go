//go:build unix

package kernels

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// guarded returns n floats whose end is the end of readable memory, so that a
// kernel that reads or writes beyond it crashes. Call release to free the memory.
func guarded(t testing.TB, n int) []float32 {
	page := unix.Getpagesize()
	size := (4*n + page - 1) / page * page
	memory, err := unix.Mmap(-1, 0, size+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mprotect(memory[size:], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	mapped = append(mapped, memory)
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&memory[size-4*n])), n)
}

var mapped [][]byte

// release frees all memory that guarded has returned.
func release() {
	for _, m := range mapped {
		_ = unix.Munmap(m)
	}
	mapped = nil
}
