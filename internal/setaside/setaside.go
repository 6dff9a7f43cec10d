// Package setaside moves and copies files into a folder. It never overwrites a
// file, and never touches a file outside the two given folders: each is opened
// once, and every name is looked up below it.
package setaside

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// ErrOutside is wrapped by the error of a symbolic link to a file outside the given
// folder.
var ErrOutside = errors.New("a link leads to it, and it lies outside")

// ErrChanged is wrapped by the error of a file that is not the expected one.
var ErrChanged = errors.New("it changed since it was judged")

// A File is a file that is to be moved or copied.
type File struct {
	Root *os.Root // the folder that must contain it after all links are followed
	Name string   // within Root, with forward slashes

	// Size and MTime (nanoseconds since 1970) are those that the file must have.
	Size, MTime int64
}

// A Target is a folder that files are moved and copied to. Its methods are for
// one goroutine at a time.
type Target struct {
	dir  string
	root *os.Root
}

// Open opens the folder dir and creates it if needed.
func Open(dir string) (*Target, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &Target{dir, root}, nil
}

// Close closes the folder.
func (t *Target) Close() error { return t.root.Close() }

// Move moves a file to the relative name in the target, makes folders as needed,
// and returns the new path. If the name is taken, the file gets the next free one,
// "name (2).png" and so on. At any time the file exists in at least one of the two
// places. A symbolic link is an error, because it may not work elsewhere.
func (t *Target) Move(file File, name string) (to string, err error) {
	defer wrap(&err, "move", file)
	from, err := file.open()
	if err != nil {
		return "", err
	}
	defer from.Close()
	info, err := file.Root.Lstat(filepath.FromSlash(file.Name))
	if err != nil {
		return "", err
	}
	if !os.SameFile(info, from.info) {
		return "", errors.New("it is a symbolic link, which is copied and not moved")
	}
	place, err := t.place(name)
	if err != nil {
		return "", err
	}
	defer place.Close()
	base, err := place.rename(from)
	if errors.Is(err, errors.ErrUnsupported) { // another file system
		if base, err = place.copy(from); err == nil {
			err = from.remove()
		}
	}
	return place.path(base), err
}

// Copy copies a file into the target as Move moves it; it follows symbolic
// links within the folder of the file. The mode and the modification time are
// preserved. If a file of the name, numbered or not, has the same content already,
// nothing is copied.
func (t *Target) Copy(file File, name string) (to string, err error) {
	defer wrap(&err, "copy", file)
	from, err := file.open()
	if err != nil {
		return "", err
	}
	defer from.Close()
	place, err := t.place(name)
	if err != nil {
		return "", err
	}
	defer place.Close()
	for n := 1; ; n++ {
		base := numbered(place.base, n)
		same, err := place.holds(base, from)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			base, err = place.copy(from)
			return place.path(base), err
		case err != nil:
			return "", err
		case same:
			return place.path(base), nil
		}
	}
}

func wrap(err *error, what string, file File) {
	if *err != nil {
		*err = fmt.Errorf("%s %s: %w", what, filepath.Join(file.Root.Name(), filepath.FromSlash(file.Name)), *err)
	}
}

// source is a file that is open for reading, and its folder.
type source struct {
	*os.File
	info   fs.FileInfo
	folder *os.Root
	base   string // its name in the folder
}

// open opens a file and makes sure that it is the expected one.
func (f File) open() (*source, error) {
	name := filepath.FromSlash(f.Name)
	folder, err := f.Root.OpenRoot(filepath.Dir(name))
	if err != nil {
		return nil, f.outside(err)
	}
	s := &source{folder: folder, base: filepath.Base(name)}
	if info, err := f.Root.Stat(name); err != nil {
		return nil, errors.Join(f.outside(err), s.Close())
	} else if !info.Mode().IsRegular() {
		return nil, errors.Join(errors.New("it is not a regular file"), s.Close())
	}
	if s.File, err = f.Root.OpenFile(name, os.O_RDONLY|nonblock, 0); err == nil {
		s.info, err = s.Stat()
	}
	if err == nil && (s.info.Size() != f.Size || s.info.ModTime().UnixNano() != f.MTime || !s.info.Mode().IsRegular()) {
		err = ErrChanged
	}
	if err != nil {
		return nil, errors.Join(f.outside(err), s.Close())
	}
	return s, nil
}

// outside returns ErrOutside if err is the error of a file that exists but is
// reached through a link out of the root.
func (f File) outside(err error) error {
	if errors.Is(err, ErrChanged) || errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, there := os.Stat(filepath.Join(f.Root.Name(), filepath.FromSlash(f.Name))); there == nil {
		return fmt.Errorf("%w %s; it stays where it is", ErrOutside, f.Root.Name())
	}
	return err
}

// Close closes the file and its folder.
func (s *source) Close() error {
	var err error
	if s.File != nil {
		err = s.File.Close()
	}
	return errors.Join(err, s.folder.Close())
}

// remove removes the name of the file, unless it now names another file.
func (s *source) remove() error {
	info, err := s.folder.Lstat(s.base)
	if err != nil {
		return err
	}
	now, err := s.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(info, now) || now.Size() != s.info.Size() || !now.ModTime().Equal(s.info.ModTime()) {
		return fmt.Errorf("%w: it was copied, and not removed", ErrChanged)
	}
	return s.folder.Remove(s.base)
}

// place is where a file goes: an open folder, and the wanted name in it.
type place struct {
	folder *os.Root
	dir    string // the folder's path, as the target was named
	base   string
}

// place makes the folders of a name.
func (t *Target) place(name string) (*place, error) {
	name = filepath.FromSlash(name)
	if !filepath.IsLocal(name) {
		return nil, fmt.Errorf("%q is not below the folder %s", name, t.dir)
	}
	dir := filepath.Dir(name)
	for at, c := range dir + string(filepath.Separator) {
		if c != filepath.Separator {
			continue
		}
		info, err := t.root.Lstat(dir[:at])
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := t.root.Mkdir(dir[:at], 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, err
			}
		case err != nil:
			return nil, err
		case info.Mode()&fs.ModeSymlink != 0:
			return nil, fmt.Errorf("%s is a symbolic link, which is not followed here", filepath.Join(t.dir, dir[:at]))
		}
	}
	folder, err := t.root.OpenRoot(dir)
	return &place{folder, filepath.Join(t.dir, dir), filepath.Base(name)}, err
}

// Close closes the folder.
func (p *place) Close() error { return p.folder.Close() }

// path returns the path of a name in the folder, "" for "".
func (p *place) path(base string) string {
	if base == "" {
		return ""
	}
	return filepath.Join(p.dir, base)
}

// give renames a file in the folder to the first free name in the series.
func (p *place) give(from string) (base string, err error) {
	for n := 1; ; n++ {
		base = numbered(p.base, n)
		// A link, unlike a rename, never takes the place of another file.
		err := p.folder.Link(from, base)
		if err == nil {
			return base, p.folder.Remove(from)
		}
		if !errors.Is(err, fs.ErrExist) { // no links here: an empty file holds the place
			if err = p.hold(base); err == nil {
				if err = p.folder.Rename(from, base); err != nil {
					return "", errors.Join(err, p.folder.Remove(base))
				}
				return base, nil
			}
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
}

// hold makes an empty file if the name is free.
func (p *place) hold(base string) error {
	f, err := p.folder.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	return f.Close()
}

// numbered returns the n-th name to try for a file, from 1.
func numbered(base string, n int) string {
	if n == 1 {
		return base
	}
	extension := path.Ext(base)
	return fmt.Sprintf("%s (%d)%s", strings.TrimSuffix(base, extension), n, extension)
}

// copy makes a whole copy, which is on the disk when it gets its name.
func (p *place) copy(from *source) (base string, err error) {
	temp := "." + rand.Text() + ".tmp"
	to, err := p.folder.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	defer p.folder.Remove(temp) // unless it was renamed before
	n, err := io.Copy(to, from)
	if err == nil && n != from.info.Size() {
		err = ErrChanged
	}
	if err = errors.Join(err, to.Chmod(from.info.Mode().Perm()), to.Sync(), to.Close()); err != nil {
		return "", err
	}
	if err := p.folder.Chtimes(temp, from.info.ModTime(), from.info.ModTime()); err != nil {
		return "", err
	}
	if base, err = p.give(temp); err != nil {
		return "", err
	}
	return base, p.sync()
}

// sync makes the names in the folder durable.
func (p *place) sync() error {
	folder, err := p.folder.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(syncFolder(folder), folder.Close())
}

// holds tells whether the file of a name has the content of another.
func (p *place) holds(base string, other *source) (bool, error) {
	info, err := p.folder.Lstat(base)
	if err != nil || info.Size() != other.info.Size() || !info.Mode().IsRegular() {
		return false, err
	}
	f, err := p.folder.OpenFile(base, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if _, err := other.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	same, err := sameContent(other, f)
	if err == nil && !same {
		_, err = other.Seek(0, io.SeekStart)
	}
	return same, err
}

// sameContent tells whether two readers give the same bytes.
func sameContent(a, b io.Reader) (bool, error) {
	bufA, bufB := make([]byte, 1<<16), make([]byte, 1<<16)
	for {
		n, err := io.ReadFull(a, bufA)
		m, errB := io.ReadFull(b, bufB)
		ends := func(err error) bool { return err == io.EOF || err == io.ErrUnexpectedEOF }
		switch {
		case err != nil && !ends(err):
			return false, err
		case errB != nil && !ends(errB):
			return false, errB
		case n != m || !bytes.Equal(bufA[:n], bufB[:m]):
			return false, nil
		case err != nil:
			return true, nil
		}
	}
}
