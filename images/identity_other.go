//go:build !unix

package images

import (
	"io/fs"
	"path/filepath"
)

// identity is the same for two names of one folder only.
type identity string

func identify(name string, _ fs.FileInfo) identity {
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target
	}
	if whole, err := filepath.Abs(name); err == nil {
		name = whole
	}
	return identity(name)
}
