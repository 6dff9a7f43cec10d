package features_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/npy"
)

// twoParts makes a set of two parts, and returns it.
func twoParts(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "set")
	for i := 1; i <= 2; i++ {
		shard(t, features.PartDir(dir, features.Shard{Index: i, Count: 2}), i)
	}
	unfinished, err := features.CommitParts(dir, 2, features.Options{})
	check(t, unfinished, err)
	return dir
}

// TestPartsAreTheMergedSet: all that can be read of a set of parts is what the merged
// set has.
func TestPartsAreTheMergedSet(t *testing.T) {
	dir := twoParts(t)
	merged := filepath.Join(t.TempDir(), "merged")
	_, err := features.Merge(t.Context(), merged, []string{dir}, features.Options{})
	check(t, err)
	same(t, open(t, merged), open(t, dir))
}

// same compares all that two sets have.
func same(t testing.TB, want, got *features.Set) {
	t.Helper()
	if got.N != want.N || got.D != want.D || !slices.Equal(got.Classes, want.Classes) || got.Fingerprint != want.Fingerprint || got.Root != want.Root {
		t.Errorf("%+v, want %+v", got.Meta, want.Meta)
	}
	if !slices.Equal(got.Labels(), want.Labels()) || !slices.Equal(got.Features(), want.Features()) {
		t.Errorf("labels %v, features %v, want %v and %v", got.Labels(), got.Features(), want.Labels(), want.Features())
	}
	logits, c := want.Logits()
	if own, d := got.Logits(); d != c || !slices.Equal(own, logits) || got.LogitsDim() != c {
		t.Errorf("logits %v, want %v", own, logits)
	}
	images, err := want.Images()
	own, err2 := got.Images()
	check(t, err, err2)
	failed, err := want.Errors()
	lost, err2 := got.Errors()
	check(t, err, err2)
	if len(own) != len(images) || !slices.Equal(lost, failed) {
		t.Errorf("%d images and failures %v, want %d and %v", len(own), lost, len(images), failed)
	}
	for i, img := range images {
		some, err := got.ImagesAt([]int{i})
		check(t, err)
		for _, other := range []features.Image{own[i], some[i]} {
			label := img.Label == nil && other.Label == nil || img.Label != nil && other.Label != nil && *img.Label == *other.Label
			if other.Path != img.Path || other.SHA256 != img.SHA256 || other.MTime != img.MTime || !label {
				t.Errorf("image %d is %+v, want %+v", i, other, img)
			}
		}
		if got.ImagePath(i) != img.Path || c > 0 && !slices.Equal(got.RowLogits(i), want.RowLogits(i)) {
			t.Errorf("row %d", i)
		}
	}
	for from := range want.N {
		row := make([]float32, want.D)
		if check(t, got.Read(row, from)); !slices.Equal(row, want.Row(from)) || !slices.Equal(got.Row(from), row) {
			t.Errorf("row %d is %v and %v, want %v", from, row, got.Row(from), want.Row(from))
		}
		for to := from; to <= want.N; to++ {
			block, pages := make([]float32, (to-from)*want.D), got.Pages()
			pages.Need(from*want.D, to*want.D)
			if check(t, pages.Read(block, from*want.D)); !slices.Equal(block, got.Block(from, to)) || !slices.Equal(block, want.Block(from, to)) {
				t.Errorf("rows %d to %d are %v and %v, want %v", from, to, block, got.Block(from, to), want.Block(from, to))
			}
			pages.Release()
		}
	}
	check(t, got.Verify(t.Context()))
}

// TestPartsRefuse: a set of parts is whole or is no set, and says what lacks.
func TestPartsRefuse(t *testing.T) {
	part := func(dir string, i int) string { return features.PartDir(dir, features.Shard{Index: i, Count: 2}) }
	manifest := func(dir string) string { return filepath.Join(dir, "parts.json") }
	tests := []struct {
		name   string
		change func(dir string) error
		kind   error
		want   string
	}{
		{"no manifest", func(dir string) error { return os.Remove(manifest(dir)) }, features.ErrShards, "there is no parts.json"},
		{"a part is missing", func(dir string) error { return os.RemoveAll(part(dir, 2)) }, features.ErrShards, "part-00002-of-00002 is missing"},
		{"not all parts yet", func(dir string) error {
			return errors.Join(os.Remove(manifest(dir)), os.Rename(part(dir, 1), part(dir, 1)+".partial"))
		}, features.ErrShards, "of 2 parts in"},
		{"twice the same", func(dir string) error {
			return errors.Join(os.RemoveAll(part(dir, 2)), os.CopyFS(part(dir, 2), os.DirFS(part(dir, 1))))
		}, features.ErrShards, "made again after"},
		{"cut short", func(dir string) error { return os.Truncate(filepath.Join(part(dir, 1), "features.npy"), 130) }, features.ErrDamaged, "cut short"},
		{"an altered manifest", func(dir string) error {
			text, err := os.ReadFile(manifest(dir))
			return errors.Join(err, os.WriteFile(manifest(dir), []byte(strings.Replace(string(text), `"images": 5`, `"images": 4`, 1)), 0o666))
		}, features.ErrDamaged, "altered"},
		{"a newer one", func(dir string) error { return os.WriteFile(manifest(dir), []byte(`{"version": 2}`), 0o666) }, features.ErrVersion, "newer"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := twoParts(t)
			check(t, test.change(dir))
			s, err := features.Open(t.Context(), dir)
			if err == nil {
				s.Close()
			}
			if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %v and %q", err, test.kind, test.want)
			}
		})
	}
}

// TestPartsMadeAgain: between two manifests there is no set that mixes the parts of
// both.
func TestPartsMadeAgain(t *testing.T) {
	dir := twoParts(t)
	h := header
	h.Shard = features.Shard{Index: 2, Count: 2}
	again := features.PartDir(dir, h.Shard)
	w := create(t, again, h, features.Options{})
	check(t, add(w, picture{"new.png", 0, 8}))
	one := picture{"new.png", 0, 8}.image()
	_, err := w.Commit(t.Context(), features.Contents{Units: []features.Unit{{Images: []features.Image{one}, Place: 5}}, Classes: classes, Part: &features.Part{Shard: h.Shard, Images: 6, Listing: "six"}})
	check(t, err)
	if unfinished, err := features.CommitParts(dir, 2, features.Options{}); err != nil || !errors.Is(unfinished, features.ErrShards) {
		t.Errorf("%v, %v", unfinished, err)
	}
	if _, err := features.Open(t.Context(), dir); !errors.Is(err, features.ErrShards) || !strings.Contains(err.Error(), "made again") {
		t.Errorf("opened: %v", err)
	}
	if err := features.PreparePart(dir, features.Shard{Index: 1, Count: 3}, features.Options{}); err == nil || !strings.Contains(err.Error(), "another number of shards") {
		t.Errorf("a part of 3 beside those of 2: %v", err)
	}
	check(t, npy.WriteFile(filepath.Join(dir, "mine.npy"), []float32{1}, 1))
	if err := features.PreparePart(dir, h.Shard, features.Options{Force: true}); !errors.Is(err, features.ErrNotSet) {
		t.Errorf("beside another's file: %v", err)
	}
}

// TestSpeculate: two runs make the same part at once; the first that finishes counts, and
// the second does no harm.
func TestSpeculate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	o := features.Options{Speculate: true}
	first, second := create(t, dir, header, o), create(t, dir, header, o)
	check(t, add(first, four[0]), add(second, four[1]))
	commit(t, second, four)
	before := contents(t, dir)
	check(t, open(t, dir).Verify(t.Context()))
	commit(t, first, four)
	if after := contents(t, dir); !mapsEqual(before, after) {
		t.Errorf("%v became %v", before, after)
	}
	left, err := filepath.Glob(dir + ".*")
	if check(t, err); len(left) > 0 {
		t.Errorf("they left %v", left)
	}
}
