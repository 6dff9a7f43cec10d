package extractor

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

func TestFindRuntimeNeverReplacesWhatWasNamed(t *testing.T) {
	lib := filepath.Join(t.TempDir(), "libonnxruntime.so")
	write(t, lib, "")
	t.Setenv(runtimeEnv, lib)

	if got, err := FindRuntime(""); err != nil || got != lib {
		t.Errorf("the environment's library: %q, %v; want %q", got, err, lib)
	}
	_, err := FindRuntime("missing.so")
	wantError(t, err, "Runtime: ", "missing.so")
	if !errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNoRuntime) {
		t.Errorf("a missing library that was named is %v", err)
	}
	_, err = FindRuntime(filepath.Dir(lib))
	wantError(t, err, "Runtime: ", "not a file")

	t.Setenv(runtimeEnv, lib+".1")
	_, err = FindRuntime("")
	wantError(t, err, runtimeEnv, lib+".1")
	if got, err := FindRuntime(lib); err != nil || got != lib {
		t.Errorf("the flag's library: %q, %v; want %q", got, err, lib)
	}

	t.Chdir(filepath.Dir(lib))
	if got, err := FindRuntime("libonnxruntime.so"); err != nil || !filepath.IsAbs(got) {
		t.Errorf("a name without a folder: %q, %v; want an absolute path", got, err)
	}
}

func TestSearchRuntime(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the names are Linux's")
	}
	root := t.TempDir()
	checkout := filepath.Join(root, "checkout")
	start := filepath.Join(checkout, "a", "b")
	system := filepath.Join(root, "lib")
	for _, dir := range []string{start, system} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}

	_, err := searchRuntime([]string{start}, []string{system, filepath.Join(root, "absent")})
	if !errors.Is(err, ErrNoRuntime) {
		t.Errorf("without a library: %v", err)
	}
	wantError(t, err, "InitRuntime", runtimeEnv)

	write(t, filepath.Join(system, "libonnxruntime_providers_shared.so"), "")
	for _, name := range []string{"libonnxruntime.so", "libonnxruntime.so.1.9.0", "libonnxruntime.so.1.31.1", "libonnxruntime.so.1.4"} {
		write(t, filepath.Join(system, name), "")
	}
	if got, err := searchRuntime([]string{start}, []string{system}); err != nil || filepath.Base(got) != "libonnxruntime.so.1.31.1" {
		t.Errorf("the system's library: %q, %v; want the newest", got, err)
	}
	want := filepath.Join(checkout, ".setup", "onnxruntime", "libonnxruntime.so.1.2.3")
	write(t, want, "")
	if got, err := searchRuntime([]string{start}, []string{system}); err != nil || got != want {
		t.Errorf("set-up's library: %q, %v; want %q", got, err, want)
	}
}

func TestNewestRuntimeOfOtherSystems(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"onnxruntime.dll", "libonnxruntime.dylib", "libonnxruntime.1.31.1.dylib", "libonnxruntime.so"} {
		write(t, filepath.Join(dir, name), "")
	}
	for goos, want := range map[string]string{
		"windows": "onnxruntime.dll", "darwin": "libonnxruntime.1.31.1.dylib", "linux": "libonnxruntime.so", "freebsd": "libonnxruntime.so",
	} {
		if got := newestRuntime(dir, goos); filepath.Base(got) != want {
			t.Errorf("%s: %q, want %s", goos, got, want)
		}
	}
}

func TestInitRuntime(t *testing.T) {
	lib := testenv.Runtime(t)
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			if err := InitRuntime(lib); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if v := RuntimeVersion(); !regexp.MustCompile(`^\d+\.\d+\.\d+`).MatchString(v) {
		t.Errorf("version %q", v)
	}
	if err := InitRuntime(""); err != nil {
		t.Errorf("again, without a name: %v", err)
	}
	other := filepath.Join(t.TempDir(), "libonnxruntime.so")
	write(t, other, "")
	wantError(t, InitRuntime(other), "loaded from", other)
}

// TestInitRuntimeRefuses runs in a process of its own, as a process can load
// only one library.
func TestInitRuntimeRefuses(t *testing.T) {
	if lib := os.Getenv("TEST_LIBRARY"); lib != "" {
		os.Stdout.WriteString(InitRuntime(lib).Error() + "\n" + RuntimeVersion())
		os.Exit(0)
	}
	refusal := func(lib string) string {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "TEST_LIBRARY="+lib)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSuffix(string(out), "\n")
	}
	dir := t.TempDir()
	text := filepath.Join(dir, "text.so")
	write(t, text, "not a library")
	wantError(t, errors.New(refusal(text)), text, "InitRuntime")
	if runtime.GOOS != "linux" {
		t.Skip("other systems say themselves what is wrong with a library, and its name has no version there")
	}
	library, err := os.ReadFile(testenv.Runtime(t))
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(dir, "cut.so")
	write(t, cut, string(library[:len(library)/2]))
	wantError(t, errors.New(refusal(cut)), cut, "cut short", "InitRuntime")
	named := filepath.Join(dir, "libonnxruntime.so.1.19.2")
	write(t, named, string(library))
	wantError(t, errors.New(refusal(named)), named, "too old", "InitRuntime")

	// A library that, like an old one, has no API of the version asked for.
	source, old := filepath.Join(dir, "old.c"), filepath.Join(dir, "old.so")
	write(t, source, `
static const void *get_api(unsigned v) { return 0; }
static const char *version(void) { return "1.2.0"; }
static struct { const void *(*a)(unsigned); const char *(*v)(void); } base = { get_api, version };
void *OrtGetApiBase(void) { return &base; }
`)
	if out, err := exec.Command("sh", "-c", `${CC:-cc} "$@"`, "cc", "-shared", "-fPIC", "-o", old, source).CombinedOutput(); err != nil {
		t.Skipf("no C compiler: %v: %s", err, out)
	}
	wantError(t, errors.New(refusal(old)), old, "too old", "InitRuntime")
}

// TestNoTelemetry: the library neither keeps nor sends anything about its user. It runs
// in a process of its own, as the library decides when its environment is made.
func TestNoTelemetry(t *testing.T) {
	if dir := os.Getenv("TEST_MODEL"); dir != "" {
		m, err := OpenModel(t.Context(), dir, Options{})
		if err == nil {
			err = m.Close()
		}
		if err != nil {
			os.Stdout.WriteString(err.Error())
		}
		os.Exit(0)
	}
	testenv.Runtime(t)
	home := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "TEST_MODEL="+testModel(t, 6, 8, pixels(-1)), "HOME="+home, "LOCALAPPDATA="+home, "APPDATA="+home, "XDG_CACHE_HOME="+filepath.Join(home, "cache"), "ONNXRUNTIME_SHARED_LIBRARY_PATH="+testenv.Runtime(t))
	out, err := cmd.CombinedOutput()
	if text := bytes.Replace(out, []byte("Failed to create DXGI factory."), nil, 1); err != nil || len(bytes.TrimSpace(text)) > 0 { // the line is Wine's
		t.Fatalf("%v: %s", err, out)
	}
	err = filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("it wrote %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
