package extractor

import (
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

func TestSignalsSurviveALibraryThatTakesThem(t *testing.T) {
	received := make(chan os.Signal, 1)
	signal.Notify(received, syscall.SIGUSR1)
	defer signal.Stop(received)

	restore := saveSignals()
	// As CUDA does it: past Go's runtime. The kernel's struct begins with the
	// handler on every architecture.
	const ignore = 1
	action := [8]uintptr{ignore}
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(syscall.SIGUSR1), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0); errno != 0 {
		t.Fatal(errno)
	}
	restore()

	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	select {
	case <-received:
	case <-time.After(5 * time.Second):
		t.Error("the signal did not arrive")
	}
}
