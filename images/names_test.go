package images

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/setaside"
)

// TestNames: files are listed, read, named by a list with lines as Windows has them, and
// set aside under every name that the system allows, and systems differ in that.
func TestNames(t *testing.T) {
	long := strings.Repeat("folder of a long name/", 15) // above the 260 characters that Windows once had
	names := []string{
		"plain/a.png", "Plain/a.png", "plain/A.png", "plain/with blanks.png", "plain/comma, \"quotes\".png", "plain/two\nlines.png",
		"plain/CON", "plain/nul.png", "plain/aux.", "plain/end.png ", "plain/a:b.png", "plain/back\\slash.png", "C:/a.png", "plain/~$x.png",
		"gr\u00fcn/caf\u00e9.png", "gr\u00fcn/cafe\u0301.png", "plain/\xff.png", "plain/" + strings.Repeat("n", 200) + ".png", long + "a.png",
	}
	root := t.TempDir()
	for _, name := range names {
		file := filepath.Join(root, filepath.FromSlash(name))
		if strings.ContainsAny(name, `:\`) && filepath.Separator == '\\' {
			continue // it names another place there
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			t.Logf("%q: %v", name, err)
			continue
		}
		err := disk.Write(file, func(w io.Writer) error {
			_, err := io.WriteString(w, "\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR")
			return err
		})
		if err != nil {
			t.Logf("%q: %v", name, err) // not a name here
		}
	}
	var there []string // where names differ from those above, they are others for the system
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			file, err = filepath.Rel(root, file)
			there = append(there, filepath.ToSlash(file))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(there) < 8 {
		t.Fatalf("only %q are names here", there)
	}
	paths := func(l *Listing) (paths []string) {
		for _, item := range l.Items {
			paths = append(paths, item.Path)
		}
		return paths
	}
	listing, err := List(t.Context(), ListOptions{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(there)
	if got := paths(listing); !slices.Equal(got, there) {
		t.Errorf("listed %q, want %q", got, there)
	}
	var list strings.Builder
	listed := []string{}
	list.WriteString("\ufeff")
	for _, name := range there {
		if utf8.ValidString(name) && !strings.Contains(name, "\n") {
			list.WriteString(filepath.FromSlash(name) + " 0\r\n")
			listed = append(listed, strings.TrimRight(name, " "))
		}
	}
	slices.Sort(listed)
	if l, err := List(t.Context(), ListOptions{Root: root, ListFile: listFile(t, list.String())}); err != nil || !slices.Equal(paths(l), listed) {
		t.Errorf("%v; listed %q, want %q", err, paths(l), listed)
	}
	out, err := setaside.Open(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	for _, item := range listing.Items {
		folder, name, err := item.Locate()
		if err != nil {
			t.Fatal(err)
		}
		info, err := folder.Stat(filepath.FromSlash(name))
		if err != nil {
			t.Fatal(err)
		}
		to, err := out.Move(setaside.File{Root: folder, Name: name, Size: info.Size(), MTime: info.ModTime().UnixNano()}, item.Path)
		if err != nil {
			t.Errorf("%q: %v", item.Path, err)
		} else if moved, err := os.Stat(to); err != nil || moved.Size() != info.Size() {
			t.Errorf("%q: %v", to, err)
		}
		if err := folder.Close(); err != nil {
			t.Error(err)
		}
	}
}
