package disk

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/windows"
)

// Busy tells whether an operation failed because another program has the file open.
func Busy(err error) bool {
	return errors.Is(err, windows.ERROR_SHARING_VIOLATION) || errors.Is(err, windows.ERROR_LOCK_VIOLATION)
}

// patiently calls do, which changes a path, again for up to two seconds while another
// program has the file open: a virus scanner or an indexer, which look at each new file,
// or a reader. Other systems rename and remove open files.
func patiently(path string, do func() error) error {
	for wait := time.Millisecond; ; wait *= 2 {
		err := do()
		busy := Busy(err)
		if errors.Is(err, windows.ERROR_ACCESS_DENIED) { // no folder is replaced, however long one waits
			info, statErr := os.Lstat(path)
			busy = statErr == nil && !info.IsDir()
		}
		if !busy || wait > time.Second {
			return err
		}
		time.Sleep(wait)
	}
}
