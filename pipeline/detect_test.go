package pipeline

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/pipeline/internal/pipetest"
)

func TestListPaths(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a/2.png", "a/1.png", "top.png", "notes.txt", "empty/readme.txt"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, nil, 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	in := func(name string) string { return filepath.ToSlash(filepath.Join(dir, name)) }
	tests := map[string]struct {
		paths []string
		want  []string
		err   error
	}{
		"a folder":               {paths: []string{"."}, want: []string{"a/1.png", "a/2.png", "top.png"}},
		"files as named":         {paths: []string{"top.png", "notes.txt"}, want: []string{"top.png", "notes.txt"}},
		"in the order of naming": {paths: []string{"top.png", "a"}, want: []string{"top.png", "a/1.png", "a/2.png"}},
		"an absent one of two":   {paths: []string{"gone.png", "top.png"}, want: []string{"gone.png", "top.png"}},
		"absent":                 {paths: []string{"gone.png", "gone"}, err: fs.ErrNotExist},
		"nothing in it":          {paths: []string{"empty"}, err: images.ErrNoImages},
		"nothing in one of two":  {paths: []string{"empty", "top.png"}, want: []string{"top.png"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var paths, want, got []string
			for _, p := range tt.paths {
				paths = append(paths, in(p))
			}
			for _, p := range tt.want {
				want = append(want, in(p))
			}
			items, err := listPaths(t.Context(), paths, "", true)
			for _, item := range items {
				got = append(got, pathOf(item))
			}
			if !errors.Is(err, tt.err) || tt.err == nil && !slices.Equal(got, want) {
				t.Errorf("got %v, %v; want %v, %v", got, err, want, tt.err)
			}
		})
	}
}

func TestOrdered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		indices := make([]int, rapid.IntRange(0, 50).Draw(t, "n"))
		for i := range indices {
			indices[i] = i
		}
		var got []int
		put := ordered(func(v int) error { got = append(got, v); return nil })
		for _, i := range rapid.Permutation(indices).Draw(t, "order") {
			if err := put(i, i); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(got, indices) {
			t.Fatalf("came out as %v", got)
		}
	})
}

// quick are options that train in a moment.
func quick(dirs ...string) TrainOptions {
	o := TrainOptions{Features: dirs}
	pipetest.Small(&o.Head, &o.Train)
	return o
}
