package disk

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// This file writes files so that a reader never sees half of one.

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
