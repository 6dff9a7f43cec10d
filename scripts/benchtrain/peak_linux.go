package main

import (
	"os"
	"syscall"
)

// peak returns the most bytes of memory that a program that has ended has held.
func peak(s *os.ProcessState) int64 {
	if usage, ok := s.SysUsage().(*syscall.Rusage); ok {
		return usage.Maxrss << 10
	}
	return 0
}
