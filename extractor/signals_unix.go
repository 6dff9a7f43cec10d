//go:build unix

package extractor

/*
#include <signal.h>
#include <stdlib.h>
*/
import "C"

import "unsafe"

// saveSignals remembers the handlers of all signals and returns a function that
// puts them back. Handlers lie in memory of C: they have pointers, and where a system
// leaves some of them as they were (QEMU), Go would take what is there for its own.
func saveSignals() (restore func()) {
	saved := (*[C.NSIG]C.struct_sigaction)(C.malloc(C.NSIG * C.sizeof_struct_sigaction))
	var ok [C.NSIG]bool
	for s := 1; s < C.NSIG; s++ {
		ok[s] = C.sigaction(C.int(s), nil, &saved[s]) == 0
	}
	return func() {
		defer C.free(unsafe.Pointer(saved))
		for s := 1; s < C.NSIG; s++ {
			if ok[s] {
				C.sigaction(C.int(s), &saved[s], nil)
			}
		}
	}
}
