package disk

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/edsrzf/mmap-go"
)

// This file opens files for reading whose names or contents are not trusted.
// It refuses what is not a regular file (a pipe, which would wait for its writer;
// a device, which may never end) and files that are larger than their kind can be.

// Errors that are wrapped by an [fs.PathError] that names the file.
var (
	// ErrKind says that something is not a regular file.
	ErrKind = errors.New("not a regular file")
	// ErrSize says that a file is larger than files of its kind may be.
	ErrSize = errors.New("too large")
)

// Limits in bytes of the kinds of files that are read. They are far above what
// any honest file has.
const (
	Config  = 16 << 20  // a model's configuration
	Meta    = 256 << 20 // features.json, with the names of the classes
	List    = 1 << 30   // a list of images
	Graph   = 2 << 30   // an ONNX graph: the limit of protocol buffers
	Weights = 256 << 30 // a file with the weights of a graph
	Tensors = 64 << 30  // a detector or a checkpoint
	Table   = 64 << 20  // results and leaderboards
	Page    = 1 << 30   // a report
	Values  = 1 << 50   // arrays, whose header says their size, and lines that are read one by one
)

// Open opens a regular file of up to limit bytes for reading, and never blocks.
func Open(path string, limit int64) (*os.File, error) {
	// Opening a device may have side effects, so the kind of file is checked first.
	info, err := os.Stat(path)
	if err == nil {
		err = check(info, path, limit)
	}
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, err
	}
	if info, err = f.Stat(); err == nil {
		err = check(info, path, limit) // the name may belong to another file by now
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// OpenIn is Open for a file in a folder that no link leads out of.
func OpenIn(root *os.Root, name string, limit int64) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = check(info, name, limit)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// OpenDir opens a folder, and nothing else, and never blocks.
func OpenDir(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|nonblock|directory, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.IsDir() {
		return nil, errors.Join(cmp.Or[error](err, &fs.PathError{Op: "open", Path: path, Err: errors.New("not a folder")}), f.Close())
	}
	return f, nil
}

// check tells what is wrong with a file.
func check(info fs.FileInfo, path string, limit int64) error {
	switch {
	case !info.Mode().IsRegular():
		return &fs.PathError{Op: "open", Path: path, Err: ErrKind}
	case info.Size() > limit:
		return &fs.PathError{Op: "open", Path: path, Err: fmt.Errorf("%w: it has %d bytes, and such a file may have %d", ErrSize, info.Size(), limit)}
	}
	return nil
}

// CheckReadable is Open for a file that another library opens by its name.
func CheckReadable(path string, limit int64) error {
	f, err := Open(path, limit)
	if err != nil {
		return err
	}
	return f.Close()
}

// ReadFile reads a regular file of up to limit bytes.
func ReadFile(path string, limit int64) (data []byte, err error) {
	f, err := Open(path, limit)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if data, err = io.ReadAll(io.LimitReader(f, limit+1)); err == nil && int64(len(data)) > limit {
		err = &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("%w: it grew above %d bytes", ErrSize, limit)}
	}
	return data, err
}

// Map maps a regular file of up to limit bytes into memory, to be read until unmap is called.
func Map(path string, limit int64) (data []byte, unmap func() error, err error) {
	f, err := Open(path, limit)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 { // nothing to map
		return nil, func() error { return nil }, err
	}
	mapped, err := mmap.Map(f, mmap.RDONLY, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("map %s: %w", path, err)
	}
	return mapped, mapped.Unmap, nil
}

// Stamp tells files from what they were before, by their sizes and times; "" where there
// is none of them.
func Stamp(paths ...string) string {
	stamp := ""
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil {
			stamp += fmt.Sprint(info.Size(), info.ModTime().UnixNano(), ";")
		}
	}
	return stamp
}

// SHA256 returns the hash, in hexadecimal, of a regular file of up to limit bytes.
func SHA256(path string, limit int64) (string, error) {
	h := sha256.New()
	if err := Copy(context.Background(), h, path, limit); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Copy writes what a regular file of up to limit bytes holds, until ctx is cancelled.
func Copy(ctx context.Context, to io.Writer, path string, limit int64) error {
	f, err := Open(path, limit)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(to, until{ctx, f})
	return err
}

// until reads until its context is cancelled.
type until struct {
	context.Context
	from io.Reader
}

func (u until) Read(p []byte) (int, error) {
	if err := u.Err(); err != nil {
		return 0, err
	}
	return u.from.Read(p)
}

// Same tells whether two paths are of one file or folder.
func Same(a, b string) bool {
	left, errLeft := os.Stat(a)
	right, errRight := os.Stat(b)
	return errLeft == nil && errRight == nil && os.SameFile(left, right)
}
