package disk_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/disk"
)

func say(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

// names lists what is in a folder, so that a forgotten temporary file shows.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func TestWriteCreatesAndReplaces(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "report")
	for _, text := range []string{"first", "", "a longer second text"} {
		if err := disk.Write(path, say(text)); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Fatalf("read %q, %v; want %q", got, err, text)
		}
	}
	if got := names(t, dir); got != "report" {
		t.Errorf("folder holds %q", got)
	}
}

func TestWriteToABareName(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := disk.Write("report", say("text")); err != nil {
		t.Fatal(err)
	}
	if got := names(t, "."); got != "report" {
		t.Errorf("folder holds %q", got)
	}
}

func TestFailureLeavesTheOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "report")
	if err := disk.Write(path, say("old")); err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	err := disk.Write(path, func(w io.Writer) error {
		if err := say(strings.Repeat("new", 1<<20))(w); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v, want boom and the path", err)
	}
	if got, _ := os.ReadFile(path); string(got) != "old" {
		t.Errorf("old file now holds %.20q", got)
	}
	if got := names(t, dir); got != "report" {
		t.Errorf("folder holds %q", got)
	}
}

func TestFailureToCreateOrRename(t *testing.T) {
	dir := t.TempDir()
	if err := disk.Write(filepath.Join(dir, "absent", "report"), say("x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in an absent folder: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "folder", "full"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := disk.Write(filepath.Join(dir, "folder"), say("x")); err == nil {
		t.Error("a file took the place of a folder")
	}
	if got := names(t, dir); got != "folder" {
		t.Errorf("folder holds %q", got)
	}
	if err := disk.SyncDir(filepath.Join(dir, "absent")); !errors.Is(err, os.ErrNotExist) && runtime.GOOS != "windows" {
		t.Errorf("SyncDir of an absent folder: %v", err)
	}
}

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("kept"), 0o666); err != nil {
		t.Fatal(err)
	}
	for path, ok := range map[string]bool{
		filepath.Join(dir, "new"):         true,
		file:                              true,
		dir:                               false,
		filepath.Join(dir, "no", "new"):   false,
		filepath.Join(file, "below-file"): false,
	} {
		if err := disk.CheckWritable(path); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, write := range []func(string) error{
		disk.CheckWritable,
		func(path string) error { return disk.Write(path, func(io.Writer) error { return nil }) },
	} {
		if err := write(os.DevNull); err == nil {
			t.Errorf("%s was replaced", os.DevNull)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("it left %v, %v", left, err)
	}
}
