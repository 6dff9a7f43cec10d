// Package testenv tells tests where the things outside the repository lie:
// the shared witnesses, what set-up put into the checkout, and Python.
//
// A test that needs one of them skips with a message where it is absent. With
// MLRBFN_REQUIRE set to a list of "shared", "setup" and "python" it fails
// instead, which is how .ci/run makes sure that nothing was passed over.
package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Root returns the top of the checkout, the folder that holds go.mod.
func Root(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			tb.Fatal("no go.mod above the working directory")
		}
		dir = parent
	}
}

// Shared returns the path of elem inside the folder of outside witnesses:
// MLRBFN_SHARED, or shared/ beside the checkout.
func Shared(tb testing.TB, elem ...string) string {
	tb.Helper()
	dir := os.Getenv("MLRBFN_SHARED")
	if dir == "" {
		dir = filepath.Join(filepath.Dir(Root(tb)), "shared")
	}
	return need(tb, "shared", filepath.Join(append([]string{dir}, elem...)...),
		"set MLRBFN_SHARED to the folder of outside witnesses")
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
		if slices.Contains(strings.Split(os.Getenv("MLRBFN_REQUIRE"), ","), what) {
			tb.Fatalf("%s is required and absent; %s", path, remedy)
		}
		tb.Skipf("%s is absent; %s", path, remedy)
	}
	return path
}
