package extractor

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestPythonPackages: the folders of Python's packages are those of the environment
// that a program is installed in, however its path is spelt.
func TestPythonPackages(t *testing.T) {
	root := filepath.Join(t.TempDir(), "an [environment]")
	var want []string
	for _, folder := range []string{"lib/python3.11/site-packages", "lib/python3.12/site-packages", "lib64/python3.11/site-packages"} {
		want = append(want, filepath.Join(root, filepath.FromSlash(folder)))
	}
	for _, folder := range append(want, filepath.Join(root, "bin"), filepath.Join(root, "lib", "python2.7", "site-packages")) {
		if err := os.MkdirAll(folder, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	if got := pythonPackages(filepath.Join(root, "bin")); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for _, other := range []string{root, filepath.Join(root, "lib"), ""} {
		if got := pythonPackages(other); got != nil {
			t.Errorf("beside %q: %q", other, got)
		}
	}
}

// TestPackagesOfASystem: a program in PREFIX/bin has its library in PREFIX/lib/mlrbfn,
// and models and pictures in PREFIX/share/mlrbfn.
func TestPackagesOfASystem(t *testing.T) {
	prefix := t.TempDir()
	bin := filepath.Join(prefix, "bin")
	if got, want := besideProgram(bin), filepath.Join(prefix, "lib", "mlrbfn"); !slices.Contains(got, want) {
		t.Errorf("libraries are looked for in %q", got)
	}
	if got, want := sharedFolders(bin), []string{filepath.Join(prefix, "share", "mlrbfn")}; !slices.Equal(got, want) {
		t.Errorf("models are looked for in %q, want %q", got, want)
	}
	if got := sharedFolders(prefix); got != nil {
		t.Errorf("beside %q: %q", prefix, got)
	}
}

// TestModelPath: a model in a folder of models is named by its name; a path is a path.
func TestModelPath(t *testing.T) {
	folder := t.TempDir()
	t.Setenv(modelsEnv, folder)
	t.Chdir(t.TempDir())
	mine := filepath.Join(folder, "mine")
	if err := errors.Join(os.MkdirAll(mine, 0o777), os.WriteFile(filepath.Join(mine, "model.onnx"), []byte("x"), 0o666), os.MkdirAll("here", 0o777)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"mine": mine, "here": "here", "other": "other", "./mine": "./mine", "": "", "..": ".."} {
		if got := ModelPath(name); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
	if _, err := FindShared("no", "such file"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
