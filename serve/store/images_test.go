package store

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/pipeline/detector"
)

// picture returns bytes and their SHA-256.
func picture(n, size int) (sum string, data []byte) {
	data = fmt.Appendf(nil, "%d%s", n, strings.Repeat(".", size))[:size]
	return fmt.Sprintf("%x", sha256.Sum256(data)), data
}

func openImages(t *testing.T, dir string, m *Images) *Images {
	t.Helper()
	must(t, m.Open(dir))
	t.Cleanup(func() { m.Close() })
	return m
}

func TestImages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	m := openImages(t, dir, &Images{MaxBytes: 1000})
	has := func(m *Images, n int) bool {
		t.Helper()
		sum, data := picture(n, 200)
		got, err := m.Get(sum)
		if err != nil && !errors.Is(err, ErrNotFound) || err == nil && string(got) != string(data) {
			t.Errorf("image %d: %q, %v", n, got, err)
		}
		return err == nil
	}
	for n := range 8 {
		sum, data := picture(n, 200)
		must(t, m.Put(sum, data))
		must(t, m.Put(sum, data)) // kept already
		if !has(m, n) {
			t.Errorf("image %d is not kept", n)
		}
	}
	for n := range 8 {
		if has(m, n) != (n >= 3) {
			t.Errorf("image %d is kept: %v", n, has(m, n))
		}
	}
	if m.Bytes() != 1000 {
		t.Errorf("%d bytes", m.Bytes())
	}
	sum, data := picture(9, 1001)
	if err := m.Put(sum, data); err == nil {
		t.Error("an image above the bound is kept")
	}
	// The next start finds them, removes what a crash left, and keeps the bounds.
	must(t, m.Close())
	files, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	must(t, err)
	must(t, os.WriteFile(files[0]+".tmp", data, 0o666))
	must(t, os.WriteFile(filepath.Join(dir, "notes.txt"), data, 0o666)) // somebody's own
	for i, file := range files {
		at := time.Now().Add(-time.Duration(i) * time.Hour)
		must(t, os.Chtimes(file, at, at))
	}
	m = openImages(t, dir, &Images{MaxBytes: 1000, MaxAge: 150 * time.Minute})
	if m.Bytes() != 600 {
		t.Errorf("%d bytes are kept of images younger than two and a half hours", m.Bytes())
	}
	m.Evict(time.Now().Add(90 * time.Minute))
	if m.Bytes() != 200 {
		t.Errorf("%d bytes are left", m.Bytes())
	}
	left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	if must(t, err); len(left) != 1 {
		t.Errorf("%q are left", left)
	}
	_, err = os.Stat(filepath.Join(dir, "notes.txt"))
	must(t, err)
}

func TestImagesWanted(t *testing.T) {
	for keep, want := range map[Keep][2]bool{"": {false, true}, KeepOOD: {false, true}, KeepAll: {true, true}, KeepNone: {false, false}} {
		m := openImages(t, t.TempDir(), &Images{Keep: keep})
		if got := [2]bool{m.Wants(&Verdict{}), m.Wants(&Verdict{Verdict: detector.Verdict{OOD: true}})}; got != want {
			t.Errorf("%q: %v, want %v", keep, got, want)
		}
	}
	for _, bad := range []*Images{{Keep: "some"}, {MaxBytes: -1}, {MaxAge: -1}} {
		if err := bad.Open(t.TempDir()); err == nil {
			t.Errorf("%+v", bad)
		}
	}
}

// TestImagesOfOthers: nothing outside of the folder is read or written, and nothing
// but a regular file with the right bytes is an image.
func TestImagesOfOthers(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	m := openImages(t, dir, &Images{})
	sum, data := picture(1, 50)
	for _, name := range []string{"", "../x", strings.Repeat("g", 64), sum[:63], sum + "0", "../" + sum[3:]} {
		if err := m.Put(name, data); err == nil {
			t.Errorf("%q was kept", name)
		}
		if _, err := m.Get(name); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v", name, err)
		}
	}
	must(t, os.WriteFile(filepath.Join(outside, sum), data, 0o666))
	folder := filepath.Join(dir, sum[:2])
	must(t, os.Symlink(outside, folder))
	if _, err := os.Stat(filepath.Join(folder, sum)); err != nil && runtime.GOOS == "windows" {
		t.Skip("no links here, as under Wine")
	}
	if _, err := m.Get(sum); err == nil {
		t.Error("an image outside was read")
	}
	if err := m.Put(sum, data); err == nil {
		t.Error("an image was written outside")
	}
	must(t, os.Remove(folder))
	must(t, os.Mkdir(folder, 0o777))
	must(t, os.Symlink(filepath.Join(outside, sum), filepath.Join(folder, sum)))
	if _, err := m.Get(sum); err == nil {
		t.Error("a link was read")
	}
	must(t, m.Put(sum, data)) // replaces the link, not what it leads to
	if got, err := m.Get(sum); err != nil || string(got) != string(data) {
		t.Errorf("%v", err)
	}
	must(t, os.WriteFile(filepath.Join(folder, sum), data[1:], 0o666))
	if _, err := m.Get(sum); !errors.Is(err, ErrNotFound) {
		t.Errorf("an image with other bytes: %v", err)
	}
}

func TestImagesAtOnce(t *testing.T) {
	m := openImages(t, t.TempDir(), &Images{MaxBytes: 2000})
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for n := range 50 {
				sum, data := picture(n, 100)
				if err := m.Put(sum, data); err != nil {
					t.Error(err)
				}
				if _, err := m.Get(sum); err != nil && !errors.Is(err, ErrNotFound) {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	if m.Bytes() != 2000 {
		t.Errorf("%d bytes", m.Bytes())
	}
}
