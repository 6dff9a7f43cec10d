package testenv_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"mlrbfn/internal/testenv"
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
	if n := compare(testenv.OpenOOD(t), filepath.Join(shared, "posthoc"), fields); n < 60 {
		t.Errorf("%d files of OpenOOD were compared", n)
	}
}

// TestMissing: a skipped test is noted in the file that MLRBFN_SKIPPED names.
func TestMissing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "skipped")
	t.Setenv("MLRBFN_SKIPPED", file)
	t.Setenv("MLRBFN_REQUIRE", "other")
	for _, name := range []string{"one", "two"} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if !t.Skipped() {
					t.Error("the test was not skipped")
				}
			}()
			_, err := os.Stat(filepath.Join(t.TempDir(), "absent"))
			if !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			testenv.Missing(t, "a thing", "make it", err)
		})
	}
	got, err := os.ReadFile(file)
	if want := "a thing\tmake it\tTestMissing/one\na thing\tmake it\tTestMissing/two\n"; err != nil || string(got) != want {
		t.Errorf("%q, %v", got, err)
	}
}
