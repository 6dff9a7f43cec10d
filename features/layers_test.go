package features_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
)

var layers = []features.Layer{{Name: "block.1", D: 3, Pool: "mean"}, {Name: "block.2", D: 1}}

// layered returns a header with layers, and how a row of it is added.
func layered() (features.Header, func(w *features.Writer, p picture) error) {
	h := header
	h.Layers, h.Embedding, h.Fingerprint = layers, header.Fingerprint, features.LayersFingerprint(header.Fingerprint, layers)
	return h, func(w *features.Writer, p picture) error {
		s := float32(p.seed)
		return w.Append(p.image(), []float32{s + 0.5, -s, 10 * s, 11 * s, 12 * s, 13 * s}, []float32{s, s + 1, s + 2})
	}
}

func layeredSet(t testing.TB, dir string, pictures ...picture) {
	h, add := layered()
	w := create(t, dir, h, features.Options{})
	var listing []features.Image
	for _, p := range pictures {
		if !p.known(w) {
			check(t, add(w, p))
		}
		listing = append(listing, p.image())
	}
	_, err := w.Commit(t.Context(), features.Contents{Units: []features.Unit{{Images: listing}}, Classes: classes})
	check(t, err)
}

// TestLayers: layers lie beside the features, which stay what they are without them, survive
// another run that adds images, and are read with them only when asked for.
func TestLayers(t *testing.T) {
	dir, plain := filepath.Join(t.TempDir(), "set"), filepath.Join(t.TempDir(), "plain")
	layeredSet(t, dir, four[:3]...)
	layeredSet(t, dir, four...)
	commit(t, create(t, plain, header, features.Options{}), four)
	for _, name := range []string{"features.npy", "logits.npy", "labels.npy", "images.jsonl"} {
		want, err := os.ReadFile(filepath.Join(plain, name))
		check(t, err)
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != string(want) {
			t.Errorf("%s is not that of the set without layers: %v", name, err)
		}
	}
	s, other := open(t, dir), open(t, plain)
	check(t, s.Verify(t.Context()), features.SameSpace(s, other))
	same(t, func() *features.Set { other.Fingerprint, other.Embedding = s.Fingerprint, s.Embedding; return other }(), s)
	if got, want := s.RowLayers(2), []float32{30, 33, 36, 39}; !slices.Equal(got, want) || other.RowLayers(2) != nil {
		t.Errorf("layers %v, want %v", got, want)
	}
	check(t, s.With([]features.Layer{layers[1], layers[0]}))
	want := []float32{4.5, -4, 52, 40, 44, 48}
	if got := s.Row(3); s.D != 6 || s.InPlace() || !slices.Equal(got, want) || !slices.Equal(s.Block(2, 4)[6:], want) || !slices.Equal(s.Features()[18:], want) {
		t.Errorf("row %v and block %v of %d, want %v", got, s.Block(2, 4), s.D, want)
	}
	some := make([]float32, 3)
	check(t, s.Pages().Read(some, 3*6+2), features.SameSpace(s, other))
	if !slices.Equal(some, want[2:5]) {
		t.Errorf("values %v, want %v", some, want[2:5])
	}
	check(t, s.With(nil))
	if got := s.Row(3); s.D != 2 || !slices.Equal(got, want[:2]) {
		t.Errorf("row %v of %d without layers", got, s.D)
	}
	if err := other.With(layers); !errors.Is(err, features.ErrLayers) {
		t.Errorf("a set without layers: %v", err)
	}
	if err := s.With([]features.Layer{{Name: "block.1", D: 4}}); !errors.Is(err, features.ErrLayers) {
		t.Errorf("a layer of another size: %v", err)
	}
}

// TestLayersAreContent: what a training reads has changed when layers have, and damage to
// them is found.
func TestLayersAreContent(t *testing.T) {
	dir, plain := filepath.Join(t.TempDir(), "set"), filepath.Join(t.TempDir(), "plain")
	layeredSet(t, dir, four...)
	commit(t, create(t, plain, header, features.Options{}), four)
	a, err := open(t, dir).Content(t.Context())
	check(t, err)
	if b, err := open(t, plain).Content(t.Context()); err != nil || a == b {
		t.Errorf("content %s with and without layers, %v", a, err)
	}
	file := filepath.Join(dir, "layers.npy")
	data, err := os.ReadFile(file)
	check(t, err)
	data[len(data)-1] ^= 1
	check(t, os.WriteFile(file, data, 0o666))
	if err := open(t, dir).Verify(t.Context()); !errors.Is(err, features.ErrDamaged) {
		t.Errorf("altered layers: %v", err)
	}
	check(t, os.WriteFile(file, data[:len(data)-4], 0o666))
	if _, err := features.Open(t.Context(), dir); !errors.Is(err, features.ErrDamaged) {
		t.Errorf("layers cut short: %v", err)
	}
	h, _ := layered()
	if _, err := features.Create(t.Context(), plain, h, features.Options{}); !errors.Is(err, features.ErrFingerprint) {
		t.Errorf("layers onto a set without: %v", err)
	}
}

// TestPatchesFile: the model of patches that a layer is by lies in the set and in what is made
// of it, and is missed where it is gone.
func TestPatchesFile(t *testing.T) {
	dir, merged := t.TempDir(), filepath.Join(t.TempDir(), "merged")
	h := header
	h.Layers, h.Patches = []features.Layer{{Name: "patches of a", D: 4, Pool: features.PatchesPool + "1234"}}, []byte("a model")
	h.Embedding, h.Fingerprint = header.Fingerprint, features.LayersFingerprint(header.Fingerprint, h.Layers)
	var shards []string
	for i := range 2 {
		h.Shard = features.Shard{Index: i + 1, Count: 2}
		shards = append(shards, filepath.Join(dir, h.Shard.String()[:1]))
		w := create(t, shards[i], h, features.Options{})
		s := float32(four[i].seed)
		check(t, w.Append(four[i].image(), []float32{s, -s, 1, 2, 3, 4}, []float32{s, 1, 2}))
		_, err := w.Commit(t.Context(), features.Contents{
			Units:   []features.Unit{{Images: []features.Image{four[i].image()}, Places: []int64{int64(i)}}},
			Classes: classes, Part: &features.Part{Shard: h.Shard, Images: 2, Listing: "listing"},
		})
		check(t, err)
	}
	_, err := features.Merge(t.Context(), merged, shards, features.Options{})
	check(t, err)
	for _, at := range append(shards, merged) {
		s := open(t, at)
		check(t, s.Verify(t.Context()))
		if data, err := s.Patches(); err != nil || string(data) != "a model" || !s.Layers[0].OfPatches() {
			t.Errorf("%s has the model of patches %q: %v", at, data, err)
		}
	}
	check(t, os.Remove(filepath.Join(merged, "patches.safetensors")))
	if s, err := features.Open(t.Context(), merged); err == nil {
		if _, err := s.Patches(); err == nil {
			t.Error("a set without its model of patches says nothing")
		}
	}
}
