// Package testenv gives tests the reference results that are committed here
// (goldens) and finds the things outside the repository: the shared folder, what
// set-up put into the checkout, and Python.
//
// A test that needs something skips with Missing where it is absent. With
// MLRBFN_REQUIRE set to a list such as "shared,setup,python" the test fails
// instead, which is how .ci/run makes sure that no test was skipped.
package testenv

import (
	"archive/zip"
	"context"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "pgregory.net/rapid" // which registers the flag first
)

// Root returns the top of the checkout. The folder scripts has a go.mod of its own.
func Root(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "internal", "testenv")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			tb.Fatal("the working directory is not in a checkout")
		}
		dir = parent
	}
}

// Golden returns the path of a committed file of reference results that several
// packages read; goldens/README.md describes them.
func Golden(tb testing.TB, name string) string {
	tb.Helper()
	return filepath.Join(Root(tb), "internal", "testenv", "goldens", name)
}

// Generated checks that what lies between two marks of a file of the checkout, the first of
// them included, is want, or writes it.
func Generated(tb testing.TB, write bool, file, from, to, want string) {
	tb.Helper()
	path := filepath.Join(Root(tb), filepath.FromSlash(file))
	text, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	before, rest, begun := strings.Cut(string(text), from)
	inside, after, ended := strings.Cut(rest, to)
	switch {
	case !begun || !ended:
		tb.Fatalf("%s has no %q … %q", file, from, to)
	case from+inside == want:
	case !write:
		tb.Errorf("%s is stale: run go generate here", file)
	default:
		if err := os.WriteFile(path, []byte(before+want+to+after), 0o666); err != nil {
			tb.Fatal(err)
		}
	}
}

// OpenOOD unpacks the features and logits that OpenOOD's own classes were given,
// and returns the folder. OpenOODScores has what they returned
// (goldens/openood/README.md).
func OpenOOD(tb testing.TB) string {
	tb.Helper()
	archive, err := zip.OpenReader(Golden(tb, "openood.zip"))
	if err != nil {
		tb.Fatal(err)
	}
	defer archive.Close()
	dir := tb.TempDir()
	for _, f := range archive.File {
		r, err := f.Open()
		if err != nil {
			tb.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, f.Name), data, 0o666); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

// OpenOODScores returns the folder with the scores of each method on the arrays of
// OpenOOD, one JSON file each.
func OpenOODScores(tb testing.TB) string {
	tb.Helper()
	return Golden(tb, filepath.Join("openood", "scores"))
}

// Shared returns the path of elem inside the shared folder, with data, models and
// reference results too large to commit: MLRBFN_SHARED, or shared/ beside the
// checkout.
func Shared(tb testing.TB, elem ...string) string {
	tb.Helper()
	dir := os.Getenv("MLRBFN_SHARED")
	if dir == "" {
		dir = filepath.Join(filepath.Dir(Root(tb)), "shared")
	}
	return need(tb, "shared", filepath.Join(append([]string{dir}, elem...)...),
		"set MLRBFN_SHARED")
}

// Runtime returns the onnxruntime library that set-up unpacked, or the one
// that ONNXRUNTIME_SHARED_LIBRARY_PATH names.
func Runtime(tb testing.TB) string {
	tb.Helper()
	if lib := os.Getenv("ONNXRUNTIME_SHARED_LIBRARY_PATH"); lib != "" {
		return lib
	}
	found, err := filepath.Glob(filepath.Join(Root(tb), ".setup", "onnxruntime", "libonnxruntime.*"))
	if err != nil {
		tb.Fatal(err)
	}
	if len(found) == 0 {
		found = []string{filepath.Join(Root(tb), ".setup", "onnxruntime")}
	}
	return need(tb, "setup", found[0], "run `make setup`")
}

// Backbone returns the folder of the default model.
func Backbone(tb testing.TB) string {
	tb.Helper()
	dir := filepath.Join(Root(tb), "models", "efficientnet-lite0")
	need(tb, "setup", filepath.Join(dir, "model.onnx"), "run `make setup`")
	return dir
}

// Python runs a Python program with the packages of set-up (numpy, onnx,
// safetensors) and returns what it printed; the test fails if it does.
func Python(tb testing.TB, program string, args ...string) string {
	tb.Helper()
	packages := need(tb, "python", filepath.Join(Root(tb), ".setup", "python"), "run `make setup`")
	if _, err := exec.LookPath("python3"); err != nil {
		Missing(tb, "python", "install it", err)
	}
	cmd := exec.Command("python3", append([]string{"-c", program}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("python: %v\n%s%s", err, out, stderr.String())
	}
	return string(out)
}

func need(tb testing.TB, what, path, remedy string) string {
	tb.Helper()
	if _, err := os.Stat(path); err != nil {
		Missing(tb, what, remedy, err)
	}
	return path
}

// Missing ends a test that cannot run without what, in one or two words such as
// "gzip", because of reason: it is skipped, or fails where what is required. The
// remedy says how to get what is missing. `make test` counts skipped tests by the
// text before the first colon.
func Missing(tb testing.TB, what, remedy string, reason any) {
	tb.Helper()
	if slices.Contains(strings.Split(os.Getenv("MLRBFN_REQUIRE"), ","), what) {
		tb.Fatalf("%s is required; %s: %v", what, remedy, reason)
	}
	tb.Skipf("%s is absent; %s: %v", what, remedy, reason)
}

// Countdown is a context that is cancelled after Left calls of Err.
type Countdown struct {
	context.Context
	Left int
}

// Err implements context.Context.
func (c *Countdown) Err() error {
	if c.Left == 0 {
		return context.Canceled
	}
	c.Left--
	return nil
}

// A test binary that imports this package draws the same cases in the property tests of
// every run. The flag -rapid.seed, which is read later, still chooses others.
func init() {
	if err := flag.Set("rapid.seed", "1"); err != nil {
		panic(err)
	}
}
