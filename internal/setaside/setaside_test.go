package setaside

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o640)); err != nil {
		t.Fatal(err)
	}
	return path
}

// tree returns the files under dir with what they hold.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		files[filepath.ToSlash(rel)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func same(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%s holds %q, want %q", name, got[name], text)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s is there", name)
		}
	}
}

func TestMove(t *testing.T) {
	dir := t.TempDir()
	for i, text := range []string{"first", "second", "second"} {
		to, err := Move(write(t, filepath.Join(dir, "in", "a.b.png"), text), filepath.Join(dir, "out"), "x/a.b.png")
		if want := filepath.Join(dir, "out", "x", []string{"a.b.png", "a.b (2).png", "a.b (3).png"}[i]); err != nil || to != want {
			t.Fatalf("%s, %v; want %s", to, err, want)
		}
	}
	same(t, tree(t, dir), map[string]string{"out/x/a.b.png": "first", "out/x/a.b (2).png": "second", "out/x/a.b (3).png": "second"})
}

func TestCopy(t *testing.T) {
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "in", "a"), "text")
	old := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	if err := os.Chtimes(file, old, old); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "out", "b"), "mine")
	for range 2 { // the second finds the first's
		if to, err := Copy(file, filepath.Join(dir, "out"), "a"); err != nil || filepath.Base(to) != "a" {
			t.Fatal(to, err)
		}
	}
	for range 2 {
		if to, err := Copy(file, filepath.Join(dir, "out"), "b"); err != nil || !strings.HasPrefix(filepath.Base(to), "b (") {
			t.Fatal(to, err)
		}
	}
	same(t, tree(t, dir), map[string]string{"in/a": "text", "out/a": "text", "out/b": "mine", "out/b (2)": "text"})
	info, err := os.Stat(filepath.Join(dir, "out", "a"))
	if err != nil || !info.ModTime().Equal(old) || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestLinksAreCopiedNotMoved(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "real"), "text")
	if err := os.Symlink("real", filepath.Join(dir, "link")); err != nil {
		t.Skip(err)
	}
	if _, err := Move(filepath.Join(dir, "link"), filepath.Join(dir, "out"), "link"); err == nil {
		t.Error("moved a link")
	}
	if _, err := Copy(filepath.Join(dir, "link"), filepath.Join(dir, "out"), "link"); err != nil {
		t.Error(err)
	}
	same(t, tree(t, dir), map[string]string{"real": "text", "link": "text", "out/link": "text"})
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "a"), "text")
	for _, name := range []string{"../b", "/b", "", "a/../../b"} {
		if to, err := Move(file, filepath.Join(dir, "out"), name); err == nil {
			t.Errorf("moved to %s", to)
		}
	}
	if _, err := Move(filepath.Join(dir, "absent"), dir, "b"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	write(t, filepath.Join(dir, "file"), "")
	if _, err := Copy(file, filepath.Join(dir, "file"), "b"); err == nil {
		t.Error("copied into a file")
	}
	same(t, tree(t, dir), map[string]string{"a": "text", "file": ""})
}

// Another file system has to be copied to; where there is one, it is tried.
func TestMoveToAnotherFileSystem(t *testing.T) {
	other, err := os.MkdirTemp("/dev/shm", "setaside")
	if err != nil {
		t.Skip("no /dev/shm:", err)
	}
	defer os.RemoveAll(other)
	dir := t.TempDir()
	write(t, filepath.Join(other, "a"), "mine")
	if _, err := Move(write(t, filepath.Join(dir, "a"), "text"), other, "a"); err != nil {
		t.Fatal(err)
	}
	same(t, tree(t, dir), nil)
	same(t, tree(t, other), map[string]string{"a": "mine", "a (2)": "text"})
}
