package features_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/options"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// whole makes a set of the four images of most tests.
func whole(t testing.TB, h features.Header) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "set")
	w := create(t, dir, h, features.Options{})
	commit(t, w, four, features.Failure{Path: "odd.png", Error: "cut short"})
	return dir
}

// TestConvert: Parquet and back gives the same set, and float16 its rounded values.
func TestConvert(t *testing.T) {
	dir, from := t.TempDir(), whole(t, header)
	with, back, half, again := filepath.Join(dir, "with"), filepath.Join(dir, "back"), filepath.Join(dir, "half"), filepath.Join(dir, "again")
	convert := func(to, from string, c features.Conversion) {
		t.Helper()
		_, err := features.Convert(t.Context(), to, from, c)
		check(t, err)
	}
	convert(with, from, features.Conversion{Parquet: true})
	same(t, open(t, from), open(t, with))
	convert(back, filepath.Join(with, "features.parquet"), features.Conversion{})
	for _, name := range []string{"features.npy", "labels.npy", "images.jsonl"} {
		a, err := os.ReadFile(filepath.Join(from, name))
		b, err2 := os.ReadFile(filepath.Join(back, name))
		if check(t, err, err2); string(a) != string(b) {
			t.Errorf("%s is\n%q, was\n%q", name, b, a)
		}
	}
	if a, b := open(t, from), open(t, back); b.Fingerprint != a.Fingerprint || b.Root != a.Root || !slices.Equal(b.Classes, a.Classes) {
		t.Errorf("%+v became %+v", a.Meta, b.Meta)
	}
	convert(half, from, features.Conversion{DType: features.Float16, Parquet: true})
	s, want := open(t, half), slices.Clone(open(t, from).Features())
	npy.Round(want)
	if !slices.Equal(s.Features(), want) || s.Version != features.Version || s.DType != features.Float16 || s.InPlace() {
		t.Errorf("%v, want %v; %+v", s.Features(), want, s.Meta)
	}
	convert(again, filepath.Join(half, "features.parquet"), features.Conversion{DType: features.Float16})
	sameFile(t, filepath.Join(half, "features.npy"), filepath.Join(again, "features.npy"))
	if _, err := features.Create(t.Context(), half, header, features.Options{}); err == nil || !strings.Contains(err.Error(), "rounded to float16") {
		t.Errorf("float32 over float16: %v", err)
	}
	// Of parts and of shards.
	parts := twoParts(t)
	convert(filepath.Join(dir, "one"), parts, features.Conversion{Parquet: true})
	same(t, open(t, parts), open(t, filepath.Join(dir, "one")))
	for i := 1; i <= 2; i++ {
		convert(filepath.Join(dir, "halves", filepath.Base(features.PartDir("", features.Shard{Index: i, Count: 2}))), features.PartDir(parts, features.Shard{Index: i, Count: 2}), features.Conversion{DType: features.Float16, Parquet: true})
	}
	unfinished, err := features.CommitParts(filepath.Join(dir, "halves"), 2, features.Options{})
	check(t, unfinished, err)
	merged := filepath.Join(dir, "merged")
	_, err = features.Merge(t.Context(), merged, []string{filepath.Join(dir, "halves")}, features.Options{})
	check(t, err)
	same(t, open(t, merged), open(t, filepath.Join(dir, "halves")))
}

// TestFloat16Ends: a value that float16 does not have is an error that says so.
func TestFloat16Ends(t *testing.T) {
	h := header
	h.DType = features.Float16
	w := create(t, filepath.Join(t.TempDir(), "set"), h, features.Options{})
	img := four[0].image()
	check(t, w.Append(img, []float32{1, 70000}, []float32{1, 2, 3}))
	_, err := w.Commit(t.Context(), features.Contents{Units: []features.Unit{{Images: []features.Image{img}}}, Classes: classes})
	if _, named := errors.AsType[*options.Error](err); !named || !strings.Contains(err.Error(), "70000") {
		t.Errorf("got %v", err)
	}
}

func sameFile(t testing.TB, a, b string) {
	t.Helper()
	x, err := os.ReadFile(a)
	y, err2 := os.ReadFile(b)
	if check(t, err, err2); string(x) != string(y) {
		t.Errorf("%s and %s differ", a, b)
	}
}

// TestParquetReaders: pandas, PyArrow, DuckDB, Spark and clip-retrieval's reader see the
// rows of the set.
func TestParquetReaders(t *testing.T) {
	python := filepath.Join(testenv.Root(t), ".setup", "engines", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		testenv.Missing(t, "readers of Parquet", "make a virtual environment .setup/engines with scripts/requirements-engines.txt", err)
	}
	dir := filepath.Join(t.TempDir(), "set")
	w := create(t, dir, withParquet(300), features.Options{})
	var c features.Contents
	c.Classes = classes
	for i := range 500 {
		p := picture{fmt.Sprintf("cat/%03d ä.png", i), int64(i%3) - 1, i}
		row := make([]float32, 300)
		for j := range row {
			row[j] = float32(i) - float32(j)/7
		}
		check(t, w.Append(p.image(), row, nil))
		c.Units = append(c.Units, features.Unit{Images: []features.Image{p.image()}})
	}
	_, err := w.Commit(t.Context(), c)
	check(t, err)
	out, err := exec.Command(python, filepath.Join(testenv.Root(t), "scripts", "check_engines"), "parquet", dir).CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"rows": 500`) || !strings.Contains(string(out), `"read by": ["pandas", "pyarrow", "duckdb"`) {
		t.Errorf("%v: %s", err, out)
	}
	t.Logf("%s", out)
}

// withParquet is the header of a set with Parquet, of d features and no logits.
func withParquet(d int) features.Header {
	h := header
	h.D, h.LogitsDim, h.Parquet = d, 0, true
	return h
}
