package features_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
)

// openWholly opens and verifies a set.
func openWholly(t testing.TB, dir string, verify bool) error {
	s, err := features.Open(t.Context(), dir)
	if err != nil {
		return err
	}
	if verify {
		err = s.Verify(t.Context())
	}
	return errors.Join(err, s.Close())
}

// shard writes the rows of four that are in a shard of two parts.
func shard(t testing.TB, dir string, index int, change ...func(*features.Header)) {
	t.Helper()
	h := header
	h.Shard = features.Shard{Index: index, Count: 2}
	for _, do := range change {
		do(&h)
	}
	w := create(t, dir, h, features.Options{})
	c := features.Contents{Classes: classes, Part: &features.Part{Shard: h.Shard, Images: len(four) + 1, Listing: "five"}}
	for i, p := range four {
		if h.Shard.Holds(p.path) {
			check(t, add(w, p))
			c.Units = append(c.Units, features.Unit{Images: []features.Image{p.image()}, Place: int64(i)})
		}
	}
	if index == 1 {
		c.Failed = []features.Failure{{Path: "odd.png", Error: "cut short"}}
	}
	_, err := w.Commit(t.Context(), c)
	check(t, err)
}

// TestEveryAlteredByteIsNoticed flips every byte of a small set and cuts every
// file at every length: on opening, or for the values of features and logits on
// verifying.
func TestEveryAlteredByteIsNoticed(t *testing.T) {
	withoutSync(t)
	dir := filepath.Join(t.TempDir(), "set")
	shard(t, dir, 1)
	check(t, openWholly(t, dir, true))
	names := slices.Sorted(maps.Keys(contents(t, dir)))
	if want := []string{"/errors.jsonl", "/features.json", "/features.npy", "/images.jsonl", "/labels.npy", "/logits.npy", "/positions.npy"}; !slices.Equal(names, want) {
		t.Fatalf("files %q", names)
	}
	for _, name := range names {
		path := filepath.Join(dir, name)
		good, err := os.ReadFile(path)
		check(t, err)
		header := len(good)
		if name == "/features.npy" || name == "/logits.npy" {
			header = 128 // of NumPy's format; the values follow
		}
		refused := func(what string, bad []byte, verify bool) {
			t.Helper()
			check(t, os.WriteFile(path, bad, 0o666))
			if err := openWholly(t, dir, verify); !errors.Is(err, features.ErrDamaged) && !errors.Is(err, features.ErrVersion) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s %s: %v", name, what, err)
			}
		}
		for i := range good {
			bad := slices.Clone(good)
			bad[i] ^= 1 << (i % 8)
			refused(fmt.Sprintf("with another byte %d", i), bad, i >= header)
			refused(fmt.Sprintf("cut at %d", i), good[:i], false)
		}
		refused("with a byte more", append(slices.Clone(good), '\n'), false)
		check(t, os.Rename(path, path+".away"))
		if err := openWholly(t, dir, false); !errors.Is(err, features.ErrDamaged) && !errors.Is(err, features.ErrNotSet) && name != "/features.json" {
			t.Errorf("without %s: %v", name, err)
		}
		check(t, os.Rename(path+".away", path), os.WriteFile(path, good, 0o666))
	}
	check(t, openWholly(t, dir, true))
}

// TestEveryByteOfTheMetadata replaces every byte by every other value.
func TestEveryByteOfTheMetadata(t *testing.T) {
	good, err := features.EncodeMeta(features.Meta{Version: features.Version, N: 1, D: 2, Classes: []string{"a", strings.Repeat("0", 64)}, Files: map[string]features.Sum{"labels.npy": {}}})
	check(t, err)
	if _, err := features.ParseMeta(good); err != nil {
		t.Fatal(err)
	}
	bad := bytes.Clone(good)
	for i := range good {
		for flip := 1; flip < 256; flip++ {
			bad[i] = good[i] ^ byte(flip)
			if _, err := features.ParseMeta(bad); !errors.Is(err, features.ErrDamaged) && !errors.Is(err, features.ErrVersion) {
				t.Errorf("byte %d is %q in the place of %q: %v", i, bad[i], good[i], err)
			}
		}
		bad[i] = good[i]
		if _, err := features.ParseMeta(good[:i]); !errors.Is(err, features.ErrDamaged) {
			t.Errorf("cut at %d: %v", i, err)
		}
	}
}

func TestVerifyWithoutChecksums(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	commit(t, create(t, dir, header, features.Options{}), four)
	once := contents(t, dir)
	withoutChecksums(t, dir)
	for _, dir := range []string{dir, elsewhere(t)} {
		if err := openWholly(t, dir, true); !errors.Is(err, features.ErrNoChecksums) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	// Its rows are used, and it is written in the current version.
	w := create(t, dir, header, features.Options{})
	if !four[0].known(w) {
		t.Error("the rows of an older version are not known")
	}
	commit(t, w, four)
	if !mapsEqual(once, contents(t, dir)) {
		t.Error("it did not become what is written today")
	}
}

// TestDamageIsNotHandedOn: an update does not write new checksums for damaged data.
func TestDamageIsNotHandedOn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	commit(t, create(t, dir, header, features.Options{}), four)
	path := filepath.Join(dir, "features.npy")
	data, err := os.ReadFile(path)
	check(t, err)
	data[len(data)-1] ^= 1
	check(t, os.WriteFile(path, data, 0o666))
	if _, err := features.Create(t.Context(), dir, header, features.Options{}); !errors.Is(err, features.ErrDamaged) || !strings.Contains(err.Error(), "Force: ") {
		t.Errorf("got %v", err)
	}
	w := create(t, dir, header, features.Options{Force: true})
	if four[0].known(w) {
		t.Error("a damaged set's row is known")
	}
	commit(t, w, four)
	check(t, openWholly(t, dir, true))
}

func TestParseShard(t *testing.T) {
	for _, text := range []string{"1/1", "2/3", "65536/65536"} {
		if s, err := features.ParseShard(text); err != nil || s.String() != text {
			t.Errorf("%s became %s, %v", text, s, err)
		}
	}
	for _, text := range []string{"", "1", "0/3", "4/3", "-1/3", "1/0", "1/65537", "a/b", "1/3/5", " 1/3"} {
		if s, err := features.ParseShard(text); err == nil {
			t.Errorf("%q became %v", text, s)
		}
	}
}

func TestMergeRefuses(t *testing.T) {
	again := func(dir string, change func(h *features.Header, c *features.Contents)) {
		check(t, os.RemoveAll(dir))
		h := header
		h.Shard = features.Shard{Index: 2, Count: 2}
		c := features.Contents{Classes: classes, Part: &features.Part{Shard: h.Shard, Images: 5, Listing: "five"}}
		change(&h, &c)
		w := create(t, dir, h, features.Options{})
		if c.Part != nil {
			c.Part.Shard = h.Shard
		}
		_, err := w.Commit(t.Context(), c)
		check(t, err)
	}
	tests := []struct {
		name   string
		change func(h *features.Header, c *features.Contents)
		kind   error
		want   string
	}{
		{"twice the same", func(h *features.Header, _ *features.Contents) { h.Shard.Index = 1 }, features.ErrShards, "are both shard 1/2"},
		{"of another number", func(h *features.Header, _ *features.Contents) { h.Shard.Count = 3 }, features.ErrShards, "is shard 2/3"},
		{"of another model", func(h *features.Header, _ *features.Contents) { h.Fingerprint = "f2" }, features.ErrFingerprint, "cannot be used together"},
		{"of another folder", func(h *features.Header, _ *features.Contents) { h.Root = "elsewhere" }, features.ErrShards, "images in elsewhere"},
		{"of another listing", func(_ *features.Header, c *features.Contents) { c.Part.Listing = "other" }, features.ErrShards, "extract every shard once more"},
		{"of other classes", func(_ *features.Header, c *features.Contents) { c.Classes = []string{} }, features.ErrShards, "extract every shard once more"},
		{"without logits", func(h *features.Header, _ *features.Contents) { h.LogitsDim = 0 }, features.ErrShards, "logits"},
		{"a whole set", func(h *features.Header, c *features.Contents) { h.Shard, c.Part = features.Shard{}, nil }, features.ErrShards, "is no shard"},
		{"without rows", func(*features.Header, *features.Contents) {}, features.ErrDamaged, "5 images"},
		{"of a million images", func(_ *features.Header, c *features.Contents) { c.Part.Images = 1_000_000 }, features.ErrShards, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			one, two, out := filepath.Join(dir, "one"), filepath.Join(dir, "two"), filepath.Join(dir, "out")
			shard(t, one, 1)
			again(two, test.change)
			_, err := features.Merge(t.Context(), out, []string{two, one}, features.Options{})
			if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %v and %q", err, test.kind, test.want)
			}
			absent(t, out)
			absent(t, out+".partial")
		})
	}
	dir := t.TempDir()
	one, two, out := filepath.Join(dir, "one"), filepath.Join(dir, "two"), filepath.Join(dir, "out")
	shard(t, one, 1)
	shard(t, two, 2)
	merge := func(want error, text string, shards ...string) {
		t.Helper()
		if _, err := features.Merge(t.Context(), out, shards, features.Options{}); err == nil || want != nil && !errors.Is(err, want) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: %v, want %v and %q", shards, err, want, text)
		}
		absent(t, out+".partial")
	}
	merge(features.ErrShards, "none")
	merge(features.ErrShards, "missing are 2/2", one)
	merge(features.ErrShards, "missing are 1/2", two)
	merge(features.ErrShards, "are both", one, two, two)
	h := header
	h.Shard = features.Shard{Index: 2, Count: 2}
	w := create(t, two, h, features.Options{})
	check(t, add(w, picture{"new.png", 0, 8}), w.Close())
	merge(nil, "run the same command again", one, two)
}
