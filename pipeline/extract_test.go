package pipeline

import (
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/extractor"
	"github.com/mlrbfn/mlrbfn/features"

	"pgregory.net/rapid"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// tile writes a picture of 4×3 pixels, all of which follow from the seed.
func tile(t testing.TB, path string, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	img := image.NewNRGBA(image.Rect(0, 0, 4, 3))
	for i := range 12 {
		img.Set(i%4, i/4, color.NRGBA{uint8(rng.Uint32()), uint8(rng.Uint32()), uint8(rng.Uint32()), 255})
	}
	testenv.SavePNG(t, path, img)
	// A time that is not that of another state of the file.
	when := time.Unix(1_700_000_000, int64(seed))
	if err := os.Chtimes(path, when, when); err != nil {
		t.Fatal(err)
	}
}

// tiles are the options to extract the pixels of a folder of tiles.
func tiles(images, out string) ExtractOptions {
	return ExtractOptions{Model: extractor.PixelsName, Images: images, Out: out, Options: extractor.Options{Workers: 2}}
}

// extract extracts or fails the test.
func extract(t testing.TB, opts ExtractOptions) *ExtractResult {
	t.Helper()
	result, err := Extract(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// sameFiles compares two folders byte by byte.
func sameFiles(t testing.TB, a, b string) {
	t.Helper()
	read := func(dir string) map[string]string {
		all := map[string]string{}
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			all[strings.TrimPrefix(path, dir)] = string(data)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	files, others := read(a), read(b)
	for name := range files {
		if files[name] != others[name] {
			t.Errorf("%s differs:\n%.400q\n%.400q", name, files[name], others[name])
		}
	}
	if len(files) != len(others) {
		t.Errorf("%s has %d files, %s %d", a, len(files), b, len(others))
	}
}

// TestExtractTakesWhatHasChanged compares every update of a set with one made at
// once of the images as they are then.
func TestExtractTakesWhatHasChanged(t *testing.T) {
	dir := t.TempDir()
	images, out := filepath.Join(dir, "images"), filepath.Join(dir, "set")
	at := func(name string) string { return filepath.Join(images, filepath.FromSlash(name)) }
	for i := range 6 {
		tile(t, at(fmt.Sprintf("%c/%d.png", 'b'+i%2, i)), uint64(i))
	}
	touch := func(name string, seconds int64) error {
		return os.Chtimes(at(name), time.Unix(seconds, 0), time.Unix(seconds, 0))
	}
	// rewrite changes a file and keeps its size and time.
	rewrite := func(name string, seed uint64) error {
		info, err := os.Stat(at(name))
		if err != nil {
			return err
		}
		tile(t, at(name), seed)
		after, err := os.Stat(at(name))
		if err == nil && after.Size() != info.Size() {
			err = fmt.Errorf("%d and %d bytes; choose another seed", info.Size(), after.Size())
		}
		return errors.Join(err, os.Chtimes(at(name), info.ModTime(), info.ModTime()))
	}
	steps := []struct {
		name        string
		change      func() error
		verify      bool
		new, reused int
		stale       bool // a change that only Verify notices
	}{
		{"all are new", func() error { return nil }, false, 6, 0, false},
		{"nothing has changed", func() error { return nil }, false, 0, 6, false},
		{"nor has any content", func() error { return nil }, true, 0, 6, false},
		{"one more, in a class that moves the labels", func() error { tile(t, at("a/9.png"), 9); return nil }, false, 1, 6, false},
		{"one changed", func() error { tile(t, at("b/2.png"), 12); return nil }, false, 1, 6, false},
		{"one gone", func() error { return os.Remove(at("c/3.png")) }, false, 0, 6, false},
		{"a class gone", func() error { return os.RemoveAll(at("a")) }, false, 0, 5, false},
		{"one with another time", func() error { return touch("c/1.png", 5) }, false, 1, 4, false},
		{"one with another time and the same content", func() error { return touch("c/1.png", 6) }, true, 0, 5, false},
		{"one changed behind our back", func() error { return rewrite("b/0.png", 20) }, false, 0, 5, true},
		{"which is found by looking", func() error { return nil }, true, 1, 4, false},
		{"one that cannot be read any more", func() error { return os.WriteFile(at("b/4.png"), []byte("x"), 0o666) }, false, 0, 4, false},
		{"nor when it is looked at", func() error { return nil }, true, 0, 4, false},
	}
	for i, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			if err := step.change(); err != nil {
				t.Fatal(err)
			}
			opts := tiles(images, out)
			opts.Verify = step.verify
			done, total := 0, 0
			opts.Progress = func(d, _, n int) { done, total = d, n }
			r := extract(t, opts)
			if r.New != step.new || r.Reused != step.reused {
				t.Errorf("%d new, %d reused; want %d and %d", r.New, r.Reused, step.new, step.reused)
			}
			if looked := r.New + len(r.Failed); step.verify && done != total || !step.verify && (done != looked || total != looked) {
				t.Errorf("progress ended with %d of %d", done, total)
			}
			if step.stale {
				return
			}
			once := filepath.Join(dir, fmt.Sprint(i))
			extract(t, tiles(images, once))
			sameFiles(t, once, out)
		})
	}
}

// TestMergeOfShards extracts random trees by shards, with any number of workers,
// and in one go.
func TestMergeOfShards(t *testing.T) {
	parent, run := t.TempDir(), 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		dir := filepath.Join(parent, fmt.Sprint(run))
		images := filepath.Join(dir, "images")
		n := rapid.IntRange(1, 15).Draw(rt, "images")
		for i := range n {
			class := rapid.SampledFrom([]string{"cat", "cat-2", "cat.old/new", "", "dog"}).Draw(rt, "class")
			tile(t, filepath.Join(images, class, fmt.Sprintf("%d.png", i)), uint64(i))
		}
		for i := range rapid.IntRange(0, 3).Draw(rt, "broken") {
			if err := os.WriteFile(filepath.Join(images, fmt.Sprintf("broken%d.png", i)), []byte("x"), 0o666); err != nil {
				rt.Fatal(err)
			}
		}
		if rapid.Bool().Draw(rt, "a link to nothing") {
			if err := os.Symlink("nothing", filepath.Join(images, "link")); err != nil {
				rt.Skip(err)
			}
		}
		once := filepath.Join(dir, "once")
		extract(t, tiles(images, once))
		var shards []string
		parts := filepath.Join(dir, "parts")
		count := rapid.IntRange(1, 5).Draw(rt, "shards")
		for _, i := range rapid.Permutation([]int{1, 2, 3, 4, 5}[:count]).Draw(rt, "order") {
			shard := filepath.Join(dir, fmt.Sprint("shard", i))
			opts := tiles(images, shard)
			opts.Shard = features.Shard{Index: i, Count: count}
			opts.Workers = i
			for range rapid.IntRange(1, 2).Draw(rt, "times") {
				extract(t, opts)
			}
			opts.Out, opts.Parts = parts, true
			unfinished := extract(t, opts).Unfinished
			shards = append(shards, shard)
			if last := len(shards) == count; last != (unfinished == nil) {
				rt.Errorf("part %d of %d: %v", len(shards), count, unfinished)
			}
			set, err := features.Open(t.Context(), parts)
			if len(shards) < count && !errors.Is(err, features.ErrShards) {
				rt.Errorf("opened after %d of %d parts: %v", len(shards), count, err)
			}
			if err == nil {
				set.Close()
			}
		}
		merged := filepath.Join(dir, "merged")
		for range rapid.IntRange(1, 2).Draw(rt, "merges") {
			meta, err := features.Merge(t.Context(), merged, shards, features.Options{})
			if err != nil {
				rt.Fatal(err)
			}
			if meta.N != n {
				rt.Errorf("%d rows of %d images", meta.N, n)
			}
		}
		sameFiles(t, once, merged)
		if _, err := features.Merge(t.Context(), merged, []string{parts}, features.Options{}); err != nil {
			rt.Fatal(err)
		}
		sameFiles(t, once, merged)
	})
}

// TestShardsOfAnIDXFile: its images are in the order of their numbers.
func TestShardsOfAnIDXFile(t *testing.T) {
	images := filepath.Join("..", "scripts", "mnist", "testdata", "kmnist", "t10k-images-idx3-ubyte.gz")
	dir := t.TempDir()
	once := filepath.Join(dir, "once")
	extract(t, tiles(images, once))
	var shards []string
	for i := range 3 {
		opts := tiles(images, filepath.Join(dir, fmt.Sprint(i)))
		opts.Shard = features.Shard{Index: i + 1, Count: 3}
		extract(t, opts)
		shards = append(shards, opts.Out)
	}
	merged := filepath.Join(dir, "merged")
	if _, err := features.Merge(t.Context(), merged, shards, features.Options{}); err != nil {
		t.Fatal(err)
	}
	sameFiles(t, once, merged)
}

// TestExtractFolder extracts a folder at once, in shards, beside an empty folder, and after an
// interruption.
func TestExtractFolder(t *testing.T) {
	const many = 1000
	dir := t.TempDir()
	images := filepath.Join(dir, "images")
	for i := range 5 {
		tile(t, filepath.Join(dir, fmt.Sprint(i)), uint64(i))
	}
	for i := range many {
		class := filepath.Join(images, fmt.Sprint("class", i%3))
		if err := os.MkdirAll(class, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(filepath.Join(dir, fmt.Sprint(i%5)), filepath.Join(class, fmt.Sprintf("%04d.png", i))); err != nil {
			t.Skip(err)
		}
	}
	once := tiles(images, filepath.Join(dir, "once"))
	done, total := 0, 0
	once.Progress = func(d, _, n int) { done, total = d, n }
	if r := extract(t, once); r.New != many || done != r.New || total != r.New {
		t.Errorf("%d new, progress ended with %d of %d", r.New, done, total)
	}
	var shards []string
	for i := range 3 {
		opts := tiles(images, filepath.Join(dir, fmt.Sprint("shard", i)))
		opts.Shard = features.Shard{Index: i + 1, Count: 3}
		shards = append(shards, opts.Out)
		extract(t, opts)
	}
	merged := filepath.Join(dir, "merged")
	if _, err := features.Merge(t.Context(), merged, shards, features.Options{}); err != nil {
		t.Fatal(err)
	}
	sameFiles(t, once.Out, merged)

	// An empty folder is no class, and told of.
	if err := os.Mkdir(filepath.Join(images, "hollow"), 0o777); err != nil {
		t.Fatal(err)
	}
	opts := tiles(images, filepath.Join(dir, "hollow"))
	result, err := Extract(t.Context(), opts)
	if err != nil || !slices.Equal(result.Empty, []string{"hollow"}) || len(result.Classes) != len(result.Meta.Classes) {
		t.Errorf("%+v, %v", result, err)
	}
	sum := 0
	for _, class := range result.Classes {
		sum += class.Images
	}
	if sum == 0 || sum > result.Meta.N {
		t.Errorf("the classes %v have %d images", result.Classes, sum)
	}
	sameFiles(t, once.Out, opts.Out)
	if err := os.Remove(filepath.Join(images, "hollow")); err != nil {
		t.Fatal(err)
	}
	extract(t, opts)
	sameFiles(t, once.Out, opts.Out)

	ctx, cancel := context.WithCancel(t.Context())
	opts.Out = filepath.Join(dir, "cancelled")
	opts.Progress = func(done, _, _ int) {
		if done == 10 {
			cancel()
		}
	}
	if _, err := Extract(ctx, opts); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	opts.Progress = nil
	if r := extract(t, opts); r.Reused < 10 {
		t.Errorf("%d rows were kept", r.Reused)
	}
	sameFiles(t, once.Out, opts.Out)
}
