// Package parts has what all things have in common that processes make in parts, one for
// each shard: how parts are named, claimed, made, finished and looked at. A part lies in a
// folder, and names begin alike whatever it is of:
//
//	part-00001-of-00008…           what was made: a folder, or a file and its record
//	part-00001-of-00008.partial/   the work of a run, see [Claim]
//	part-00001-of-00008.progress   how far it has come, see [State]
package parts

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/gofrs/flock"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

// ErrLocked says that another process holds a lock, since it is writing what is locked.
var ErrLocked = errors.New("another extraction is writing to it")

// Claim is a folder for the work of one run, which has locked it. What a killed run leaves
// there is for the next one, which takes over.
type Claim struct {
	Dir  string
	lock *flock.Flock
}

// lockFile is the lock in the folder of a Claim.
const lockFile = "lock"

// Take makes and locks the folder with a name. To speculate, a run whose folder is locked
// takes that with -2 after its name, up to -8. Unless strange is nil, it is wrapped by the
// error about a folder that has files and no lock, and was not made here. If another run has
// the folder, the error wraps [ErrLocked].
func Take(name string, speculate bool, strange error) (*Claim, error) {
	const most = 8 // runs at a time
	for n := 1; ; n++ {
		c := &Claim{Dir: name}
		if n > 1 {
			c.Dir = fmt.Sprintf("%s-%d", name, n)
		}
		err := c.take(strange)
		if err == nil {
			return c, nil
		}
		if !speculate || n == most || !errors.Is(err, ErrLocked) {
			return nil, err
		}
	}
}

func (c *Claim) take(strange error) error {
	entries, err := os.ReadDir(c.Dir)
	switch {
	case disk.Busy(err):
		return ErrLocked // a run that is finishing removes it
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	ours := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == lockFile })
	if strange != nil && len(entries) > 0 && !ours {
		return fmt.Errorf("%s is %w, nor unfinished work on one; move it or write to another folder", c.Dir, strange)
	}
	for {
		if err := os.MkdirAll(c.Dir, 0o777); err != nil {
			return err
		}
		c.lock = flock.New(c.Path(lockFile))
		ok, err := c.lock.TryLock()
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // the folder was removed, just now, by a run that has finished
		case disk.Busy(err), err == nil && !ok:
			return ErrLocked
		case err != nil:
			return err
		}
		// The same may have happened between opening and locking.
		held, heldErr := c.lock.Stat()
		there, thereErr := os.Stat(c.Path(lockFile))
		if heldErr == nil && thereErr == nil && os.SameFile(held, there) {
			return nil
		}
		if err := c.lock.Close(); err != nil {
			return err
		}
	}
}

// Path returns the path of a file in the folder.
func (c *Claim) Path(file string) string { return filepath.Join(c.Dir, file) }

// Clear removes all that is in the folder but the lock.
func (c *Claim) Clear() error {
	entries, err := os.ReadDir(c.Dir)
	errs := []error{err}
	for _, e := range entries {
		if e.Name() != lockFile {
			errs = append(errs, disk.RemoveAll(c.Path(e.Name())))
		}
	}
	return errors.Join(errs...)
}

// Release releases the lock, and removes the folder if nothing else is left in it.
func (c *Claim) Release() error {
	var errs []error
	if left, err := os.ReadDir(c.Dir); err == nil && len(left) == 1 {
		// The lock is removed before it is released: a run that starts now finds a new lock or
		// none. If that run creates a lock, the folder stays. Windows removes no file that is
		// open: there the lock is released first, and is left to a run that has taken it since.
		windows := runtime.GOOS == "windows"
		if windows {
			errs = append(errs, c.lock.Close())
		}
		for _, name := range []string{lockFile, ""} {
			err := disk.Remove(c.Path(name))
			if errors.Is(err, fs.ErrExist) || windows && (disk.Busy(err) || errors.Is(err, fs.ErrNotExist)) {
				break
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, c.lock.Close())...)
}

// ErrDamaged says that a file or object is not as it was written, or is missing.
var ErrDamaged = errors.New("damaged data")

// JSON writes a value as a small file has it.
func JSON(v any) []byte {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	if err := enc.Encode(v); err != nil {
		panic(err) // of strings and numbers
	}
	return text.Bytes()
}
