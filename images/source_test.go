package images

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	goimage "image"

	"github.com/mlrbfn/mlrbfn/internal/bucket"
	_ "github.com/mlrbfn/mlrbfn/internal/bucket/web"
)

// picture returns a PNG of one colour.
func picture(t testing.TB, shade uint8) []byte {
	t.Helper()
	img := goimage.NewGray(goimage.Rect(0, 0, 4, 4))
	for i := range img.Pix {
		img.Pix[i] = shade
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// member is a file in a tar.
type member struct {
	name string
	data []byte
}

func makeTar(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		err := w.WriteHeader(&tar.Header{Name: m.name, Size: int64(len(m.data)), Mode: 0o644, ModTime: time.Unix(1e9, 0)})
		if err == nil {
			_, err = w.Write(m.data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func write(t testing.TB, file string, data []byte) string {
	t.Helper()
	if err := os.WriteFile(file, data, 0o666); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestPlaces: paths are below the deepest folder of all units, and complete names stay.
func TestPlaces(t *testing.T) {
	web, err := bucket.Open(t.Context(), "https://host/a")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		root         string
		dirs, files  []string
		paths, names string
	}{
		{"/", []string{"/"}, []string{"x.tar"}, "x.tar", "/x.tar"},
		{"", []string{"/", "/a"}, []string{"x.tar", "y.tar"}, "/a/y.tar /x.tar", "/a/y.tar /x.tar"},
		{"/a", []string{"/a/c/", "/a/b"}, []string{"y/z.png", "x.png"}, "b/x.png c/y/z.png", "/a/b/x.png /a/c/y/z.png"},
		{"/a", []string{"/a", "/a", "/a"}, []string{"y.png", "x.png", "y.png"}, "x.png y.png", "/a/x.png /a/y.png"},
		{"", []string{"s3://a/", "s3://b/"}, []string{"x.png", "y.png"}, "s3://a/x.png s3://b/y.png", "s3://a/x.png s3://b/y.png"},
		{"s3://a", []string{"s3://a/", "s3://a/b/"}, []string{"x.png", "y.png"}, "b/y.png x.png", "s3://a/b/y.png s3://a/x.png"},
		{"https://host", []string{"https://host/a/", "https://host/b/"}, []string{"x.png?k=1/2", "y.png"}, "a/x.png b/y.png", "https://host/a/x.png?k=1/2 https://host/b/y.png"},
		{"https://host/a", []string{"https://host/a/", "https://host/a/"}, []string{"x?k=2", "x?k=1"}, "x?k=1 x?k=2", "https://host/a/x?k=1 https://host/a/x?k=2"},
	} {
		l := &sourceLister{origins: map[string]*origin{}}
		for i, dir := range c.dirs {
			folder := web
			if strings.HasPrefix(dir, "/") {
				folder = nil
			}
			l.Units = append(l.Units, Unit{Path: c.files[i], from: l.from(folder, dir)})
		}
		l.place()
		var paths, names []string
		for i := range l.Units {
			paths, names = append(paths, l.Units[i].Path), append(names, l.Units[i].Name())
		}
		if l.Root != c.root || strings.Join(paths, " ") != c.paths || strings.Join(names, " ") != c.names {
			t.Errorf("%q in %q: %q, %q, %q", c.files, c.dirs, l.Root, paths, names)
		}
	}
}

// readAll reads all units and returns "path label" of the images and the failures.
func readAll(t testing.TB, l *Sources, opts StreamOptions) (images, failed []string, contents []Contents) {
	t.Helper()
	units := make([]int, len(l.Units))
	for i := range units {
		units[i] = i
	}
	opts.Ended = func(_ int, c Contents) { contents = append(contents, c) }
	s := l.Stream(t.Context(), units, opts)
	defer s.Close()
	given := 0
	for {
		item, err := s.Next(t.Context())
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := item.SHA256(); err != nil {
			t.Errorf("%s: %v", item.Path, err)
		}
		given++
	}
	for _, c := range contents {
		given -= c.Given
		for _, img := range c.Images {
			images = append(images, strings.TrimSpace(img.Path+" "+img.Label))
		}
		for _, f := range c.Failed {
			failed = append(failed, fmt.Sprintf("%s: %v", f.Path, f.Err))
		}
	}
	if given != 0 {
		t.Errorf("%d more images were given than told", given)
	}
	return images, failed, contents
}

// TestLabels: members are grouped by their key as webdataset does, and .cls and .json
// name the class of all images of a key.
func TestSourceLabels(t *testing.T) {
	data := picture(t, 1)
	file := write(t, filepath.Join(t.TempDir(), "a.tar"), makeTar(t,
		member{"x/1.jpg", data}, member{"x/1.cls", []byte("3\n")}, member{"x/1.json", []byte(`{"label": "no"}`)},
		member{"x/2.json", []byte(`{"label": "cat"}`)}, member{"x/2.left.png", data}, member{"x/2.right.PNG", data},
		member{"y/2.jpg", data}, member{"z.json", []byte(`{"cls": 12, "text": "…"}`)}, member{"z.jpg", data},
		member{"notes.txt", []byte("no image")}, member{"._z.jpg", data}, member{"./plain", data},
	))
	l, err := ListSources(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	images, failed, contents := readAll(t, l, StreamOptions{})
	want := []string{"a.tar#x/1.jpg 3", "a.tar#x/2.left.png cat", "a.tar#x/2.right.PNG cat", "a.tar#y/2.jpg", "a.tar#z.jpg 12", "a.tar#plain"}
	if !slices.Equal(images, want) || len(failed) > 0 || !contents[0].Complete {
		t.Errorf("%q, failures %q, want %q", images, failed, want)
	}
}

// TestDamage: whatever is wrong with a tar is listed, and all that is whole is read.
func TestDamage(t *testing.T) {
	data := picture(t, 1)
	var members []member
	for i := range 6 {
		members = append(members, member{fmt.Sprintf("%d.png", i), data})
	}
	whole := makeTar(t, members...)
	const each = 1024 // header and data
	garbage := slices.Clone(whole)
	copy(garbage[2*each:], bytes.Repeat([]byte{0xa5}, 512))
	for _, test := range []struct {
		name, fails string
		data        []byte
		images      int
	}{
		{"whole", "", whole, 6},
		{"empty", "without the mark", nil, 0},
		{"cut within an image", "cut off within 3.png", whole[:3*each+532], 3},
		{"cut within a header", "cut off after byte 3072", whole[:3*each+100], 3},
		{"without an end", "without the mark", whole[:6*each], 6},
		{"garbage for a header", "damaged from byte 2048 to 3072", garbage, 5},
		{"garbage at the end", "damaged", append(slices.Clone(whole[:6*each]), bytes.Repeat([]byte{7}, 700)...), 6},
		{"twice the same", "more than once", makeTar(t, members[0], members[1], members[0]), 2},
		{"all garbage", "damaged", bytes.Repeat([]byte("garbage "), 1000), 0},
		{"a label that is none", "label", makeTar(t, members[0], member{"0.json", []byte("{")}), 1},
	} {
		for _, name := range []string{"a.tar"} {
			l, err := ListSources(t.Context(), write(t, filepath.Join(t.TempDir(), name), test.data))
			if err != nil {
				t.Fatal(err)
			}
			images, failed, contents := readAll(t, l, StreamOptions{})
			if len(images) != test.images || !contents[0].Complete {
				t.Errorf("%s: images %q", test.name, images)
			}
			if text := strings.Join(failed, "\n"); (test.fails == "") != (text == "") || !strings.Contains(text, test.fails) {
				t.Errorf("%s: failures %q, want %q", test.name, text, test.fails)
			}
		}
	}
}

// TestListing: what names stand for, in which order and below which root.
func TestListing(t *testing.T) {
	dir := t.TempDir()
	data := makeTar(t, member{"1.png", picture(t, 1)})
	for i := range 11 {
		write(t, filepath.Join(dir, fmt.Sprintf("%03d.tar", i)), data)
	}
	list := write(t, filepath.Join(dir, "list.txt"), []byte("\ufeff# tars\n003.tar\n./001.tar\n"))
	paths := func(names ...string) string {
		l, err := ListSources(context.Background(), names...)
		if err != nil {
			return err.Error()
		}
		if l.Root != filepath.ToSlash(dir) {
			t.Errorf("the root of %q is %s", names, l.Root)
		}
		var paths []string
		for _, u := range l.Units {
			paths = append(paths, u.Path)
		}
		return strings.Join(paths, " ")
	}
	for _, test := range [][2]string{
		{filepath.Join(dir, "{008..010}.tar"), "008.tar 009.tar 010.tar"},
		{filepath.Join(dir, "00{7,1}.tar"), "001.tar 007.tar"},
		{filepath.Join(dir, "01*.tar"), "010.tar"},
		{list, "001.tar 003.tar"},
	} {
		if got := paths(test[0]); got != test[1] {
			t.Errorf("%s: %s, want %s", test[0], got, test[1])
		}
	}
	if got := paths(filepath.Join(dir, "{001..003}.tar"), filepath.Join(dir, "00[23].tar")); got != "001.tar 002.tar 003.tar" {
		t.Errorf("named twice: %s", got)
	}
	for name, want := range map[string]string{"{5..1}.tar": "no range", "{000000001..900000000}.tar": "no range", "{1,2}/none.tar": "none of 2", "q*.tar": "nothing is called"} {
		if got := paths(filepath.Join(dir, name)); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestBounds: no more than the memory that is allowed is taken by images that wait; those
// that were taken do not count, as a batch may need more than that.
func TestBounds(t *testing.T) {
	big := append(picture(t, 1), make([]byte, 3<<20)...)
	file := write(t, filepath.Join(t.TempDir(), "a.tar"), makeTar(t, member{"1.png", big}, member{"2.png", big}, member{"3.png", big}))
	l, err := ListSources(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	s := l.Stream(t.Context(), []int{0}, StreamOptions{Memory: 8 << 20})
	defer s.Close()
	for want := range 3 {
		time.Sleep(20 * time.Millisecond)
		if n := len(s.out); n > 1 {
			t.Errorf("%d images wait, which have more than half of the memory", n)
		}
		if item, err := s.Next(t.Context()); err != nil {
			t.Fatalf("image %d: %s, %v", want+1, item.Path, err)
		}
	}
}
