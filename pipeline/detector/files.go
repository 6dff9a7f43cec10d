package detector

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/mlrbfn/mlrbfn/internal/safetensors"
)

// This file has what reading and writing the pipeline's files has in common.

// Pathless takes the file's name off an error of the file system.
func Pathless(err error) error {
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

// IsFormatError tells whether a safetensors file was read that is none, or that
// is cut short or altered.
func IsFormatError(err error) bool {
	return errors.Is(err, safetensors.ErrFormat) || errors.Is(err, safetensors.ErrChecksum) || errors.Is(err, safetensors.ErrNoChecksum)
}

// MkdirFor makes the folder that a file of a report is written to.
func MkdirFor(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return fmt.Errorf("report folder: %w", err)
	}
	return nil
}
