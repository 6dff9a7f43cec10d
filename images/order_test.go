package images

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	_ "github.com/mlrbfn/mlrbfn/internal/testenv"
)

// TestListInOrder lists trees whose names differ in what sorts around a slash.
func TestListInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.StringMatching(`[a!.0-]{1,2}x`)
		root := t.TempDir()
		for _, file := range rapid.SliceOfN(rapid.SliceOfN(name, 0, 3), 1, 12).Draw(rt, "files") {
			dir := filepath.Join(root, filepath.Join(file...))
			if err := os.MkdirAll(dir, 0o777); err != nil {
				rt.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, rapid.StringMatching(`[a!.0-]{1,2}`).Draw(rt, "name")+"y.png"), nil, 0o666); err != nil {
				rt.Fatal(err)
			}
		}
		l, err := List(t.Context(), ListOptions{Root: root})
		if errors.Is(err, ErrNoImages) {
			return // all are in hidden folders
		}
		if err != nil {
			rt.Fatal(err)
		}
		var listed []string
		for _, item := range l.Items {
			listed = append(listed, item.Path)
			class := "-"
			if item.Label >= 0 {
				class = l.Classes[item.Label]
			}
			if first, _, deep := strings.Cut(item.Path, "/"); deep && class != first || !deep && class != "-" {
				rt.Errorf("%s is of class %s", item.Path, class)
			}
		}
		if !slices.IsSorted(listed) || !slices.IsSorted(l.Classes) {
			rt.Errorf("listed %q, classes %q", listed, l.Classes)
		}
	})
}

func TestListStops(t *testing.T) {
	root := tree(t, "a/1.png", "a/2.png", "b/notes.txt")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := List(ctx, ListOptions{Root: root}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
