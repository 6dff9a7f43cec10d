package features_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// check fails the test at the first error.
func check(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// elsewhere makes a set like another program: three rows of two features.
func elsewhere(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	check(t, npy.WriteFile(filepath.Join(dir, "features.npy"), []float32{1, 2, 3, 4, 5, 6}, 3, 2))
	return dir
}

func open(t testing.TB, dir string) *features.Set {
	t.Helper()
	s, err := features.Open(t.Context(), dir)
	check(t, err)
	t.Cleanup(func() { check(t, s.Close()) })
	return s
}

func TestSetMadeElsewhere(t *testing.T) {
	dir := elsewhere(t)
	t.Run("features alone", func(t *testing.T) {
		s := open(t, dir)
		if s.N != 3 || s.D != 2 || s.Fingerprint != "" || len(s.Classes) != 0 || s.Dir != dir {
			t.Errorf("got %+v", s.Meta)
		}
		if !slices.Equal(s.Features(), []float32{1, 2, 3, 4, 5, 6}) || !slices.Equal(s.Row(2), []float32{5, 6}) {
			t.Errorf("features %v, row 2 %v", s.Features(), s.Row(2))
		}
		if !slices.Equal(s.Labels(), []int64{-1, -1, -1}) {
			t.Errorf("labels %v", s.Labels())
		}
		if logits, c := s.Logits(); logits != nil || c != 0 {
			t.Errorf("logits %v, %d", logits, c)
		}
		images, err := s.Images()
		failures, err2 := s.Errors()
		weight, bias, err3 := s.Classifier()
		if images != nil || failures != nil || weight != nil || bias != nil || errors.Join(err, err2, err3) != nil {
			t.Errorf("%v %v %v %v, %v", images, failures, weight, bias, errors.Join(err, err2, err3))
		}
	})
	t.Run("labels, logits and classifier", func(t *testing.T) {
		// Labels as some programs save them.
		check(t, npy.WriteFile(filepath.Join(dir, "labels.npy"), []float32{2, -1, 0}, 3),
			npy.WriteFile(filepath.Join(dir, "logits.npy"), make([]float32, 12), 3, 4),
			npy.WriteFile(filepath.Join(dir, "fc_weight.npy"), []float32{1, 2, 3, 4, 5, 6, 7, 8}, 4, 2))
		s := open(t, dir)
		if !slices.Equal(s.Labels(), []int64{2, -1, 0}) || !slices.Equal(s.Classes, []string{"0", "1", "2"}) {
			t.Errorf("labels %v, classes %v", s.Labels(), s.Classes)
		}
		if logits, c := s.Logits(); len(logits) != 12 || c != 4 {
			t.Errorf("logits %v, %d", logits, c)
		}
		weight, bias, err := s.Classifier()
		if len(weight) != 8 || !slices.Equal(bias, []float32{0, 0, 0, 0}) || err != nil {
			t.Errorf("classifier %v %v %v", weight, bias, err)
		}
		check(t, npy.WriteFile(filepath.Join(dir, "fc_bias.npy"), []float32{1, 2, 3, 4}, 4))
		if _, bias, err := s.Classifier(); !slices.Equal(bias, []float32{1, 2, 3, 4}) || err != nil {
			t.Errorf("bias %v %v", bias, err)
		}
	})
}

// withoutChecksums makes a set one of version 1.
func withoutChecksums(t testing.TB, dir string) {
	t.Helper()
	path := filepath.Join(dir, "features.json")
	text, err := os.ReadFile(path)
	check(t, err)
	at := bytes.Index(text, []byte(",\n  \"files\""))
	text = bytes.Replace(text[:at], []byte(`"version": 2`), []byte(`"version": 1`), 1)
	text = append(bytes.Replace(text, []byte(`"version": 3`), []byte(`"version": 1`), 1), "\n}\n"...)
	check(t, os.WriteFile(path, text, 0o666))
}

// TestContent: the content of a set is that of its features, labels and classes,
// wherever it lies and with or without checksums.
func TestContent(t *testing.T) {
	content := func(dir string) string {
		t.Helper()
		sum, err := open(t, dir).Content(t.Context())
		check(t, err)
		return sum
	}
	dir := filepath.Join(t.TempDir(), "set")
	w := create(t, dir, header, features.Options{})
	c := features.Contents{Classes: classes}
	for _, p := range four {
		check(t, add(w, p))
		c.Units = append(c.Units, features.Unit{Images: []features.Image{p.image()}})
	}
	_, err := w.Commit(t.Context(), c)
	check(t, err)
	was := content(dir)
	moved := filepath.Join(t.TempDir(), "moved")
	check(t, os.Rename(dir, moved))
	withoutChecksums(t, moved)
	if now := content(moved); now != was {
		t.Errorf("moved, and without checksums: %s, was %s", now, was)
	}
	other := elsewhere(t)
	was = content(other)
	check(t, npy.WriteFile(filepath.Join(other, "labels.npy"), []int64{0, 1, 0}, 3))
	if content(other) == was {
		t.Error("the same content with labels")
	}
}

// TestOpenRefuses breaks a good set of version 1, which has no checksums, in one
// way at a time.
func TestOpenRefuses(t *testing.T) {
	put := func(name, text string) func(string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666) }
	}
	matrix := func(name string, shape ...int) func(string) error {
		n := 1
		for _, d := range shape {
			n *= d
		}
		return func(dir string) error {
			return npy.WriteFile(filepath.Join(dir, name), make([]float32, n), shape...)
		}
	}
	edit := func(from, to string) func(string) error {
		return func(dir string) error {
			path := filepath.Join(dir, "features.json")
			text, err := os.ReadFile(path)
			if err == nil && !bytes.Contains(text, []byte(from)) {
				err = fmt.Errorf("no %q in %s", from, text)
			}
			return errors.Join(err, os.WriteFile(path, bytes.Replace(text, []byte(from), []byte(to), 1), 0o666))
		}
	}
	cut := func(name string) func(string) error {
		return func(dir string) error {
			info, err := os.Stat(filepath.Join(dir, name))
			return errors.Join(err, os.Truncate(filepath.Join(dir, name), info.Size()-1))
		}
	}
	remove := func(name string) func(string) error {
		return func(dir string) error { return os.RemoveAll(filepath.Join(dir, name)) }
	}
	tests := []struct {
		name  string
		spoil func(dir string) error
		kind  error
		want  string
	}{
		{"no folder", remove("."), fs.ErrNotExist, "an extraction makes it"},
		{"no features", remove("features.npy"), features.ErrNotSet, "it has no features.npy; an extraction makes one"},
		{"features cut short", cut("features.npy"), features.ErrDamaged, "cut short"},
		{"features flat", matrix("features.npy", 6), features.ErrDamaged, "two dimensions"},
		{"features without columns", matrix("features.npy", 4, 0), features.ErrDamaged, "features.npy"},
		{"fewer rows", matrix("features.npy", 3, 2), features.ErrDamaged, "shape [3 2], features.json says [4 2]"},
		{"no labels", remove("labels.npy"), features.ErrDamaged, "labels.npy"},
		{"labels no file", put("labels.npy", "PK"), features.ErrDamaged, "labels.npy"},
		{"fewer labels", matrix("labels.npy", 3), features.ErrDamaged, "has 4 rows"},
		{"labels of two dimensions", matrix("labels.npy", 4, 1), features.ErrDamaged, "shape [4 1]"},
		{"logits of one dimension", matrix("logits.npy", 4), features.ErrDamaged, "logits.npy"},
		{"fewer logits", matrix("logits.npy", 3, 3), features.ErrDamaged, "has 3 rows"},
		{"label without a class", edit(",\n    \"cat\"", ""), features.ErrDamaged, "label 1 of row 1"},
		{"newer version", edit(`"version": 1`, `"version": 5`), features.ErrVersion, "features.json"},
		{"newer version, all else unknown", put("features.json", `{"version": 7, "n": {}}`), features.ErrVersion, "version 7"},
		{"no version", put("features.json", "{}"), features.ErrDamaged, "version 0"},
		{"no JSON", put("features.json", "{"), features.ErrDamaged, "features.json"},
		{"n no number", edit(`"n": 4`, `"n": "4"`), features.ErrDamaged, "features.json"},
		{"n below zero", edit(`"n": 4`, `"n": -4`), features.ErrDamaged, "n -4"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "set")
			commit(t, create(t, dir, header, features.Options{}), four)
			withoutChecksums(t, dir)
			check(t, test.spoil(dir))
			_, err := features.Open(t.Context(), dir)
			if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("got %v; want %q and the path", err, test.want)
			}
		})
	}
	// Damage that is found only when the data are read.
	late := []struct {
		name  string
		spoil func(dir string) error
		want  string
	}{
		{"no images.jsonl", remove("images.jsonl"), "images.jsonl"},
		{"fewer images", put("images.jsonl", "{}\n"), "1 lines, features.npy has 4 rows"},
		{"more images", put("images.jsonl", strings.Repeat("{}\n", 5)), "5 lines"},
		{"images no JSON", put("images.jsonl", "{}\n{\n"), "images.jsonl: damaged data: line 2"},
		{"images without end", put("images.jsonl", strings.Repeat(" ", 1<<20)), "longer"},
		{"errors no JSON", put("errors.jsonl", "x"), "errors.jsonl"},
		{"weight of other width", matrix("fc_weight.npy", 3, 5), "want [C 2]"},
		{"bias of other length", func(dir string) error {
			return errors.Join(matrix("fc_weight.npy", 3, 2)(dir), matrix("fc_bias.npy", 4)(dir))
		}, "want [3]"},
	}
	for _, test := range late {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "set")
			commit(t, create(t, dir, header, features.Options{}), four)
			withoutChecksums(t, dir)
			check(t, test.spoil(dir))
			s := open(t, dir)
			_, err1 := s.Images()
			_, err2 := s.Errors()
			_, _, err3 := s.Classifier()
			err := errors.Join(err1, err2, err3)
			if !errors.Is(err, features.ErrDamaged) || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("got %v; want %q and the path", err, test.want)
			}
		})
	}
}

func TestOpenRefusesStrayLabels(t *testing.T) {
	dir := elsewhere(t)
	for _, label := range []int64{-2, 1 << 20, 1 << 62} {
		check(t, npy.WriteFile(filepath.Join(dir, "labels.npy"), []int64{0, label, 1}, 3))
		if _, err := features.Open(t.Context(), dir); !errors.Is(err, features.ErrDamaged) {
			t.Errorf("label %d: %v", label, err)
		}
	}
}

func TestOpenTellsOfAnInterruptedExtract(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	w := create(t, dir, header, features.Options{})
	check(t, add(w, four[0]), w.Close())
	if _, err := features.Open(t.Context(), dir+"/"); err == nil || !strings.Contains(err.Error(), "run it again") {
		t.Errorf("got %v", err)
	}
}

func TestSameSpace(t *testing.T) {
	set := func(dir, fingerprint string, d int) *features.Set {
		return &features.Set{Dir: dir, Meta: features.Meta{D: d, Fingerprint: fingerprint}}
	}
	tests := []struct {
		name string
		b    *features.Set
		ok   bool
	}{
		{"same", set("b", "x", 2), true},
		{"made elsewhere", set("b", "", 2), true},
		{"other fingerprint", set("b", "y", 2), false},
		{"other dimension", set("b", "", 3), false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := features.SameSpace(set("a", "x", 2), test.b)
			if test.ok != (err == nil) || !test.ok && (!errors.Is(err, features.ErrFingerprint) || !strings.Contains(err.Error(), "a ") || !strings.Contains(err.Error(), "b ")) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestPython reads every part of a set with NumPy and json, and recomputes the
// checksums with hashlib.
func TestPython(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	w := create(t, dir, header, features.Options{})
	commit(t, w, four, features.Failure{Path: "odd/\xff.png", Error: "cut short"})
	got := testenv.Python(t, `
import hashlib, json, os, sys, numpy as np
dir = sys.argv[1]
for name in "features", "logits", "labels":
    a = np.load(f"{dir}/{name}.npy", mmap_mode="r", allow_pickle=False)
    print(name, a.dtype, a.shape, a.ravel()[:4].tolist())
for name in "images", "errors":
    for line in open(f"{dir}/{name}.jsonl", encoding="utf-8"):
        print(sorted(json.loads(line).items()))
read = lambda name: open(f"{dir}/{name}", "rb").read()
sha = lambda data: hashlib.sha256(data).hexdigest()
meta = json.loads(read("features.json"))
files = meta.pop("files")
print(sorted(os.listdir(dir)) == sorted([*files, "features.json"]), files == {name: {"bytes": len(read(name)), "sha256": sha(read(name))} for name in files})
sum = meta.pop("sha256")
print(sha(read("features.json").replace(sum.encode(), b"0" * 64)) == sum)
print(meta)
`, dir)
	sha := strings.Repeat("0a", 32)
	want := `features float32 (4, 2) [1.5, -1.0, 2.5, -2.0]
logits float32 (4, 3) [1.0, 2.0, 3.0, 2.0]
labels int64 (4,) [0, 1, -1, 1]
[('bytes', 101), ('label', 'ant & bee'), ('mtime', 1700000000123456789), ('path', 'ant & bee/1.png'), ('sha256', '` + sha + `')]
[('bytes', 102), ('label', 'cat'), ('mtime', 1700000000123456789), ('path', 'cat/ä\x00ff.png'), ('path_bytes', 'Y2F0L8Ok/y5wbmc='), ('sha256', '` + sha + `')]
[('bytes', 103), ('label', None), ('mtime', 1700000000123456789), ('path', '3.png'), ('sha256', '` + sha + `')]
[('bytes', 104), ('label', 'cat'), ('mtime', 1700000000123456789), ('path', 'cat/100%.png'), ('sha256', '` + sha + `')]
[('error', 'cut short'), ('path', 'odd/\x00ff.png'), ('path_bytes', 'b2RkL/8ucG5n')]
True True
True
{'version': 3, 'n': 4, 'd': 2, 'classes': ['ant & bee', 'cat'], 'root': 'photos', 'model': 'models/tiny', 'model_sha256': 'abc', 'output': 'features', 'pool': 'cls', 'preprocess': {'size': 224}, 'fingerprint': 'f1', 'tool': 'mlrbfn test'}
`
	if got != want {
		t.Errorf("python printed\n%swant\n%s", got, want)
	}
}

func FuzzParseMeta(f *testing.F) {
	f.Add([]byte(`{"version":1,"n":2,"d":3,"classes":["a"],"root":"r%FF","preprocess":{"size": 224}}`))
	f.Add([]byte(`{"version":2}`))
	sealed, err := features.EncodeMeta(features.Meta{Version: features.Version, N: 1, D: 2, Files: map[string]features.Sum{"features.npy": {Bytes: 136}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed)
	f.Add([]byte(`{"version":1,"n":-1,"preprocess":null}`))
	// What hostile sets had.
	for _, text := range []string{
		`{"version":2,"n":4611686018427387904,"d":4611686018427387904}`, `{"version":2,"n":1e30,"d":1}`, `{"version":99}`, `{"version":3,"n":1,"d":1,"sha256":"00"}`,
		`{"version":2,"n":1,"d":1,"files":{"../../features.npy":{"bytes":-1,"sha256":""},"/etc/passwd":{"bytes":1,"sha256":"0"}}}`,
		`{"version":2,"n":1,"d":1,"classes":["a","a","\u001b[2J","\ud800"],"root":"../../../etc","shard":{"index":9,"of":0}}`,
		`{"version":2,"n":1,"d":1,"preprocess":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`,
		"\xff\xfe", "null", "[]", `{"version":2,"n":1,"d":1}{"version":2}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		meta, err := features.ParseMeta(data)
		if err != nil {
			if !errors.Is(err, features.ErrDamaged) && !errors.Is(err, features.ErrVersion) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		meta.Version = features.Version // there is no way to write an older one
		text, err := features.EncodeMeta(meta)
		if err != nil {
			t.Fatal(err)
		}
		again, err := features.ParseMeta(text)
		if err != nil {
			t.Fatal(err)
		}
		// Nil is written as null, which is read as null.
		if meta.Preprocess == nil {
			meta.Preprocess = json.RawMessage("null")
		}
		if meta.SHA256 = again.SHA256; !reflect.DeepEqual(meta, again) {
			t.Fatalf("%+v became %+v", meta, again)
		}
	})
}

func FuzzParseImages(f *testing.F) {
	f.Add([]byte(`{"path":"a%FF.png","label":"cat","bytes":1,"mtime":2,"sha256":"00"}` + "\n{}\n"))
	f.Add([]byte("\n"))
	f.Add([]byte("null\n[]"))
	// What hostile sets had.
	for _, text := range []string{
		`{"path":"../../etc/passwd","label":null}`, `{"path":"/dev/zero"}`, `{"path":"a\u0000ff.png","path_bytes":"////"}`, `{"path":"\u001b]0;x\u0007\u202e.png","label":"=1+1"}`,
		`{"path":"a","bytes":-9223372036854775808,"mtime":9223372036854775807,"sha256":"` + strings.Repeat("zz", 32) + `"}`, `{"path":"a","bytes":1e400}`,
		`{"path":"` + strings.Repeat("a/", 5000) + `"}`, `{"path":"a"} {"path":"b"}`, "\ufeff{}", strings.Repeat("\n", 300), `{"path":"a`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		images, err := features.ParseImages(data)
		if err != nil && !errors.Is(err, features.ErrDamaged) {
			t.Fatalf("error of another kind: %v", err)
		}
		if len(images) > 1+bytes.Count(data, []byte("\n")) {
			t.Fatalf("%d images of %q", len(images), data)
		}
	})
}
