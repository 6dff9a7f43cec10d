package testenv_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// TestGoldens: the committed copies equal those of the shared folder.
func TestGoldens(t *testing.T) {
	shared := testenv.Shared(t, "oracle", "golden")
	compare := func(committed, original string, equal func(a, b []byte) bool) int {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(committed, "*.*"))
		if err != nil {
			t.Fatal(err)
		}
		compared := 0
		for _, file := range files {
			if ext := filepath.Ext(file); ext != ".json" && ext != ".npy" {
				continue
			}
			want, err := os.ReadFile(filepath.Join(original, filepath.Base(file)))
			if errors.Is(err, fs.ErrNotExist) {
				continue // a script makes it here; how many are compared is checked below
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			compared++
			if !bytes.Equal(got, want) && !equal(got, want) {
				t.Errorf("%s is not what %s holds", file, original)
			}
		}
		return compared
	}
	never := func(_, _ []byte) bool { return false }
	// Of a method's JSON, only some fields are committed.
	fields := func(got, want []byte) bool {
		var part, whole map[string]any
		if json.Unmarshal(got, &part) != nil || json.Unmarshal(want, &whole) != nil || part["clean_float64"] == nil {
			return false
		}
		for key, value := range part {
			if !reflect.DeepEqual(value, whole[key]) {
				return false
			}
		}
		return true
	}
	if n := compare(testenv.Golden(t, ""), shared, never); n != 13 {
		t.Errorf("%d files were compared", n)
	}
	posthoc := filepath.Join(shared, "posthoc")
	if n := compare(testenv.OpenOOD(t), posthoc, never); n != 15 {
		t.Errorf("%d arrays of OpenOOD were compared", n)
	}
	if n := compare(testenv.OpenOODScores(t), posthoc, fields); n != 52 {
		t.Errorf("the scores of %d methods were compared", n)
	}
}

// TestFixedSeed: every package with property tests draws the same cases in every
// run.
func TestFixedSeed(t *testing.T) {
	root := testenv.Root(t)
	random, fixed := map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			return cmp.Or(err, filepath.SkipDir)
		}
		if d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			switch spec.Path.Value {
			case `"pgregory.net/rapid"`:
				random[filepath.Dir(path)] = true
			case `"github.com/mlrbfn/mlrbfn/internal/testenv"`:
				fixed[filepath.Dir(path)] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(fixed, func(dir string, _ bool) bool { return !random[dir] })
	if len(random) == 0 || !maps.Equal(random, fixed) {
		t.Errorf("%v have property tests, %v import testenv", random, fixed)
	}
}
