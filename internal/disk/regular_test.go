//go:build unix

package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestOpen(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.WriteFile(in("file"), []byte("text"), 0o666), syscall.Mkfifo(in("pipe"), 0o666),
		os.Symlink("file", in("link")), os.Symlink("pipe", in("to pipe")), os.Symlink("/dev/zero", in("zero"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "link"} {
		f, err := Open(in(name), 4)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(f); string(text) != "text" || err != nil {
			t.Errorf("%s: %q, %v", name, text, err)
		}
		f.Close()
		if text, err := ReadFile(in(name), 4); string(text) != "text" || err != nil {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	for name, want := range map[string]error{"pipe": ErrKind, "to pipe": ErrKind, "zero": ErrKind, "": ErrKind, "absent": fs.ErrNotExist, "file": ErrSize} {
		if err := CheckReadable(in(name), 3); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
		if _, err := ReadFile(in(name), 3); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

// A pipe in place of a folder does not block.
func TestOpenDir(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.Mkdir(in("folder"), 0o777), os.WriteFile(in("folder/file"), nil, 0o666), syscall.Mkfifo(in("pipe"), 0o666),
		os.Symlink("folder", in("link")), os.Symlink("/dev/zero", in("zero"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"folder", "link"} {
		f, err := OpenDir(in(name))
		if err != nil {
			t.Fatal(err)
		}
		if names, err := f.Readdirnames(-1); len(names) != 1 || err != nil {
			t.Errorf("%s: %q, %v", name, names, err)
		}
		f.Close()
	}
	for name, want := range map[string]error{"pipe": syscall.ENOTDIR, "zero": syscall.ENOTDIR, "folder/file": syscall.ENOTDIR, "absent": fs.ErrNotExist} {
		if _, err := OpenDir(in(name)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

func TestSHA256(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("abc"), 0o666); err != nil {
		t.Fatal(err)
	}
	// FIPS 180-2, appendix B.1.
	if sum, err := SHA256(file, 3); err != nil || sum != "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" {
		t.Errorf("%s, %v", sum, err)
	}
	if _, err := SHA256(file, 2); !errors.Is(err, ErrSize) {
		t.Errorf("a larger file than allowed: %v", err)
	}
}
