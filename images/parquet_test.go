package images_test

import (
	"bytes"
	"image"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/mlrbfn/mlrbfn/images"
)

type file struct {
	Bytes []byte `parquet:"bytes,optional"`
	Path  string `parquet:"path,optional"`
}

// row is what the library datasets writes for images with labels.
type row struct {
	Image *file `parquet:"image,optional"`
	Label int64 `parquet:"label"`
}

type reference struct {
	Path  string `parquet:"path"`
	Label string `parquet:"label"`
}

func write[T any](t *testing.T, name string, rows []T, options ...parquet.WriterOption) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := parquet.NewGenericWriter[T](f, options...)
	for part := range slices.Chunk(rows, 40) { // several row groups
		if _, err := w.Write(part); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func picture(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, 3, 3))); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func read(t *testing.T, name string) (members, failed []string) {
	t.Helper()
	l, err := images.ListSources(t.Context(), name)
	if err != nil {
		return nil, []string{err.Error()}
	}
	var units []int
	for i := range l.Units {
		units = append(units, i)
	}
	s := l.Stream(t.Context(), units, images.StreamOptions{Ended: func(_ int, c images.Contents) {
		for _, img := range c.Images {
			members = append(members, img.Path+" "+img.Label)
		}
		for _, f := range c.Failed {
			failed = append(failed, f.Path+": "+f.Err.Error())
		}
	}})
	defer s.Close()
	for {
		item, err := s.Next(t.Context())
		if err == io.EOF {
			return members, failed
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := item.SHA256(); err != nil {
			t.Error(err)
		}
	}
}

// TestBytes: images in a column, as datasets writes them, with the names of their classes.
func TestBytes(t *testing.T) {
	var rows []row
	for i := range 100 {
		rows = append(rows, row{&file{picture(t), "x.png"}, int64(i % 3)})
	}
	rows[7].Image = nil
	name := filepath.Join(t.TempDir(), "a.parquet")
	write(t, name, rows, parquet.KeyValueMetadata("huggingface", `{"info": {"features": {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}`))
	members, failed := read(t, name)
	if len(members) != 99 || !slices.Equal(members[:3], []string{"a.parquet#0 cat", "a.parquet#1 dog", "a.parquet#2 2"}) || members[98] != "a.parquet#99 cat" {
		t.Errorf("%d members: %q", len(members), members)
	}
	if !slices.Equal(failed, []string{"a.parquet#7: the row has no image"}) {
		t.Errorf("failures %q", failed)
	}
}

// TestPaths: a table of paths stands for the images that it names.
func TestPaths(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"1.png", "2.png"} {
		if err := os.WriteFile(filepath.Join(dir, name), picture(t), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	name := filepath.Join(dir, "a.parquet")
	write(t, name, []reference{{"2.png", "b"}, {"1.png", "a"}})
	if members, failed := read(t, name); !slices.Equal(members, []string{"1.png a", "2.png b"}) || failed != nil {
		t.Errorf("%q, failures %q", members, failed)
	}
}

// TestDamaged: a malformed file is an error, and nothing worse.
func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a.parquet")
	write(t, name, []row{{&file{picture(t), "x"}, 1}})
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(whole); at += 3 {
		for _, data := range [][]byte{whole[:at], append(slices.Clone(whole[:at]), slices.Concat([]byte{whole[at] ^ 0xff}, whole[at+1:])...)} {
			if err := os.WriteFile(name, data, 0o666); err != nil {
				t.Fatal(err)
			}
			if members, failed := read(t, name); len(members) > 1 || len(members)+len(failed) == 0 && len(data) < len(whole) {
				t.Errorf("byte %d: %q, failures %q", at, members, strings.Join(failed, " "))
			}
		}
	}
}
