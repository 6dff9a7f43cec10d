package features_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
)

// TestMachines: a set records the machines of its rows, in one run, in several or
// in shards, and another machine does not change the fingerprint.
func TestMachines(t *testing.T) {
	here, there := header, header
	here.Machine = features.Machine{Kernels: "avx2", Runtime: "1.31.1", Provider: "cpu", Products: "saturating"}
	there.Machine = features.Machine{Kernels: "avx512", Runtime: "1.31.1", Provider: "cpu", Products: "exact"}
	machines := func(dir string, want ...features.Machine) {
		t.Helper()
		set, err := features.Open(t.Context(), dir)
		check(t, err)
		defer set.Close()
		if !slices.Equal(set.Machines, want) || set.Mixed() != (len(want) > 1) {
			t.Errorf("%+v, mixed %v, want %+v", set.Machines, set.Mixed(), want)
		}
	}

	dir := filepath.Join(t.TempDir(), "set")
	commit(t, create(t, dir, here, features.Options{}), four[:2])
	machines(dir, here.Machine)
	commit(t, create(t, dir, there, features.Options{}), four[:2])
	machines(dir, here.Machine) // no row was made there
	commit(t, create(t, dir, there, features.Options{}), four)
	machines(dir, here.Machine, there.Machine)
	commit(t, create(t, dir, header, features.Options{}), four[2:])
	machines(dir, here.Machine, there.Machine) // it is not known which machine made which row

	// An interrupted run continues on another machine.
	dir = filepath.Join(t.TempDir(), "set")
	w := create(t, dir, there, features.Options{})
	check(t, add(w, four[0]))
	check(t, w.Close())
	commit(t, create(t, dir, here, features.Options{}), four)
	machines(dir, here.Machine, there.Machine)

	var shards []string
	for i, h := range []features.Header{here, there} {
		h.Shard = features.Shard{Index: i + 1, Count: 2}
		shard := filepath.Join(t.TempDir(), "shard")
		w := create(t, shard, h, features.Options{})
		c := features.Contents{Classes: classes, Part: &features.Part{Shard: h.Shard, Images: 2, Listing: "l"}}
		check(t, add(w, four[i]))
		c.Units = []features.Unit{{Images: []features.Image{four[i].image()}, Places: []int64{int64(i)}}}
		_, err := w.Commit(t.Context(), c)
		check(t, err)
		shards = append(shards, shard)
	}
	out := filepath.Join(t.TempDir(), "whole")
	meta, err := features.Merge(t.Context(), out, shards, features.Options{})
	check(t, err)
	machines(out, here.Machine, there.Machine)
	if !meta.Mixed() {
		t.Error("the merged set is said to be of one machine")
	}
	if (features.Meta{Machines: []features.Machine{{Kernels: "avx2"}, {Kernels: "go"}}}).Mixed() {
		t.Error("other kernels alone change no features, and there is a warning")
	}
}
