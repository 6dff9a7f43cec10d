//go:build unix

package extractor

import (
	"math"
	"syscall"
)

// mostMapped returns how many bytes the process may map.
func mostMapped() int64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_AS, &limit); err != nil || limit.Cur > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(limit.Cur)
}
