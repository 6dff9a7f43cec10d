//go:build !linux

package features

import (
	"errors"
	"io"
	"os"

	"github.com/mlrbfn/mlrbfn/internal/options"
)

// temporary makes a temporary file in the folder dir. Its path can be opened until the
// function that it returns is called, which removes it.
func temporary(dir string, fill func(io.Writer) error) (path string, done func() error, err error) {
	if dir == "" {
		return "", nil, options.Errorf("Copies", "on this system feature sets from buckets need a folder for temporary files")
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", nil, err
	}
	f, err := os.CreateTemp(dir, "features-*")
	if err != nil {
		return "", nil, err
	}
	if err := errors.Join(fill(f), f.Close()); err != nil {
		return "", nil, errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), func() error { return os.Remove(f.Name()) }, nil
}
