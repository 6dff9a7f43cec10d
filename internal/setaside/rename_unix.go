//go:build linux || darwin

package setaside

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// nonblock prevents waiting if the opened file is a pipe.
const nonblock = unix.O_NONBLOCK

func syncFolder(folder *os.File) error { return folder.Sync() }

// rename moves a file to the first free name. It returns an error that wraps
// errors.ErrUnsupported if the file is on another file system.
func (p *place) rename(from *source) (base string, err error) {
	source, err := from.folder.Open(".")
	if err != nil {
		return "", err
	}
	defer source.Close()
	target, err := p.folder.Open(".")
	if err != nil {
		return "", err
	}
	defer target.Close()
	// Both names are looked up in folders that are open, and neither is followed
	// if it is a link.
	sourceFD, targetFD := int(source.Fd()), int(target.Fd())
	for n := 1; ; n++ {
		base = numbered(p.base, n)
		err := unix.Linkat(sourceFD, from.base, targetFD, base, 0)
		linked := err == nil
		if err != nil && err != unix.EEXIST && err != unix.EXDEV { // no links here: an empty file holds the place
			if err = p.hold(base); err == nil {
				if err = unix.Renameat(sourceFD, from.base, targetFD, base); err != nil {
					err = errors.Join(err, p.folder.Remove(base))
				}
			}
		}
		switch {
		case errors.Is(err, unix.EEXIST):
			continue
		case errors.Is(err, unix.EXDEV):
			return "", errors.ErrUnsupported
		case err != nil:
			return "", &os.LinkError{Op: "rename", Old: from.base, New: base, Err: err}
		}
		info, err := p.folder.Lstat(base)
		if err != nil {
			return "", err
		}
		switch same := os.SameFile(info, from.info); {
		case linked && same:
			return base, from.folder.Remove(from.base)
		case linked:
			return "", errors.Join(ErrChanged, p.folder.Remove(base))
		case !same:
			return base, ErrChanged
		}
		return base, nil
	}
}
