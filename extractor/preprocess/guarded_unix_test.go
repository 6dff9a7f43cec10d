//go:build unix && amd64 && !noasm

package preprocess

import (
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// guarded returns n bytes between pages that cannot be accessed, at the end of
// the room between them or at its beginning. The cleanup of t ends them.
func guarded(t *rapid.T, n int, atEnd bool) []uint8 {
	t.Helper()
	page := unix.Getpagesize()
	size := (n + page - 1) / page * page
	memory, err := unix.Mmap(-1, 0, size+2*page, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	room := memory[page : page+size]
	if err := unix.Mprotect(room, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		t.Fatal(err)
	}
	if atEnd {
		room = room[size-n:]
	}
	return room[:n:n]
}
