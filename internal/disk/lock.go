package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"
)

// ErrLocked says that another process holds a lock, since it is writing what is locked.
var ErrLocked = errors.New("another extraction is writing to it")

// Lock locks a file, which it makes, and its folder, where they are not there.
func Lock(file string) (*flock.Flock, error) {
	for {
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			return nil, err
		}
		lock := flock.New(file)
		ok, err := lock.TryLock()
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // the folder was removed, just now, by a run that has finished
		case Busy(err), err == nil && !ok:
			return nil, ErrLocked
		case err != nil:
			return nil, err
		}
		// The same may have happened between opening and locking.
		held, heldErr := lock.Stat()
		there, thereErr := os.Stat(file)
		if heldErr == nil && thereErr == nil && os.SameFile(held, there) {
			return lock, nil
		}
		if err := lock.Close(); err != nil {
			return nil, err
		}
	}
}

// LockRun calls lock for the first run, and, to speculate, for those after it up to the
// eighth until one is not locked. Other names are those of the first with -2, -3, ….
func LockRun(name string, speculate bool, lock func(name string) (*flock.Flock, error)) (string, *flock.Flock, error) {
	const most = 8 // runs at a time
	for n := 1; ; n++ {
		own := name
		if n > 1 {
			own += "-" + string(rune('0'+n))
		}
		l, err := lock(own)
		if speculate && n < most && errors.Is(err, ErrLocked) {
			continue
		}
		return own, l, err
	}
}
