package report_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/report"
)

// foreignSet writes a feature set of format 1, without checksums, as another person
// may publish it.
func foreignSet(t *testing.T, root string, images ...features.Image) *features.Set {
	t.Helper()
	dir := t.TempDir()
	if err := npy.WriteFile(filepath.Join(dir, "features.npy"), make([]float32, 2*len(images)), len(images), 2); err != nil {
		t.Fatal(err)
	}
	labels := make([]int64, len(images))
	for i := range labels {
		labels[i] = -1
	}
	if err := npy.WriteFile(filepath.Join(dir, "labels.npy"), labels, len(labels)); err != nil {
		t.Fatal(err)
	}
	meta, err := json.Marshal(map[string]any{"version": 1, "n": len(images), "d": 2, "classes": []string{}, "root": root, "fingerprint": "f", "model": "m"})
	if err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for _, img := range images {
		line, err := json.Marshal(img)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&lines, "%s\n", line)
	}
	for name, text := range map[string]string{"features.json": string(meta), "images.jsonl": lines.String()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	set, err := features.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { set.Close() })
	return set
}

// TestImagesOfAForeignSet: another person's feature set cannot choose which of the
// user's files are shown.
func TestImagesOfAForeignSet(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	folder := func(name string) string {
		dir := filepath.Join(home, name)
		if err := os.MkdirAll(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	private, images, moved := folder("private"), folder("pictures/birds"), folder("moved")
	writePicture(t, filepath.Join(private, "letter.png"), 10)
	writePicture(t, filepath.Join(images, "wren.png"), 100)
	writePicture(t, filepath.Join(moved, "wren.png"), 100)
	writePicture(t, filepath.Join(images, "changed.png"), 200)
	for link, to := range map[string]string{"link.png": filepath.Join(private, "letter.png"), "away": private, "inside.png": "wren.png"} {
		if err := os.Symlink(to, filepath.Join(images, link)); err != nil {
			t.Fatal(err)
		}
	}
	hash := func(file string) string {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		return hex.EncodeToString(sum[:])
	}
	letter, wren := hash(filepath.Join(private, "letter.png")), hash(filepath.Join(images, "wren.png"))
	for _, c := range []struct {
		what       string
		roots      []string
		root, path string
		sha256     string
		shown      bool
	}{
		{"the user's own", nil, images, "wren.png", wren, true},
		{"a link that stays inside", nil, images, "inside.png", wren, true},
		{"another root, content unknown", nil, private, "letter.png", wren, false},
		{"another root, no hash", nil, private, "letter.png", "", false},
		{"changed since", nil, images, "changed.png", wren, false},
		{"up and out", nil, images, "../../private/letter.png", letter, false},
		{"absolute", nil, images, filepath.Join(private, "letter.png"), letter, false},
		{"a link out", nil, images, "link.png", letter, false},
		{"a linked folder", nil, images, "away/letter.png", letter, false},
		{"named", []string{images}, images, "wren.png", wren, true},
		{"named above", []string{filepath.Join(home, "pictures")}, images, "wren.png", wren, true},
		{"named, no hash", []string{images}, images, "wren.png", "", true},
		{"named, and moved there", []string{moved}, images, "wren.png", wren, true},
		{"the second is named", []string{private, images}, images, "wren.png", wren, true},
		{"another is named", []string{images}, private, "letter.png", letter, false},
		{"named, changed since", []string{images}, images, "changed.png", wren, false},
		{"named, up and out", []string{images}, images, "../../private/letter.png", letter, false},
		{"named, a link out", []string{images}, images, "link.png", letter, false},
		{"named, a linked folder", []string{images}, images, "away/letter.png", letter, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			set, err := report.FeatureSet("birds", "", c.roots, foreignSet(t, c.root, features.Image{Path: c.path, SHA256: c.sha256}))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := set.Image(0).Decode(); (err == nil) != c.shown {
				t.Errorf("shown %v, want %v: %v", err == nil, c.shown, err)
			}
		})
	}
}
