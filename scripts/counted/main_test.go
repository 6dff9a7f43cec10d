package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// module writes a module with one package and its tests.
func module(t *testing.T, tests string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module made\n", "made_test.go": "package made\n" + tests} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
}

const mixed = `
import "testing"

func TestGood(t *testing.T) {
	t.Log("nobody reads this")
	t.Run("one", func(t *testing.T) {})
	t.Run("two", func(t *testing.T) { t.Skip("no gzip: it is not there") })
}

func TestSkipped(t *testing.T) { t.Skip("no gzip: nor here") }

`

func TestCounts(t *testing.T) {
	module(t, mixed)
	file := filepath.Join(t.TempDir(), "counts")
	counted := func(args ...string) (string, error) {
		var out bytes.Buffer
		err := run(append([]string{file}, args...), &out)
		return out.String(), err
	}
	for range 2 {
		out, err := counted("go", "test", "-count=1", "./...")
		if err != nil || !strings.HasPrefix(out, "ok  \tmade\t") || strings.Count(out, "\n") != 1 {
			t.Errorf("%q, %v", out, err)
		}
	}
	if _, err := counted("missing", "no emulator"); err != nil {
		t.Error(err)
	}
	want := "skipped:\n    4 tests: no gzip\nnot run: no emulator\n2 passed, 0 failed, 4 skipped\n"
	if out, err := counted(); err != nil || out != want {
		t.Errorf("%q, %v; want %q", out, err, want)
	}
}

// TestFailures: each way to fail makes the command fail and shows what it printed.
func TestFailures(t *testing.T) {
	for _, c := range []struct{ name, test, want string }{
		{"test", `func TestBad(t *testing.T) { t.Run("deep", func(t *testing.T) { t.Error("a wrong number") }) }`, "a wrong number"},
		{"panic", `func TestBad(t *testing.T) { panic("a wrong turn") }`, "a wrong turn"},
		{"build", `func TestBad(t *testing.T) { undefined() }`, "undefined: undefined"},
	} {
		t.Run(c.name, func(t *testing.T) {
			module(t, mixed+c.test)
			var out bytes.Buffer
			err := run([]string{filepath.Join(t.TempDir(), "counts"), "go", "test", "./..."}, &out)
			if err == nil || !strings.Contains(out.String(), c.want) || strings.Contains(out.String(), "nobody reads this") {
				t.Errorf("%v:\n%s", err, &out)
			}
		})
	}
	module(t, mixed)
	if err := run([]string{filepath.Join(t.TempDir(), "counts"), "go", "test", "-nonsense"}, new(bytes.Buffer)); err == nil {
		t.Error("a flag that go test refuses passes")
	}
}
