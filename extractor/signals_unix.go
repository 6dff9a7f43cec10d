//go:build unix

package extractor

/*
#include <signal.h>
*/
import "C"

// saveSignals remembers the handlers of all signals and returns a function that
// puts them back.
func saveSignals() (restore func()) {
	var saved [C.NSIG]C.struct_sigaction
	var ok [C.NSIG]bool
	for s := 1; s < C.NSIG; s++ {
		ok[s] = C.sigaction(C.int(s), nil, &saved[s]) == 0
	}
	return func() {
		for s := 1; s < C.NSIG; s++ {
			if ok[s] {
				C.sigaction(C.int(s), &saved[s], nil)
			}
		}
	}
}
