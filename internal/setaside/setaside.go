// Package setaside moves and copies files into a folder without ever writing
// over one that is there.
package setaside

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"mlrbfn/internal/atomicfile"
)

// Move moves a file into the folder dir under the relative name, of which
// folders are made as needed, and returns where it is then. Where the name is
// taken it gets the next free one, "name (2).png" and so on. The file is in one
// of the two places at any time. A symbolic link, which may mean nothing
// elsewhere, is not moved.
func Move(file, dir, name string) (to string, err error) {
	defer wrap(&err, "move", file)
	info, err := os.Lstat(file)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("it is no regular file; copying takes what a symbolic link points to")
	}
	target, err := prepare(dir, name)
	if err != nil {
		return "", err
	}
	if to, err = give(file, target); err == nil {
		return to, nil
	}
	if to, err = copyTo(file, target); err != nil { // another file system
		return "", err
	}
	return to, os.Remove(file)
}

// Copy is Move that leaves the file and follows symbolic links; mode and time of
// modification are kept. A file of the name, numbered or not, that has the same
// content is the copy.
func Copy(file, dir, name string) (to string, err error) {
	defer wrap(&err, "copy", file)
	target, err := prepare(dir, name)
	if err != nil {
		return "", err
	}
	for n := 1; ; n++ {
		same, err := sameContent(file, numbered(target, n))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return copyTo(file, target)
		case err != nil:
			return "", err
		case same:
			return numbered(target, n), nil
		}
	}
}

func wrap(err *error, what, file string) {
	if *err != nil {
		*err = fmt.Errorf("%s %s: %w", what, file, *err)
	}
}

// prepare makes the folders of a name in dir and returns the whole path.
func prepare(dir, name string) (target string, err error) {
	if !filepath.IsLocal(name) {
		return "", fmt.Errorf("%q is not below the folder %s", name, dir)
	}
	target = filepath.Join(dir, name)
	return target, os.MkdirAll(filepath.Dir(target), 0o777)
}

// give renames a file to target or the next free name on the same file system.
func give(file, target string) (to string, err error) {
	for n := 1; ; n++ {
		to = numbered(target, n)
		// A link, unlike a rename, never takes the place of another file.
		err := os.Link(file, to)
		if err == nil {
			return to, os.Remove(file)
		}
		if !errors.Is(err, fs.ErrExist) { // no links here: an empty file holds the place
			err = hold(to)
			if err == nil {
				if err = os.Rename(file, to); err != nil {
					err = errors.Join(err, os.Remove(to))
				}
				return to, err
			}
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
}

// numbered returns the n-th name to try for a file, from 1.
func numbered(target string, n int) string {
	if n == 1 {
		return target
	}
	extension := filepath.Ext(target)
	return fmt.Sprintf("%s (%d)%s", strings.TrimSuffix(target, extension), n, extension)
}

// hold makes an empty file where there is none.
func hold(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	return f.Close()
}

// copyTo makes a whole copy beside target and gives it the first free name.
func copyTo(file, target string) (to string, err error) {
	source, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return "", err
	}
	temp, err := os.CreateTemp(filepath.Dir(target), ".*.tmp")
	if err != nil {
		return "", err
	}
	defer os.Remove(temp.Name()) // unless it has another name by then
	_, err = io.Copy(temp, source)
	if err = errors.Join(err, temp.Chmod(info.Mode().Perm()), temp.Sync(), temp.Close()); err != nil {
		return "", err
	}
	if err := os.Chtimes(temp.Name(), info.ModTime(), info.ModTime()); err != nil {
		return "", err
	}
	if to, err = give(temp.Name(), target); err != nil {
		return "", err
	}
	return to, atomicfile.SyncDir(filepath.Dir(target))
}

// sameContent tells whether two files hold the same bytes.
func sameContent(a, b string) (bool, error) {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	if err := errors.Join(errA, errB); err != nil || infoA.Size() != infoB.Size() || !infoB.Mode().IsRegular() {
		return false, err
	}
	fa, err := os.Open(a)
	if err != nil {
		return false, err
	}
	defer fa.Close()
	fb, err := os.Open(b)
	if err != nil {
		return false, err
	}
	defer fb.Close()
	bufA, bufB := make([]byte, 1<<16), make([]byte, 1<<16)
	for {
		n, err := io.ReadFull(fa, bufA)
		if _, errB := io.ReadFull(fb, bufB[:n]); errB != nil || !bytes.Equal(bufA[:n], bufB[:n]) {
			return false, errB
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
}
