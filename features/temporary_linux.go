package features

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// temporary makes a file that nobody else sees and that is gone when the process ends,
// however it ends: in memory, or in the folder dir. Its path can be opened by this
// process until the function that it returns is called.
func temporary(dir string, fill func(io.Writer) error) (path string, done func() error, err error) {
	var f *os.File
	if dir == "" {
		fd, err := unix.MemfdCreate("features", unix.MFD_CLOEXEC)
		if err != nil {
			return "", nil, fmt.Errorf("a file in memory: %w", err)
		}
		f = os.NewFile(uintptr(fd), "features")
	} else {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return "", nil, err
		}
		if f, err = os.CreateTemp(dir, "features-*"); err != nil {
			return "", nil, err
		}
		if err := os.Remove(f.Name()); err != nil {
			return "", nil, errors.Join(err, f.Close())
		}
	}
	if err := fill(f); err != nil {
		return "", nil, errors.Join(err, f.Close())
	}
	return fmt.Sprintf("/proc/self/fd/%d", f.Fd()), f.Close, nil
}
