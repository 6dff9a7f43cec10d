package images

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// tree makes a folder of the named files; those that end in .png or .jpg and
// those that begin with "image" are images.
func tree(t *testing.T, files ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, file := range files {
		text := "no image"
		if strings.HasPrefix(filepath.Base(file), "image") {
			text = "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
		}
		if strings.HasSuffix(file, "/") {
			if err := os.MkdirAll(filepath.Join(root, file), 0o777); err != nil {
				t.Fatal(err)
			}
		} else {
			writeText(t, filepath.Join(root, file), text)
		}
	}
	return root
}

// show returns "path class" for each item, "-" for none.
func show(l *Listing) []string {
	var lines []string
	for _, item := range l.Items {
		class := "-"
		if item.Label >= 0 {
			class = l.Classes[item.Label]
		}
		lines = append(lines, item.Path+" "+class)
	}
	return lines
}

func TestListTree(t *testing.T) {
	for _, test := range []struct {
		name    string
		files   []string
		want    []string
		skipped int
		hidden  int
	}{
		{"classes, deep and shallow",
			[]string{"dog/1.png", "cat/sub/2.jpg", "cat/1.png"},
			[]string{"cat/1.png cat", "cat/sub/2.jpg cat", "dog/1.png dog"}, 0, 0},
		{"flat",
			[]string{"b.png", "a.jpg"},
			[]string{"a.jpg -", "b.png -"}, 0, 0},
		{"flat with a folder of notes",
			[]string{"a.png", "notes/readme.txt"},
			[]string{"a.png -"}, 1, 0},
		{"mixed",
			[]string{"b.png", "a/1.png", "c/1.png"},
			[]string{"a/1.png a", "b.png -", "c/1.png c"}, 0, 0},
		{"what is no image is skipped",
			[]string{".DS_Store", "labels.csv", "a/1.png", "a/._1.png", "a/.DS_Store", "a/b/notes.txt", ".git/config"},
			[]string{"a/1.png a"}, 5, 1},
		{"hidden and system folders are no classes",
			[]string{".hidden/1.png", "@eaDir/1.png", "__MACOSX/a/1.png", "lost+found/1.png", "$RECYCLE.BIN/1.png", ".ipynb_checkpoints/1.png", "a/1.png", "a/@eaDir/2.png", "a/b/.thumbs/3.png", "a/b/4.png", "lost/5.png"},
			[]string{"a/1.png a", "a/b/4.png a", "lost/5.png lost"}, 0, 8},
		{"an image by its content",
			[]string{"a/image", "a/image.txt", "a/empty.dat"},
			[]string{"a/image a", "a/image.txt a"}, 1, 0},
		{"odd names",
			[]string{"a b/c d.png", "a b/new\nline.png", "a b/100%.png", "a b/%20.png", "ü/é.png"},
			[]string{"a b/%20.png a b", "a b/100%.png a b", "a b/c d.png a b", "a b/new\nline.png a b", "ü/é.png ü"}, 0, 0},
		{"bytes that are not UTF-8",
			[]string{"\xff/\xfe.png", "%/1.png", "z/1.png"},
			[]string{"%/1.png %", "z/1.png z", "\xff/\xfe.png \xff"}, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			if names := strings.Join(test.files, ""); filepath.Separator == '\\' && (!utf8.ValidString(names) || strings.Contains(names, "\n")) {
				t.Skip("no such names on Windows")
			}
			root := tree(t, test.files...)
			l, err := List(t.Context(), ListOptions{Root: root})
			if err != nil {
				t.Fatal(err)
			}
			if got := show(l); !slices.Equal(got, test.want) {
				t.Errorf("got %q\nwant %q", got, test.want)
			}
			if l.Skipped != test.skipped || l.Hidden != test.hidden || len(l.Errors) != 0 {
				t.Errorf("%d skipped, %d hidden, errors %v; want %d, %d and none", l.Skipped, l.Hidden, l.Errors, test.skipped, test.hidden)
			}
			if !slices.IsSorted(l.Classes) {
				t.Errorf("classes %q are not sorted", l.Classes)
			}
			for _, item := range l.Items {
				info, err := os.Stat(item.File)
				if err != nil {
					t.Error(err)
				} else if item.Bytes != info.Size() || item.MTime != info.ModTime().UnixNano() {
					t.Errorf("%s: %d bytes at %d, want %d at %d", item.Path, item.Bytes, item.MTime, info.Size(), info.ModTime().UnixNano())
				}
				if back := filepath.Join(root, filepath.FromSlash(item.Path)); back != item.File {
					t.Errorf("%s leads to %q, not %q", item.Path, back, item.File)
				}
			}
		})
	}
}

func TestListErrors(t *testing.T) {
	root := tree(t, "class/1.png", "empty/readme.txt", "void/")
	for _, test := range []struct {
		name  string
		opts  ListOptions
		is    error
		texts []string
	}{
		{"missing root", ListOptions{Root: filepath.Join(root, "absent")}, fs.ErrNotExist, []string{"absent"}},
		{"root is a file", ListOptions{Root: filepath.Join(root, "class", "1.png")}, nil, []string{"1.png is a file"}},
		{"no images", ListOptions{Root: filepath.Join(root, "empty")}, ErrNoImages, []string{"empty"}},
		{"only empty classes", ListOptions{Root: tree(t, "a/", "b/x.txt")}, ErrNoImages, []string{"no images"}},
		{"missing list", ListOptions{Root: root, ListFile: filepath.Join(root, "absent.txt")}, fs.ErrNotExist, []string{"absent.txt"}},
		{"list of another root", ListOptions{Root: root, ListFile: listFile(t, "a/1.png 0\n")}, ErrNoImages, []string{root, `"a/1.png"`}},
		{"empty list", ListOptions{Root: root, ListFile: listFile(t, "\n")}, ErrNoImages, []string{"path label"}},
		{"wrong line", ListOptions{Root: root, ListFile: listFile(t, "\nclass/1.png\n")}, nil, []string{"list.txt", "line 2", "class/1.png"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := List(t.Context(), test.opts)
			wantError(t, err, test.texts...)
			if test.is != nil && !errors.Is(err, test.is) {
				t.Errorf("%v is not %v", err, test.is)
			}
		})
	}
}

func TestListEmptyClasses(t *testing.T) {
	for _, test := range []struct{ files, items, empty []string }{
		{[]string{"class/1.png", "empty/readme.txt", "void/", ".git/"}, []string{"class/1.png class"}, []string{"empty", "void"}},
		{[]string{"1.png", "notes/readme.txt"}, []string{"1.png -"}, nil},
	} {
		l, err := List(t.Context(), ListOptions{Root: tree(t, test.files...)})
		if err != nil || !slices.Equal(show(l), test.items) || !slices.Equal(l.Empty, test.empty) {
			t.Errorf("%q: %+v, %v", test.files, l, err)
		}
	}
}

func TestListFollowsLinksButNotInCircles(t *testing.T) {
	root := tree(t, "a/1.png", "b/1.png")
	elsewhere := tree(t, "2.png")
	for link, target := range map[string]string{
		"a/loop":     root,
		"a/self":     ".",
		"b/2.png":    filepath.Join(elsewhere, "2.png"),
		"b/more":     elsewhere,
		"b/gone.png": "nowhere",
		"here":       ".",
		"b/up":       "..",
	} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Skip(err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "b", "2.png")); err != nil {
		t.Skip("no links here, as under Wine")
	}
	l, err := List(t.Context(), ListOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"a/1.png a", "b/1.png b", "b/2.png b", "b/more/2.png b"}
	if got := show(l); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(l.Errors) != 1 || l.Errors[0].Path != "b/gone.png" {
		t.Errorf("errors %v, want one of b/gone.png", l.Errors)
	}
}

func TestListGoesOnPastUnreadableFolders(t *testing.T) {
	root := tree(t, "a/1.png", "b/1.png", "b/closed/2.png", "closed/1.png")
	for _, dir := range []string{"b/closed", "closed"} {
		if err := os.Chmod(filepath.Join(root, dir), 0); err != nil {
			t.Fatal(err)
		}
		defer os.Chmod(filepath.Join(root, dir), 0o777)
	}
	if _, err := os.ReadDir(filepath.Join(root, "closed")); err == nil {
		t.Skip("this user can read everything")
	}
	l, err := List(t.Context(), ListOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := show(l), []string{"a/1.png a", "b/1.png b"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if len(l.Errors) != 2 || !errors.Is(l.Errors[0], fs.ErrPermission) {
		t.Errorf("errors %v, want two about permission", l.Errors)
	}
}

func listFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "list.txt")
	writeText(t, file, text)
	return file
}

func TestListFile(t *testing.T) {
	root := tree(t, "set/test/cat/1.png", "set/test/dog/2 x.png", "set/test/dog/1.png", "set/other/3.png", "set/test/cat/unlisted.png")
	l, err := List(t.Context(), ListOptions{Root: root, ListFile: listFile(t,
		"set/test/dog/2 x.png 7\r\nset/test/cat/1.png 10\nset/other/3.png -1\n\nset/test/dog/1.png\t7\nset/test/cat/missing.png 10")})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"set/other/3.png -", "set/test/cat/1.png cat", "set/test/cat/missing.png cat", "set/test/dog/1.png dog", "set/test/dog/2 x.png dog"}
	if got := show(l); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if want := []string{"dog", "cat"}; !slices.Equal(l.Classes, want) {
		t.Errorf("classes %q, want them in the order of the integers: %q", l.Classes, want)
	}
	if l.Items[2].Bytes != 0 || l.Items[1].Bytes == 0 {
		t.Errorf("sizes %d and %d of a missing and a present file", l.Items[2].Bytes, l.Items[1].Bytes)
	}
}

// OpenOOD's list of ImageNet's test images has one folder for all classes.
func TestListNames(t *testing.T) {
	root := tree(t, "val/1.png", "val/2.png")
	opts := ListOptions{
		Root: root, ListFile: listFile(t, "val/1.png 1\nval/2.png 0\n"),
		NamesFile: listFile(t, "train/tench/1.png 0\ntrain/shark/2.png 1\ntrain/hen/3.png 2\n"),
	}
	l, err := List(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := show(l), []string{"val/1.png shark", "val/2.png tench"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	opts.NamesFile = listFile(t, "train/tench/1.png 0\n")
	_, err = List(t.Context(), opts)
	wantError(t, err, "label 1", opts.ListFile, opts.NamesFile)
}

func TestClassNames(t *testing.T) {
	for _, test := range []struct {
		name, list string
		want       map[int64]string
	}{
		{"the folder of the images", "c/test/cat/1 0\nc/test/dog/1 1\nc/test/dog/2 1", map[int64]string{0: "cat", 1: "dog"}},
		{"in train and test", "c/test/cat/1 0\nc/train/cat/1 0\nc/test/dog/1 1\nc/train/dog/2 1", map[int64]string{0: "cat", 1: "dog"}},
		{"at different depths", "cat/1 0\nx/y/cat/sub/1 0\ndog/1 1", map[int64]string{0: "cat", 1: "dog"}},
		{"all in one folder", "c/1 0\nc/2 1\nc/3 10", map[int64]string{0: "0", 1: "1", 10: "10"}},
		{"no folder", "1 0\n2 1", map[int64]string{0: "0", 1: "1"}},
		{"one label", "c/test/cat/1 3", map[int64]string{3: "cat"}},
		{"one class is spread", "cat/1 0\ndog/1 1\nwolf/1 1\nelk/1 2", map[int64]string{0: "cat", 1: "1", 2: "elk"}},
		{"two labels share a folder", "cat/1 0\ncat/2 1\nelk/1 2", map[int64]string{0: "0", 1: "1", 2: "elk"}},
		{"those without a label do not count", "cat/1 0\ncat/2 -1\ndog/1 1", map[int64]string{0: "cat", 1: "dog"}},
		{"folders called like other labels", "1/1 0\na/1 1\nb/1 1\n0/1 5", map[int64]string{0: "0", 1: "1", 5: "5"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			entries, err := parseList(test.list)
			if err != nil {
				t.Fatal(err)
			}
			if got := classNames(entries); !maps.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

func TestParseListErrors(t *testing.T) {
	for list, texts := range map[string][]string{
		"a.png":                     {"line 1", "a.png"},
		"a.png 0\nb.png one":        {"line 2", `"one"`},
		"a.png 0\nb.png -2":         {"line 2", `"-2"`},
		"a.png 1.5":                 {"line 1", `"1.5"`},
		"../a.png 0":                {"line 1", "../a.png"},
		"x/../../a.png 0":           {"line 1"},
		"/a.png 0":                  {"line 1", "/a.png"},
		"a.png 0\n./a.png 1":        {"line 2", "line 1 already"},
		"a.png 9999999999999999999": {"line 1"},
	} {
		_, err := parseList(list)
		wantError(t, err, texts...)
	}
}

// TestListOpenOOD lists what OpenOOD's own lists name of the trees at hand.
func TestListOpenOOD(t *testing.T) {
	root := testenv.Shared(t, "data", "images")
	for name, want := range map[string]int{"train_cifar10": 10, "test_cifar10": 10, "test_cifar100": 0, "test_tin": 0, "test_texture": 0} {
		l, err := List(t.Context(), ListOptions{Root: root, ListFile: testenv.Shared(t, "data", "lists", "subset", name+".txt")})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(l.Classes) != want || want == 10 && l.Classes[3] != "cat" {
			t.Errorf("%s: classes %q, want %d", name, l.Classes, want)
		}
		for _, item := range l.Items {
			// Of the textures only some classes are at hand.
			if item.Bytes == 0 && name != "test_texture" {
				t.Errorf("%s: %s is absent", name, item.Path)
			}
			if item.Label >= 0 && l.Classes[item.Label] != filepath.Base(filepath.Dir(item.File)) {
				t.Errorf("%s: %s is of class %s", name, item.Path, l.Classes[item.Label])
			}
		}
	}
}

func FuzzParseList(f *testing.F) {
	f.Add("a b/c.png 0\r\n\nd\t-1\n../x 1")
	f.Add("\ufeff1/x 0\n0/y 1")
	f.Fuzz(func(t *testing.T, text string) {
		entries, err := parseList(text)
		if err != nil {
			return
		}
		names := classNames(entries)
		unique := map[string]bool{}
		for label, name := range names {
			if name == "" || unique[name] {
				t.Errorf("label %d has no name of its own in %v", label, names)
			}
			unique[name] = true
		}
		again := strings.Builder{}
		again.WriteString("\n") // so that no path is taken for a byte order mark
		for _, e := range entries {
			if e.label >= 0 && names[e.label] == "" {
				t.Errorf("label %d has no name", e.label)
			}
			if !filepath.IsLocal(e.path) {
				t.Errorf("path %q leaves the folder", e.path)
			}
			if strings.TrimRight(e.path, " \t") != e.path {
				return // a folder's, as in "a /. 0"; a list cannot name it plainly
			}
			fmt.Fprintln(&again, e.path, strconv.FormatInt(e.label, 10))
		}
		if back, err := parseList(again.String()); err != nil || !slices.Equal(back, entries) {
			t.Errorf("%v was read back as %v (%v)", entries, back, err)
		}
	})
}

func writeText(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one that says %q", texts)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error %q has several lines", err)
	}
}

func TestListIDXWithoutLabels(t *testing.T) {
	file := filepath.Join(t.TempDir(), "digits")
	writeText(t, file, "\x00\x00\x08\x03\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x01ab")
	l, err := List(t.Context(), ListOptions{Root: file})
	if err != nil {
		t.Fatal(err)
	}
	if got := show(l); !slices.Equal(got, []string{"digits#0 -", "digits#1 -"}) || len(l.Classes) != 0 {
		t.Errorf("%v of classes %v", got, l.Classes)
	}
}

// TestListImagesBeforeIDX: a folder with image files is one of those.
func TestListImagesBeforeIDX(t *testing.T) {
	root := tree(t, "cat/1.png")
	writeText(t, filepath.Join(root, "t10k-images-idx3-ubyte"), "\x00\x00\x08\x03\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x01ab")
	l, err := List(t.Context(), ListOptions{Root: root})
	if err != nil || !slices.Equal(show(l), []string{"cat/1.png cat"}) || l.Skipped != 1 || l.Grey {
		t.Errorf("%+v, %v", l, err)
	}
}
