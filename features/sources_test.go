package features_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
)

// shelf is a source of a test: images in it, one of which may fail.
type shelf struct {
	name, version string
	images        []picture
	failed        []features.Failure
}

func newShelf(name, version string, first, n int) shelf {
	s := shelf{name: name, version: version}
	for i := range n {
		s.images = append(s.images, picture{fmt.Sprintf("%s#%d.png", name, i), int64((first + i) % 2), first + i})
	}
	return s
}

// read does with a source what an extractor does, and tells how many rows it made.
func (s shelf) read(t *testing.T, w *features.Writer) (made int) {
	t.Helper()
	if n, failed, ok, err := w.Source(s.name, 1000, s.version); ok || err != nil {
		check(t, err)
		if n != len(s.images)-len(s.failed) || !slices.Equal(failed, s.failed) {
			t.Fatalf("%s has %d images and the failures %v", s.name, n, failed)
		}
		return 0
	}
	source := features.Source{Path: s.name, Bytes: 1000, Version: s.version, Failed: s.failed}
	for _, p := range s.images {
		source.Images = append(source.Images, p.image())
		if !p.known(w) && !slices.ContainsFunc(s.failed, func(f features.Failure) bool { return f.Path == p.path }) {
			check(t, add(w, p))
			made++
		}
	}
	check(t, w.AddSource(source))
	return made
}

// writeShelves continues the set in dir and tells how many rows it made.
func writeShelves(t *testing.T, dir string, shelves []shelf, loose ...picture) (made int) {
	t.Helper()
	w := create(t, dir, header, features.Options{})
	var c features.Contents
	for _, s := range shelves {
		made += s.read(t, w)
		c.Units, c.Failed = append(c.Units, features.Unit{Source: s.name}), append(c.Failed, s.failed...)
	}
	for _, p := range loose {
		if !p.known(w) {
			check(t, add(w, p))
			made++
		}
		c.Units = append(c.Units, features.Unit{Images: []features.Image{p.image()}})
	}
	counts := map[int64]int{}
	c.Row = func(label int64) { counts[label]++ }
	meta, err := w.Commit(t.Context(), c)
	check(t, err)
	if n := counts[-1] + counts[0] + counts[1]; n != meta.N {
		t.Fatalf("%d rows were told of, and there are %d", n, meta.N)
	}
	return made
}

// The rows of a source are on the disk. What becomes of them when runs are interrupted, and
// when sources change, is the set of one run.
func TestSources(t *testing.T) {
	a, b, c := newShelf("a.tar", "1", 0, 700), newShelf("b.tar", "1", 1000, 300), newShelf("c.tar", "1", 2000, 3)
	b.failed = []features.Failure{{Path: "b.tar#7.png", Error: "no image"}}
	loose := four[1]
	dir := filepath.Join(t.TempDir(), "set")
	same := func(what string, shelves ...shelf) {
		t.Helper()
		once := filepath.Join(t.TempDir(), "once")
		writeShelves(t, once, shelves, loose)
		if !maps.Equal(contents(t, dir), contents(t, once)) {
			t.Errorf("%s: the set differs from that of one run", what)
		}
	}

	// A run is interrupted within b, the next within c.
	w := create(t, dir, header, features.Options{})
	a.read(t, w)
	for _, p := range b.images[100:200] {
		check(t, add(w, p))
	}
	check(t, w.Close())
	w = create(t, dir, header, features.Options{})
	if n := a.read(t, w); n != 0 {
		t.Errorf("%d rows of a source that was finished were made again", n)
	}
	if n := b.read(t, w); n != 199 {
		t.Errorf("%d rows were made of a source that was begun, want 199", n)
	}
	check(t, add(w, c.images[1]))
	check(t, w.Close())
	if n := writeShelves(t, dir, []shelf{a, b, c}, loose); n != 3 {
		t.Errorf("%d rows were made in the end, want 3", n)
	}
	same("interrupted", a, b, c)

	// One source changes: it has another image, and one less. A run is interrupted in it.
	b.version, b.images = "2", append(slices.Clone(b.images[1:]), picture{"b.tar#new.png", 0, 5000})
	w = create(t, dir, header, features.Options{})
	if n := a.read(t, w) + b.read(t, w); n != 1 || !w.HasSource("a.tar") || w.HasSource("d.tar") {
		t.Errorf("%d rows were made of a source with one new image", n)
	}
	check(t, w.Close())
	if n := writeShelves(t, dir, []shelf{a, b, c}, loose); n != 0 {
		t.Errorf("%d rows were made when all was there", n)
	}
	same("changed", a, b, c)

	// One goes, and another changes back to what it was while a run of it is unfinished.
	w = create(t, dir, header, features.Options{})
	changed := newShelf("a.tar", "2", 9000, 5)
	if n := changed.read(t, w); n != 5 {
		t.Errorf("%d rows were made of a source that is another", n)
	}
	check(t, w.Close())
	writeShelves(t, dir, []shelf{a, c}, loose)
	same("back again", a, c)
}

// The memory of a writer does not grow with the images of finished sources.
func TestSourcesMemory(t *testing.T) {
	w := create(t, filepath.Join(t.TempDir(), "set"), header, features.Options{})
	live := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const sources, images = 50, 200
	var before uint64
	for i := range sources {
		if i == sources/5 {
			before = live()
		}
		newShelf(fmt.Sprintf("%03d.tar", i), "1", i*images, images).read(t, w)
	}
	if grown := int64(live()) - int64(before); grown > sources*images*20 {
		t.Errorf("%d bytes more for %d images", grown, sources*images*4/5)
	}
}
