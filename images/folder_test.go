package images

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// world is a folder whose images are noted.
type world struct {
	*Watched
	t     *testing.T
	dir   string
	looks uint64
	known map[string]bool
	fail  error
	got   []string
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, dir: filepath.Join(t.TempDir(), "in"), known: map[string]bool{}}
	if err := os.MkdirAll(filepath.Join(w.dir, "deep", "er"), 0o777); err != nil {
		t.Fatal(err)
	}
	w.open("gate")
	return w
}

func (w *world) open(source string) {
	w.Watched = &Watched{Dir: w.dir, Source: source, Settle: time.Hour, MaxBytes: 100,
		Known: func(_ context.Context, ids []string) (map[string]bool, error) {
			known := map[string]bool{}
			for _, id := range ids {
				known[id] = w.known[id]
			}
			return known, nil
		},
		Image: func(_ context.Context, img WatchedImage) error {
			if w.fail != nil {
				return w.fail
			}
			if w.known[img.ID] {
				w.t.Errorf("%s comes twice", img.Path)
			}
			w.known[img.ID] = true
			what := string(img.Data)
			if img.Err != nil {
				what = img.Err.Error()
			}
			w.got = append(w.got, img.Path+" "+what)
			return nil
		},
	}
	if err := w.Open(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) write(name, text string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(text), 0o666); err != nil {
		w.t.Fatal(err)
	}
}

// turn has an hour pass and then looks; it returns what was handed out.
func (w *world) turn() []string {
	w.t.Helper()
	for _, one := range w.files {
		one.since = one.since.Add(-time.Hour)
	}
	w.looks++
	if err := errors.Join(w.look(w.t.Context(), w.looks), w.hand(w.t.Context())); err != nil && w.fail == nil {
		w.t.Error(err)
	}
	got := w.got
	w.got = nil
	slices.Sort(got)
	return got
}

func (w *world) expect(what string, want ...string) {
	w.t.Helper()
	if got := w.turn(); !slices.Equal(got, want) {
		w.t.Errorf("%s: %q, want %q", what, got, want)
	}
}

func TestFolder(t *testing.T) {
	w := newWorld(t)
	w.write("a.jpg", "be")
	w.write("deep/er/b.png", "deep")
	w.expect("the first look hands out nothing")
	w.write("a.jpg", "begins")
	w.expect("one that changed is left alone", "deep/er/b.png deep")
	w.expect("one that is whole", "a.jpg begins")
	w.expect("nothing new")
	w.write("a.jpg", "anew!!")
	when := time.Now().Add(time.Second) // a file system may count whole seconds
	if err := os.Chtimes(filepath.Join(w.dir, "a.jpg"), when, when); err != nil {
		t.Fatal(err)
	}
	w.turn()
	w.expect("one that was replaced", "a.jpg anew!!")

	// What is passed over, and what is no image.
	for _, name := range []string{".hidden.jpg", "c.jpg.part", "C.JPG.TMP", "~c.jpg", "notes.txt", "empty.jpg"} {
		w.write(name, "x")
	}
	w.write("empty.jpg", "")
	w.write("by its content", "\x89PNG\r\n\x1a\n0000000000")
	w.write("large.jpg", strings.Repeat("x", 101))
	w.turn()
	w.expect("an image by its content, and a large file", "by its content \x89PNG\r\n\x1a\n0000000000", "large.jpg MaxBody: it has 101 bytes, and a file may have 100")
	if err := os.Rename(filepath.Join(w.dir, "c.jpg.part"), filepath.Join(w.dir, "c.jpg")); err != nil {
		t.Fatal(err)
	}
	w.turn()
	w.expect("renamed", "c.jpg x")

	// An image that is not taken comes again.
	w.fail = errors.New("not now")
	w.write("d.jpg", "d")
	w.turn()
	w.expect("not taken")
	w.fail = nil
	w.expect("taken", "d.jpg d")

	// After a restart nothing is handed out twice. Another source is another matter.
	w.open("gate")
	w.turn()
	w.expect("after a restart")
	w.open("dock")
	w.turn()
	if got := w.turn(); len(got) != 6 {
		t.Errorf("of another source %q", got)
	}
	if err := os.RemoveAll(filepath.Join(w.dir, "deep")); err != nil {
		t.Fatal(err)
	}
	if w.turn(); len(w.files) != 6 { // notes.txt, too
		t.Errorf("%d files are remembered", len(w.files))
	}
	if err := os.RemoveAll(w.dir); err != nil {
		t.Fatal(err)
	}
	if err := w.look(t.Context(), 99); err == nil || len(w.files) == 0 {
		t.Errorf("a folder that is gone for a while: %v, %d files", err, len(w.files))
	}
	if err := (&Watched{Dir: w.dir}).Open(); err == nil {
		t.Error("no folder")
	}
}

// TestLinks: nothing outside of the folder is read, whatever is linked and swapped.
func TestLinks(t *testing.T) {
	w := newWorld(t)
	outside := filepath.Join(filepath.Dir(w.dir), "secret")
	if err := errors.Join(os.Mkdir(outside, 0o777), os.WriteFile(filepath.Join(outside, "s.jpg"), []byte("secret"), 0o666)); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"out.jpg": filepath.Join(outside, "s.jpg"), "dir": outside, "loop": w.dir, "up.jpg": "../secret/s.jpg"} {
		if err := os.Symlink(to, filepath.Join(w.dir, name)); err != nil {
			t.Skipf("no links here: %v", err)
		}
	}
	w.write("in.jpg", "abcdef")
	w.write("deep/in.jpg", "ghijkl")
	w.turn()
	// Between the look and the reading the files become links to files that are as long.
	root, err := os.OpenRoot(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	info, err := os.Stat(filepath.Join(outside, "s.jpg"))
	if err != nil {
		t.Fatal(err)
	}
	swap := func(name, to string) {
		t.Helper()
		if err := errors.Join(os.RemoveAll(filepath.Join(w.dir, name)), os.Symlink(to, filepath.Join(w.dir, name))); err != nil {
			t.Fatal(err)
		}
	}
	swap("in.jpg", filepath.Join(outside, "s.jpg"))
	swap("deep", outside)
	for _, name := range []string{"in.jpg", "deep/s.jpg"} {
		data, _, err := w.read(root, &watchedFile{path: name, size: info.Size(), mtime: info.ModTime().UnixNano()})
		if err == nil || data != nil {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	w.turn()
	w.expect("only links are left")
}

// TestRun watches as the service does, while files are renamed into the folder.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	got := make(chan string)
	f := &Watched{Dir: dir, Source: "x", Every: time.Millisecond, Settle: time.Millisecond, MaxBytes: 100, Workers: 3,
		Known: func(context.Context, []string) (map[string]bool, error) { return nil, nil },
		Image: func(_ context.Context, img WatchedImage) error { got <- img.Path + string(img.Data); return img.Err },
	}
	if err := f.Open(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan bool)
	go func() {
		f.Run(ctx)
		close(ended)
	}()
	seen := map[string]bool{}
	for i := range 10 {
		name := filepath.Join(dir, fmt.Sprintf("%d.jpg", i))
		if err := errors.Join(os.WriteFile(name+".part", []byte("whole"), 0o666), os.Rename(name+".part", name)); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		seen[<-got] = true
	}
	if len(seen) != 10 || !seen["7.jpgwhole"] {
		t.Errorf("%v", seen)
	}
	stop()
	<-ended
}
