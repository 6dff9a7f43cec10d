// Package disk writes files so that a reader never sees half of one, opens files whose
// names or contents are not trusted, and writes paths as text. It wraps the operations of
// package os that change the disk, so that tests can make each of them fail: for code that
// must survive a crash or an error in any of them.
package disk

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
)

// A Fault is called before every operation: op is its name, as in an fs.PathError,
// and path is what it changes. If it returns an error, the operation fails with it
// and is half done, as after a crash: half of the bytes are written, one file of a
// folder is removed. While a Fault is set nothing is synced, because tests kill
// processes, not machines. It may be called from several goroutines.
type Fault func(op, path string) error

var fault atomic.Pointer[Fault]

// SetFault sets a Fault, for tests; nil removes it.
func SetFault(f Fault) {
	if f == nil {
		fault.Store(nil)
		return
	}
	fault.Store(&f)
}

// fails returns the error that the operation is to fail with, if any.
func fails(op, path string) error {
	f := fault.Load()
	if f == nil {
		return nil
	}
	if err := (*f)(op, path); err != nil {
		return &fs.PathError{Op: op, Path: path, Err: err}
	}
	return nil
}

// OnError closes what a function has opened that returns an error; it is to be deferred.
func OnError(err *error, close func() error) {
	if *err != nil {
		*err = errors.Join(*err, close())
	}
}

// try does what changes a path, unless it is to fail.
func try(op, path string, do func() error) error {
	if err := fails(op, path); err != nil {
		return err
	}
	return do()
}

// File is an open file that is written to.
type File struct{ *os.File }

// OpenForWriting is os.OpenFile, for writing.
func OpenForWriting(path string, flag int, mode fs.FileMode) (*File, error) {
	if err := fails("open", path); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, flag, mode)
	if err != nil {
		return nil, err
	}
	return &File{f}, nil
}

// Write is os.File's.
func (f *File) Write(p []byte) (int, error) {
	if err := fails("write", f.Name()); err != nil {
		n, _ := f.File.Write(p[:len(p)/2])
		return n, err
	}
	return f.File.Write(p)
}

// WriteAt is os.File's.
func (f *File) WriteAt(p []byte, at int64) (int, error) {
	if err := fails("write", f.Name()); err != nil {
		n, _ := f.File.WriteAt(p[:len(p)/2], at)
		return n, err
	}
	return f.File.WriteAt(p, at)
}

// Truncate is os.File's.
func (f *File) Truncate(size int64) error {
	return try("truncate", f.Name(), func() error { return f.File.Truncate(size) })
}

// Sync is os.File's.
func (f *File) Sync() error {
	return try("sync", f.Name(), func() error {
		if fault.Load() != nil {
			return nil
		}
		return f.File.Sync()
	})
}

// Mkdir is os.Mkdir with all permissions less the umask.
func Mkdir(path string) error {
	return try("mkdir", path, func() error { return os.Mkdir(path, 0o777) })
}

// Rename is os.Rename.
func Rename(from, to string) error {
	return try("rename", to, func() error {
		return patiently(to, func() error { return os.Rename(from, to) })
	})
}

// Exchange swaps two names in one step. If the operating system cannot, the error
// wraps errors.ErrUnsupported.
func Exchange(a, b string) error {
	return try("exchange", b, func() error { return exchange(a, b) })
}

// Remove is os.Remove.
func Remove(path string) error {
	return try("remove", path, func() error {
		return patiently(path, func() error { return os.Remove(path) })
	})
}

// RemoveAll is os.RemoveAll.
func RemoveAll(path string) error {
	if err := fails("remove", path); err != nil {
		if entries, readErr := os.ReadDir(path); readErr == nil && len(entries) > 0 {
			os.Remove(filepath.Join(path, entries[0].Name()))
		}
		return err
	}
	return os.RemoveAll(path)
}

// Write creates the file at path, or replaces it, with what fill writes.
//
// The bytes go through a buffer to a temporary name in the same folder, are
// synced, and take their place by one rename, after which the folder is synced
// too. If anything before the rename fails, fill included, the temporary file
// is removed and path does not change. The file gets mode 0666 less the
// umask. Errors name path and wrap their cause.
func Write(path string, fill func(io.Writer) error) error {
	temp := tempName(path)
	err := replaceable(path)
	if err == nil {
		err = Create(temp, fill)
	}
	if err == nil {
		err = Rename(temp, path)
	}
	if err != nil {
		if removeErr := Remove(temp); !errors.Is(removeErr, os.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
		return fmt.Errorf("write %s: %w", path, err)
	}
	return SyncDir(filepath.Dir(path))
}

// Bytes returns what fills a file of [Write] or [Create] with data.
func Bytes(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}

// replaceable refuses to put a file in the place of a folder, a device or a pipe.
func replaceable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil || info.Mode().IsRegular():
		return nil // Create or Rename reports other errors
	case info.IsDir():
		return errors.New("it is a folder")
	}
	return errors.New("it is not a regular file")
}

func tempName(path string) string {
	dir, base := filepath.Split(path)
	return filepath.Join(dir, "."+base+"."+rand.Text()[:10]+".tmp")
}

// CheckWritable returns an error, which names path, if Write could not create or replace
// the file. Call it before long work.
func CheckWritable(path string) error {
	if err := replaceable(path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	temp := tempName(path)
	err := Create(temp, func(io.Writer) error { return nil })
	if removeErr := os.Remove(temp); err == nil {
		err = removeErr
	}
	if pathErr := (*os.PathError)(nil); errors.As(err, &pathErr) {
		err = pathErr.Err // without the temporary name
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// Create writes a new file at path, buffered, and syncs it, but not the folder. It
// is for files that nobody reads yet, such as those of a folder that is renamed
// when complete. An existing file is an error. After a failure, an incomplete file
// may remain.
func Create(path string, fill func(io.Writer) error) (err error) {
	f, err := OpenForWriting(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, 1<<17)
	if err := fill(w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return f.Sync()
}

// SyncDir makes the names in dir durable: a file that was created, renamed or
// removed there stays so after a power failure. On Windows, where a folder
// cannot be synced, it does nothing.
func SyncDir(dir string) (err error) {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := OpenForWriting(dir, os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	return nil
}
