package extractor

import (
	"time"

	"golang.org/x/sys/unix"
)

// busy is how long the calling thread has computed. What else a machine does at a time
// does not count, as it does by the clock, which makes the choice among plans one of chance.
func busy() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
