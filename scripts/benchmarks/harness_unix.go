//go:build unix

package main

import (
	"os"
	"runtime"
	"syscall"
	"time"
)

// processTime returns the processor time of all threads of this program.
func processTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r) // it cannot fail
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// peak returns the peak memory in bytes of a program that has ended, or 0 if the
// system does not count like Linux.
func peak(s *os.ProcessState) int64 {
	if usage, ok := s.SysUsage().(*syscall.Rusage); ok && runtime.GOOS == "linux" {
		return int64(usage.Maxrss) << 10
	}
	return 0
}
