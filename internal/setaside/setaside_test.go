package setaside

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(text), 0o640)); err != nil {
		t.Fatal(err)
	}
	return path
}

// tree returns the files under dir with their contents.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if info, err := os.Stat(path); err != nil || info.IsDir() {
			return nil // a link to a folder, or to nothing
		}
		text, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		files[filepath.ToSlash(rel)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func same(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%s holds %q, want %q", name, got[name], text)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s is there", name)
		}
	}
}

// file returns the file of a path in a folder, as it is now.
func file(t *testing.T, root, name string) File {
	t.Helper()
	folder, err := os.OpenRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { folder.Close() })
	f := File{Root: folder, Name: name}
	if info, err := os.Stat(filepath.Join(root, name)); err == nil {
		f.Size, f.MTime = info.Size(), info.ModTime().UnixNano()
	}
	return f
}

func target(t *testing.T, dir string) *Target {
	t.Helper()
	to, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { to.Close() })
	return to
}

func link(t *testing.T, to, name string) {
	t.Helper()
	if err := os.Symlink(to, name); err != nil {
		t.Skip(err)
	}
	if got, err := os.Readlink(name); err != nil || got != filepath.FromSlash(to) {
		t.Skip("no links here, as under Wine")
	}
}

func TestMove(t *testing.T) {
	dir := t.TempDir()
	out := target(t, filepath.Join(dir, "out"))
	for i, text := range []string{"first", "second", "second"} {
		write(t, filepath.Join(dir, "in", "a.b.png"), text)
		to, err := out.Move(file(t, dir, "in/a.b.png"), "x/a.b.png")
		if want := filepath.Join(dir, "out", "x", []string{"a.b.png", "a.b (2).png", "a.b (3).png"}[i]); err != nil || to != want {
			t.Fatalf("%s, %v; want %s", to, err, want)
		}
	}
	same(t, tree(t, dir), map[string]string{"out/x/a.b.png": "first", "out/x/a.b (2).png": "second", "out/x/a.b (3).png": "second"})
}

func TestCopy(t *testing.T) {
	dir := t.TempDir()
	out := target(t, filepath.Join(dir, "out"))
	name := write(t, filepath.Join(dir, "in", "a"), "text")
	old := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	if err := os.Chtimes(name, old, old); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "out", "b"), "mine")
	for range 2 { // the second finds the first's
		if to, err := out.Copy(file(t, dir, "in/a"), "a"); err != nil || filepath.Base(to) != "a" {
			t.Fatal(to, err)
		}
	}
	for range 2 {
		if to, err := out.Copy(file(t, dir, "in/a"), "b"); err != nil || !strings.HasPrefix(filepath.Base(to), "b (") {
			t.Fatal(to, err)
		}
	}
	same(t, tree(t, dir), map[string]string{"in/a": "text", "out/a": "text", "out/b": "mine", "out/b (2)": "text"})
	info, err := os.Stat(filepath.Join(dir, "out", "a"))
	if err != nil || !info.ModTime().Equal(old) || info.Mode().Perm() != 0o640 && runtime.GOOS != "windows" {
		t.Errorf("%v, %v", info, err)
	}
}

func TestLinksAreCopiedNotMoved(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "real"), "text")
	link(t, "real", filepath.Join(dir, "link"))
	out := target(t, filepath.Join(dir, "out"))
	if _, err := out.Move(file(t, dir, "link"), "link"); err == nil {
		t.Error("moved a link")
	}
	if _, err := out.Copy(file(t, dir, "link"), "link"); err != nil {
		t.Error(err)
	}
	same(t, tree(t, dir), map[string]string{"real": "text", "link": "text", "out/link": "text"})
}

// A file outside the named folder is not touched through a link.
func TestLinksOutOfTheFolder(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "victim", "a"), "mine")
	write(t, filepath.Join(dir, "in", "b"), "text")
	link(t, filepath.Join(dir, "victim"), filepath.Join(dir, "in", "holiday"))
	link(t, "../victim", filepath.Join(dir, "in", "weekend"))
	link(t, "../victim/a", filepath.Join(dir, "in", "a"))
	out := target(t, filepath.Join(dir, "out"))
	for _, name := range []string{"holiday/a", "weekend/a", "a"} {
		for what, set := range map[string]func(File, string) (string, error){"move": out.Move, "copy": out.Copy} {
			if to, err := set(file(t, filepath.Join(dir, "in"), name), "a"); !errors.Is(err, ErrOutside) {
				t.Errorf("%s %s: %q, %v", what, name, to, err)
			}
		}
	}
	same(t, tree(t, dir), map[string]string{"victim/a": "mine", "in/a": "mine", "in/b": "text"})

	// Links below the target are not followed either.
	link(t, "../victim", filepath.Join(dir, "out", "x"))
	write(t, filepath.Join(dir, "out", "inside", "c"), "")
	link(t, "inside", filepath.Join(dir, "out", "y"))
	link(t, "../victim/new", filepath.Join(dir, "out", "b"))
	for _, name := range []string{"x/b", "y/b", "y/z/b"} {
		if to, err := out.Move(file(t, filepath.Join(dir, "in"), "b"), name); err == nil {
			t.Errorf("moved to %s", to)
		}
	}
	if to, err := out.Move(file(t, filepath.Join(dir, "in"), "b"), "b"); err != nil || filepath.Base(to) != "b (2)" {
		t.Error(to, err)
	}
	same(t, tree(t, filepath.Join(dir, "victim")), map[string]string{"a": "mine"})
}

// A link that replaces a folder or file after it was judged has no effect.
func TestLinksSwappedIn(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows renames no open folder")
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "victim", "a"), "mine")
	write(t, filepath.Join(dir, "in", "sub", "a"), "text")
	judged := file(t, filepath.Join(dir, "in"), "sub/a")
	if info, err := os.Stat(filepath.Join(dir, "in", "sub", "a")); err != nil {
		t.Fatal(err)
	} else if err := os.Chtimes(filepath.Join(dir, "victim", "a"), info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	out := target(t, filepath.Join(dir, "out"))
	sub := filepath.Join(dir, "in", "sub")
	if err := errors.Join(os.Rename(sub, sub+"1"), os.Symlink("../victim", sub)); err != nil {
		t.Fatal(err)
	}
	if to, err := out.Move(judged, "a"); !errors.Is(err, ErrOutside) {
		t.Error(to, err)
	}
	// The source folder, and the target folder.
	if err := errors.Join(os.Rename(filepath.Join(dir, "in"), filepath.Join(dir, "was")), os.Symlink("victim", filepath.Join(dir, "in")),
		os.Rename(filepath.Join(dir, "out"), filepath.Join(dir, "there")), os.Symlink("victim", filepath.Join(dir, "out"))); err != nil {
		t.Fatal(err)
	}
	judged.Name = "sub1/a"
	if _, err := out.Move(judged, "a"); err != nil {
		t.Error(err)
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "in")), os.Remove(filepath.Join(dir, "out"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "was", "sub")); err != nil {
		t.Fatal(err)
	}
	same(t, tree(t, dir), map[string]string{"victim/a": "mine", "there/a": "text"})
}

// TestRaces swaps links to a victim in and out, in the source and in the target, while
// files are moved and copied. Whatever the moment, nothing of the victim is touched.
func TestRaces(t *testing.T) {
	dir := t.TempDir()
	at := func(elem ...string) string { return filepath.Join(append([]string{dir}, elem...)...) }
	const files = 200
	when := time.Unix(1e9, 0)
	mine := map[string]string{}
	for i := range files {
		name := strconv.Itoa(i)
		for _, file := range []string{at("victim", name), at("in", "sub", name)} {
			write(t, file, "text") // of the same size and time, so that only the place tells
			if err := os.Chtimes(file, when, when); err != nil {
				t.Fatal(err)
			}
		}
		mine[name] = "text"
	}
	if err := errors.Join(os.Mkdir(at("out"), 0o777), os.Mkdir(at("out", "sub"), 0o777)); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			folder := at([]string{"in", "out"}[i%2], "sub")
			if os.Rename(folder, folder+".was") == nil {
				_ = os.Symlink(at("victim"), folder)
				runtime.Gosched()
				_ = os.Remove(folder)
				_ = os.Rename(folder+".was", folder)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	in, out := file(t, at("in"), "sub/0").Root, target(t, at("out"))
	var left []File
	for i := range files {
		f := File{Root: in, Name: "sub/" + strconv.Itoa(i), Size: 4, MTime: when.UnixNano()}
		do := out.Move
		if i%3 == 0 {
			do = out.Copy
		}
		tries := 0
		for tries < 20 {
			if _, err := do(f, f.Name); err == nil {
				break
			}
			tries++
		}
		if tries == 20 {
			left = append(left, f)
		}
	}
	close(stop)
	<-stopped
	for _, f := range left {
		if _, err := out.Move(f, f.Name); err != nil {
			t.Error(err)
		}
	}
	same(t, tree(t, at("victim")), mine)
	arrived := map[string]string{} // in one folder or the other: where the first was away, a second was made
	for name, text := range tree(t, at("out")) {
		arrived[filepath.Base(name)] = text
	}
	same(t, arrived, mine)
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), "text")
	a := file(t, dir, "a")
	out := target(t, filepath.Join(dir, "out"))
	for _, name := range []string{"../b", "/b", "", "a/../../b"} {
		if to, err := out.Move(a, name); err == nil {
			t.Errorf("moved to %s", to)
		}
	}
	if _, err := out.Move(file(t, dir, "absent"), "b"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	write(t, filepath.Join(dir, "file"), "")
	if _, err := Open(filepath.Join(dir, "file")); err == nil {
		t.Error("a file is a folder")
	}
	changed := a
	changed.Size++
	if _, err := out.Move(changed, "b"); !errors.Is(err, ErrChanged) {
		t.Error(err)
	}
	changed = a
	changed.MTime++
	if _, err := out.Copy(changed, "b"); !errors.Is(err, ErrChanged) {
		t.Error(err)
	}
	same(t, tree(t, dir), map[string]string{"a": "text", "file": ""})
}

// otherFileSystem returns a folder on another file system than that of temporary
// files.
func otherFileSystem(t *testing.T) string {
	t.Helper()
	other, err := os.MkdirTemp("/dev/shm", "setaside")
	if err != nil {
		t.Skip("no /dev/shm:", err)
	}
	t.Cleanup(func() { os.RemoveAll(other) })
	return other
}

// Files are copied to another file system; if the machine has one, this is tested.
func TestMoveToAnotherFileSystem(t *testing.T) {
	other := otherFileSystem(t)
	dir := t.TempDir()
	write(t, filepath.Join(other, "a"), "mine")
	write(t, filepath.Join(dir, "a"), "text")
	if _, err := target(t, other).Move(file(t, dir, "a"), "a"); err != nil {
		t.Fatal(err)
	}
	same(t, tree(t, dir), nil)
	same(t, tree(t, other), map[string]string{"a": "mine", "a (2)": "text"})
}

// TestKilledMove kills moves to another file system, at a moment that the clock
// chooses: every file must be complete in one of the two places.
func TestKilledMove(t *testing.T) {
	const files, bytes = 40, 1 << 20
	if dir := os.Getenv("SETASIDE_FROM"); dir != "" { // the process that is killed
		to := target(t, os.Getenv("SETASIDE_TO"))
		for i := range files {
			name := strconv.Itoa(i)
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				if _, err := to.Move(file(t, dir, name), name); err != nil {
					t.Fatal(err)
				}
			}
		}
		return
	}
	for n := range 5 {
		from, to := t.TempDir(), otherFileSystem(t)
		for i := range files {
			write(t, filepath.Join(from, strconv.Itoa(i)), strings.Repeat(string(rune('A'+i)), bytes))
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledMove$")
		cmd.Env = append(os.Environ(), "SETASIDE_FROM="+from, "SETASIDE_TO="+to)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for { // until a part of them is moved
			entries, err := os.ReadDir(to)
			if err != nil {
				t.Fatal(err)
			}
			if len(entries) > n*files/5 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		here, there := tree(t, from), tree(t, to)
		for i := range files {
			name, want := strconv.Itoa(i), strings.Repeat(string(rune('A'+i)), bytes)
			if !slices.Contains([]string{here[name], there[name]}, want) || there[name] != "" && there[name] != want {
				t.Errorf("%s is in neither place, or not whole", name)
			}
		}
	}
}
