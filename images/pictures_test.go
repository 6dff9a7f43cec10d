package images_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"image"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/images"
	"github.com/mlrbfn/mlrbfn/internal/npy"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
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
	set, err := features.Open(t.Context(), dir)
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
	private, birds, moved := folder("private"), folder("pictures/birds"), folder("moved")
	writePicture(t, filepath.Join(private, "letter.png"), 10)
	writePicture(t, filepath.Join(birds, "wren.png"), 100)
	writePicture(t, filepath.Join(moved, "wren.png"), 100)
	writePicture(t, filepath.Join(birds, "changed.png"), 200)
	for link, to := range map[string]string{"link.png": filepath.Join(private, "letter.png"), "away": private, "inside.png": "wren.png"} {
		if err := os.Symlink(to, filepath.Join(birds, link)); err != nil {
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
	letter, wren := hash(filepath.Join(private, "letter.png")), hash(filepath.Join(birds, "wren.png"))
	for _, c := range []struct {
		what       string
		roots      []string
		root, path string
		sha256     string
		shown      bool
	}{
		{"the user's own", nil, birds, "wren.png", wren, true},
		{"a link that stays inside", nil, birds, "inside.png", wren, true},
		{"another root, content unknown", nil, private, "letter.png", wren, false},
		{"another root, no hash", nil, private, "letter.png", "", false},
		{"changed since", nil, birds, "changed.png", wren, false},
		{"up and out", nil, birds, "../../private/letter.png", letter, false},
		{"absolute", nil, birds, filepath.Join(private, "letter.png"), letter, false},
		{"a link out", nil, birds, "link.png", letter, false},
		{"a linked folder", nil, birds, "away/letter.png", letter, false},
		{"named", []string{birds}, birds, "wren.png", wren, true},
		{"named above", []string{filepath.Join(home, "pictures")}, birds, "wren.png", wren, true},
		{"named, no hash", []string{birds}, birds, "wren.png", "", true},
		{"named, and moved there", []string{moved}, birds, "wren.png", wren, true},
		{"the second is named", []string{private, birds}, birds, "wren.png", wren, true},
		{"another is named", []string{birds}, private, "letter.png", letter, false},
		{"named, changed since", []string{birds}, birds, "changed.png", wren, false},
		{"named, up and out", []string{birds}, birds, "../../private/letter.png", letter, false},
		{"named, a link out", []string{birds}, birds, "link.png", letter, false},
		{"named, a linked folder", []string{birds}, birds, "away/letter.png", letter, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			set, err := images.FeatureSet("birds", "", c.roots, foreignSet(t, c.root, features.Image{Path: c.path, SHA256: c.sha256}))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := set.Image(0).Decode(); (err == nil) != c.shown {
				t.Errorf("shown %v, want %v: %v", err == nil, c.shown, err)
			}
		})
	}
}

func writePicture(t *testing.T, file string, grey uint8) {
	t.Helper()
	img := image.NewGray(image.Rect(0, 0, 12, 8))
	for i := range img.Pix {
		img.Pix[i] = grey
	}
	testenv.SavePNG(t, file, img)
}
