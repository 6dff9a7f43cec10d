//go:build !linux

package extractor

import "time"

var opened = time.Now()

// busy is the time of the clock, where a thread's own is not to be had.
func busy() time.Duration { return time.Since(opened) }
