package command

import (
	"bufio"
	"fmt"
	"image/png"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestDetectFollowsItsInput: a path is judged while standard input is still
// open, and the verdict can be read.
func TestDetectFollowsItsInput(t *testing.T) {
	w := newWorld(t)
	stdin, in := io.Pipe()
	pipe, stdout := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := execute(t.Context(), newRoot(), []string{"detect", "--detector", w.detector, "--json", "--quiet", filepath.Join(w.images, "disc", "00.png"), "-"}, Streams{stdin, stdout, io.Discard})
		stdout.Close()
		ended <- err
	}()
	out := bufio.NewReader(pipe)
	expect := func(paths ...string) {
		t.Helper()
		for _, path := range paths {
			line, err := out.ReadString('\n')
			if err != nil || !strings.Contains(line, `"path":"`+filepath.ToSlash(path)+`"`) {
				t.Fatalf("%q, %v; want the verdict on %s", line, err, path)
			}
		}
	}
	expect(filepath.Join(w.images, "disc", "00.png"))
	square := filepath.Join(w.images, "square", "03.png")
	fmt.Fprintln(in, square)
	expect(square)
	fmt.Fprintf(in, "\n%s\n%s", filepath.Join(w.dir, "gone.png"), square)
	in.Close()
	expect(filepath.Join(w.dir, "gone.png"), square)
	if rest, err := out.ReadString('\n'); rest != "" {
		t.Errorf("and then %q, %v", rest, err)
	}
	if err := <-ended; exitCode(err) != partial {
		t.Errorf("%v, want an error for the image that is gone", err)
	}
}

// TestDetectSetsAside: OOD images are moved and copied, nothing is ever lost.
func TestDetectSetsAside(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	odd := "new\nline.png"
	if runtime.GOOS == "windows" {
		odd = "new;line.png"
	}
	t.Chdir(dir)
	in := func(elem ...string) string { return filepath.Join(append([]string{dir}, elem...)...) }
	files := func(folder string) (names []string) {
		err := filepath.WalkDir(in(folder), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				rel, _ := filepath.Rel(in(folder), path)
				names = append(names, filepath.ToSlash(rel))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	for i, name := range []string{"a.png", odd, "sub/a.png"} {
		picture(t, in("new", filepath.FromSlash(name)), 2, uint64(i))
	}
	write(t, in("new", "bad.png"), "no picture")
	detect := func(code int, stdin string, args ...string) []map[string]any {
		t.Helper()
		out, _, err := try(t, strings.NewReader(stdin), append([]string{"detect", "--detector", w.detector, "--json", "--quiet", "--threshold", "100"}, args...)...)
		if got := exitCode(err); got != code {
			t.Fatalf("%s: exit code %d, want %d", args, got, code)
		}
		return lines(t, out)
	}
	all := []string{"a.png", "bad.png", odd, "sub/a.png"}
	ood := []string{"a.png", odd, "sub/a.png"}

	for range 2 { // the second run finds the copies and makes none
		rows := detect(3, "", "--copy-ood", in("copies"), in("new"))
		if got := files("copies"); !slices.Equal(got, ood) || !slices.Equal(files("new"), all) {
			t.Fatalf("copied %q", got)
		}
		if want := filepath.ToSlash(in("copies", "a.png")); rows[0]["set_aside"] != want || rows[1]["set_aside"] != nil {
			t.Errorf("%v", rows)
		}
	}
	// Paths of a pipe keep their folders; a folder within the images is passed over.
	detect(0, "new/sub/a.png\x00new/"+odd+"\x00", "-0", "--move-ood", "new/aside", "-")
	if got, want := files("new"), []string{"a.png", "aside/new/" + odd, "aside/new/sub/a.png", "bad.png"}; !slices.Equal(got, want) {
		t.Fatalf("%q, want %q", got, want)
	}
	write(t, in("new", "aside", "a.png"), "mine")
	if rows := detect(3, "", "--move-ood", "new/aside", "new"); len(rows) != 2 || rows[0]["set_aside"] != "new/aside/a (2).png" {
		t.Errorf("%v", rows)
	}
	if text, err := os.ReadFile(in("new", "aside", "a.png")); string(text) != "mine" {
		t.Errorf("written over: %q, %v", text, err)
	}
	// A link cannot be moved: it stays, and the program says so.
	if err := os.Symlink(in("new", "aside", "a (2).png"), in("link.png")); err != nil {
		t.Skip(err)
	}
	if _, err := os.Stat(in("link.png")); err != nil {
		t.Skip("no links here, as under Wine")
	}
	if rows := detect(3, "", "--move-ood", "other", "link.png"); rows[0]["ood"] != true || rows[0]["set_aside_error"] == nil {
		t.Errorf("%v", rows)
	}
	write(t, in("file"), "")
	refused(t, "exclude", "detect", "--detector", w.detector, "--move-ood", "a", "--copy-ood", "b", dir)
	fails(t, "set aside", "detect", "--detector", w.detector, "--move-ood", in("file"), dir)
	fails(t, "but those in", "detect", "--detector", w.detector, "--move-ood", dir, dir)
}

func TestCheck(t *testing.T) {
	w := newWorld(t)
	dir := t.TempDir()
	drawn := filepath.Join(dir, "seen.png")
	out, _ := call(t, 0, "extract", "--check", "--model", w.model, "--images", w.images, "--check-images", "9", "--picture", drawn, "--json")
	r := lines(t, out)[0]
	if r["d"] != 1280. || r["logits"] != 1000. || r["output"] != "features" || len(r["images"].([]any)) != 9 || len(r["channels"].([]any)) != 3 {
		t.Errorf("%v", r)
	}
	f, err := os.Open(drawn)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if c, err := png.DecodeConfig(f); err != nil || c.Width != 3*224 || c.Height != 3*224 {
		t.Errorf("%+v, %v", c, err)
	}
	if out, _ := call(t, 0, "extract", "--check", "--model", w.model); !strings.Contains(out, "no images were looked at") || !strings.Contains(out, "shorter edge is 256") {
		t.Error(out)
	}
	// All images alike, and one that is none.
	same, err := os.ReadFile(filepath.Join(w.images, "disc", "00.png"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.png", "b.png", "c.png"} {
		write(t, filepath.Join(dir, "same", name), string(same))
	}
	write(t, filepath.Join(dir, "same", "d.png"), "none")
	out, stderr := call(t, 1, "extract", "--check", "--model", w.model, "--images", filepath.Join(dir, "same"), "--picture", drawn)
	if !strings.Contains(out, "all images have the same features") || !strings.Contains(out, "1 of 4 images could not be read") || !strings.Contains(stderr, "probably wrong") {
		t.Error(out, stderr)
	}
	refused(t, "--check", "extract", "--model", w.model, "--images", w.images, "--out", dir, "--against", w.model)
	refused(t, "--check", "extract", "--check", "--model", "pixels", "--images", w.images)
	refused(t, "--images", "extract", "--check", "--model", w.model, "--against", w.model)
	out, _ = call(t, 1, "extract", "--check", "--model", w.model, "--images", w.images, "--check-images", "3", "--max-pixels", "9", "--picture", drawn)
	if !strings.Contains(out, "3 of 3 images could not be read") || !strings.Contains(out, "above the limit of 9") {
		t.Error(out)
	}
	refused(t, "--out", "extract", "--model", w.model, "--images", w.images)
}
