package features_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/internal/npy"

	"pgregory.net/rapid"

	_ "github.com/mlrbfn/mlrbfn/internal/testenv"
)

var header = features.Header{
	D: 2, LogitsDim: 3, Root: "photos", Model: "models/tiny", ModelSHA256: "abc", Output: "features",
	Pool: "cls", Preprocess: json.RawMessage(`{"size":224}`), Fingerprint: "f1", Tool: "mlrbfn test",
}

var classes = []string{"ant & bee", "cat"}

// picture is an image of a test; its entries in a set are derived from it.
type picture struct {
	path  string
	label int64
	seed  int
}

// four are the images of most tests.
var four = []picture{{"ant & bee/1.png", 0, 1}, {"cat/ä\xff.png", 1, 2}, {"3.png", -1, 3}, {"cat/100%.png", 1, 4}}

func (p picture) image() features.Image {
	img := features.Image{Path: p.path, Bytes: int64(100 + p.seed), MTime: 1700000000123456789, SHA256: strings.Repeat("0a", 32)}
	if p.label >= 0 {
		img.Label = &classes[p.label]
	}
	return img
}

func (p picture) known(w *features.Writer) bool {
	img := p.image()
	return w.Has(img.Path, img.Bytes, img.MTime)
}

func add(w *features.Writer, p picture) error {
	s := float32(p.seed)
	return w.Append(p.image(), []float32{s + 0.5, -s}, []float32{s, s + 1, s + 2})
}

func create(t testing.TB, dir string, h features.Header, o features.Options) *features.Writer {
	t.Helper()
	w, err := features.Create(t.Context(), dir, h, o)
	check(t, err)
	t.Cleanup(func() { check(t, w.Close()) })
	return w
}

// finish appends what is missing, as an extractor does, and commits.
func finish(w *features.Writer, pictures []picture, failed ...features.Failure) error {
	var listing []features.Image
	for _, p := range pictures {
		lost := slices.ContainsFunc(failed, func(f features.Failure) bool { return f.Path == p.path })
		if !p.known(w) && !lost {
			if err := add(w, p); err != nil {
				return err
			}
		}
		img := p.image()
		img.SHA256 = "" // the listing does not know it
		listing = append(listing, img)
	}
	meta, err := w.Commit(context.Background(), features.Contents{Units: []features.Unit{{Images: listing}}, Classes: classes, Failed: failed})
	if err == nil && meta.N > len(pictures) {
		err = fmt.Errorf("meta says %+v", meta)
	}
	return err
}

func commit(t testing.TB, w *features.Writer, pictures []picture, failed ...features.Failure) {
	t.Helper()
	check(t, finish(w, pictures, failed...))
}

// contents returns all files below dir.
func contents(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	check(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		all[filepath.ToSlash(strings.TrimPrefix(path, filepath.Clean(dir)))] = string(data)
		return err
	}))
	return all
}

func sameContents(t testing.TB, a, b string) {
	t.Helper()
	filesA, filesB := contents(t, a), contents(t, b)
	for name := range filesA {
		if filesA[name] != filesB[name] {
			t.Errorf("%s differs:\n%.300q\n%.300q", name, filesA[name], filesB[name])
		}
	}
	if len(filesA) != len(filesB) {
		t.Errorf("%s has %d files, %s %d", a, len(filesA), b, len(filesB))
	}
}

func absent(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is there: %v", path, err)
	}
}

func TestWriteAndRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "set")
	w := create(t, dir, header, features.Options{})
	if four[0].known(w) {
		t.Error("a row is known before it came")
	}
	// Rows are appended in another order than they are listed.
	for _, i := range []int{2, 0, 3, 1} {
		check(t, add(w, four[i]))
	}
	if img := four[0].image(); w.Has(img.Path, img.Bytes+1, img.MTime) || w.Has(img.Path, img.Bytes, img.MTime+1) {
		t.Error("a file that has changed is known")
	}
	absent(t, dir)
	failures := []features.Failure{{Path: "z\xff.png", Error: "cut short"}, {Path: "b.png", Error: "no image"}}
	commit(t, w, slices.Concat(four[:1], []picture{{"b.png", 0, 9}}, four[1:]), failures...)
	absent(t, dir+".partial")

	s := open(t, dir)
	if s.N != 4 || s.D != 2 || s.Fingerprint != "f1" || s.Root != "photos" || string(s.Preprocess) != `{"size":224}` || !slices.Equal(s.Classes, classes) {
		t.Errorf("meta %+v", s.Meta)
	}
	if !slices.Equal(s.Features(), []float32{1.5, -1, 2.5, -2, 3.5, -3, 4.5, -4}) {
		t.Errorf("features %v", s.Features())
	}
	if logits, c := s.Logits(); c != 3 || !slices.Equal(logits, []float32{1, 2, 3, 2, 3, 4, 3, 4, 5, 4, 5, 6}) {
		t.Errorf("logits %v", logits)
	}
	if !slices.Equal(s.Labels(), []int64{0, 1, -1, 1}) {
		t.Errorf("labels %v", s.Labels())
	}
	images, err := s.Images()
	check(t, err)
	for i, img := range images {
		want := four[i].image()
		if (img.Label == nil) != (want.Label == nil) || img.Label != nil && *img.Label != *want.Label {
			t.Errorf("label of image %d: %v", i, img.Label)
		}
		if img.Label = want.Label; img != want {
			t.Errorf("image %d is %+v, want %+v", i, img, want)
		}
	}
	got, err := s.Errors()
	slices.Reverse(failures)
	if !slices.Equal(got, failures) || err != nil {
		t.Errorf("failures %v, %v", got, err)
	}
}

func TestAWriterIsForOne(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	w := create(t, dir, header, features.Options{})
	if _, err := features.Create(t.Context(), dir, header, features.Options{}); !errors.Is(err, features.ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Errorf("a second writer: %v", err)
	}
	check(t, add(w, four[0]), w.Close(), w.Close())
	if err := add(w, four[1]); err == nil {
		t.Error("a row was taken after Close")
	}
	w = create(t, dir, header, features.Options{})
	if !four[0].known(w) || four[1].known(w) {
		t.Error("what was appended before Close is not what is known now")
	}
	check(t, w.Close())
}

// TestWritersTakeTurns opens and closes writers of one set concurrently.
func TestWritersTakeTurns(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for done := 0; done < 5; {
				w, err := features.Create(t.Context(), dir, header, features.Options{})
				if errors.Is(err, features.ErrLocked) {
					continue
				}
				if err == nil {
					err = errors.Join(finish(w, four), w.Close())
				}
				if err != nil {
					t.Error(err)
					return
				}
				done++
			}
		})
	}
	wg.Wait()
	if s := open(t, dir); s.N != 4 {
		t.Errorf("%d rows", s.N)
	}
	absent(t, dir+".partial")
}

func TestNothingIsLeftOfARunWithoutRows(t *testing.T) {
	parent := t.TempDir()
	check(t, create(t, filepath.Join(parent, "set"), header, features.Options{}).Close())
	if all, err := os.ReadDir(parent); len(all) > 0 || err != nil {
		t.Errorf("left %v, %v", all, err)
	}
}

func TestAppendAtOnceFromSeveral(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	w := create(t, dir, header, features.Options{})
	var pictures []picture
	var wg sync.WaitGroup
	for i := range 50 {
		p := picture{fmt.Sprintf("%d.png", i), 0, i}
		pictures = append(pictures, p)
		wg.Go(func() {
			if err := add(w, p); err != nil || !p.known(w) {
				t.Errorf("%v: %v", p, err)
			}
		})
	}
	wg.Wait()
	commit(t, w, pictures)
	for i, s := 0, open(t, dir); i < s.N; i++ {
		if s.Row(i)[1] != float32(-i) {
			t.Errorf("row %d is %v", i, s.Row(i))
		}
	}
}

func TestCreateRefuses(t *testing.T) {
	for _, spoil := range []func(*features.Header){
		func(h *features.Header) { h.D = 0 },
		func(h *features.Header) { h.LogitsDim = -1 },
		func(h *features.Header) { h.Fingerprint = "" },
	} {
		h := header
		spoil(&h)
		if _, err := features.Create(t.Context(), filepath.Join(t.TempDir(), "set"), h, features.Options{}); err == nil {
			t.Errorf("header %+v was taken", h)
		}
	}
}

// TestWhatStandsThereAlready says for everything that can be at --out whether
// it may be replaced, and that it is not touched if not.
func TestWhatStandsThereAlready(t *testing.T) {
	other := header
	other.Fingerprint = "f2"
	set := func(h features.Header) func(testing.TB, string) {
		return func(t testing.TB, dir string) { commit(t, create(t, dir, h, features.Options{}), four[:1]) }
	}
	file := func(name, text string) func(testing.TB, string) {
		return func(t testing.TB, dir string) {
			check(t, os.MkdirAll(dir, 0o777), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666))
		}
	}
	both := func(all ...func(testing.TB, string)) func(testing.TB, string) {
		return func(t testing.TB, dir string) {
			for _, one := range all {
				one(t, dir)
			}
		}
	}
	tests := []struct {
		name  string
		make  func(testing.TB, string)
		want  error // nil if it is replaced without Force
		force error // nil if it is replaced with Force
	}{
		{"nothing", func(testing.TB, string) {}, nil, nil},
		{"an empty folder", func(t testing.TB, dir string) { check(t, os.Mkdir(dir, 0o777)) }, nil, nil},
		{"a set of the same fingerprint", set(header), nil, nil},
		{"a set of another fingerprint", set(other), features.ErrFingerprint, nil},
		{"a set made elsewhere", func(t testing.TB, dir string) {
			check(t, os.Mkdir(dir, 0o777), npy.WriteFile(filepath.Join(dir, "features.npy"), []float32{1}, 1, 1))
		}, features.ErrFingerprint, nil},
		{"a damaged set", both(set(header), file("features.npy", "")), features.ErrDamaged, nil},
		{"a set with damaged images", both(set(header), file("images.jsonl", "{")), features.ErrDamaged, nil},
		{"a set with a damaged hash", both(set(header), file("images.jsonl", "{}\n")), features.ErrDamaged, nil},
		{"a set of a newer version", both(set(header), file("features.json", `{"version":5}`)), features.ErrVersion, nil},
		{"a set and something else", both(set(header), file("notes.txt", "mine")), features.ErrNotSet, features.ErrNotSet},
		{"a folder of something else", file("notes.txt", "mine"), features.ErrNotSet, features.ErrNotSet},
		{"a folder with labels alone", file("labels.npy", "mine"), features.ErrNotSet, features.ErrNotSet},
		{"a file", func(t testing.TB, dir string) { check(t, os.WriteFile(dir, []byte("mine"), 0o666)) }, features.ErrNotSet, features.ErrNotSet},
	}
	for _, test := range tests {
		for force, want := range map[bool]error{false: test.want, true: test.force} {
			t.Run(fmt.Sprintf("%s, force %v", test.name, force), func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "set")
				test.make(t, dir)
				if want == nil {
					commit(t, create(t, dir, header, features.Options{Force: force}), four)
					if s := open(t, dir); s.N != 4 || s.Fingerprint != "f1" {
						t.Errorf("got %+v", s.Meta)
					}
					return
				}
				before := contents(t, filepath.Dir(dir))
				_, err := features.Create(t.Context(), dir, header, features.Options{Force: force})
				if !errors.Is(err, want) || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "write to another folder") && want != features.ErrNotSet {
					t.Errorf("got %v, want %v", err, want)
				}
				if after := contents(t, filepath.Dir(dir)); !mapsEqual(before, after) {
					t.Errorf("before %q, after %q", before, after)
				}
			})
		}
	}
}

func mapsEqual(a, b map[string]string) bool {
	return fmt.Sprint(a) == fmt.Sprint(b)
}

// TestWhatAppearsMeanwhile: Commit finds files that appeared at dir meanwhile.
func TestWhatAppearsMeanwhile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	w := create(t, dir, header, features.Options{})
	check(t, os.Mkdir(dir, 0o777), os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("mine"), 0o666))
	if err := finish(w, four); !errors.Is(err, features.ErrNotSet) {
		t.Errorf("got %v", err)
	}
	check(t, w.Close(), os.RemoveAll(dir))
	w = create(t, dir, header, features.Options{})
	if !four[3].known(w) {
		t.Error("the rows are lost")
	}
	commit(t, w, four)
}

func TestRowsOfTheSetThatStandsThere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	commit(t, create(t, dir, header, features.Options{}), four[:3])
	weight := filepath.Join(dir, "fc_weight.npy")
	check(t, npy.WriteFile(weight, make([]float32, 6), 3, 2))
	once := filepath.Join(t.TempDir(), "once")
	commit(t, create(t, once, header, features.Options{}), four)
	check(t, npy.WriteFile(filepath.Join(once, "fc_weight.npy"), make([]float32, 6), 3, 2))

	w := create(t, dir, header, features.Options{})
	for i, want := range []bool{true, true, true, false} {
		if got := four[i].known(w); got != want {
			t.Errorf("image %d known: %v", i, got)
		}
	}
	commit(t, w, four)
	sameContents(t, once, dir)

	t.Run("not under another root", func(t *testing.T) {
		h := header
		h.Root = "other"
		if _, err := features.Create(t.Context(), dir, h, features.Options{}); !errors.Is(err, features.ErrOtherImages) {
			t.Errorf("got %v", err)
		}
		if w := create(t, dir, h, features.Options{Force: true}); four[0].known(w) {
			t.Error("a row of another root is known")
		}
	})
	t.Run("not without logits", func(t *testing.T) {
		h := header
		h.LogitsDim = 0
		w := create(t, dir, h, features.Options{})
		if four[0].known(w) {
			t.Error("a row with logits is known")
		}
		img := four[0].image()
		check(t, w.Append(img, []float32{1, 2}, nil))
		_, err := w.Commit(t.Context(), features.Contents{Units: []features.Unit{{Images: []features.Image{img}}}, Classes: classes})
		check(t, err)
		absent(t, filepath.Join(dir, "logits.npy"))
		if _, err := os.Stat(weight); err != nil {
			t.Error(err)
		}
	})
}

func TestAnImageThatChangesIsMadeAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	commit(t, create(t, dir, header, features.Options{}), four)
	changed := slices.Clone(four)
	changed[1].seed = 7
	commit(t, create(t, dir, header, features.Options{}), changed)
	if s := open(t, dir); !slices.Equal(s.Row(1), []float32{7.5, -7}) || !slices.Equal(s.Row(2), []float32{3.5, -3}) {
		t.Errorf("rows %v", s.Features())
	}
}

func TestAJournalOfAnotherModelIsThrownAwayByForce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	w := create(t, dir, header, features.Options{})
	check(t, add(w, four[0]), w.Close())
	other := header
	other.Fingerprint = "f2"
	if _, err := features.Create(t.Context(), dir, other, features.Options{}); !errors.Is(err, features.ErrFingerprint) {
		t.Errorf("without force: %v", err)
	}
	w = create(t, dir, other, features.Options{Force: true})
	if four[0].known(w) {
		t.Error("a row of another model is known")
	}
	commit(t, w, four[1:])
	if s := open(t, dir); s.N != 3 || s.Fingerprint != "f2" {
		t.Errorf("got %+v", s.Meta)
	}
}

// TestSomebodysPartialFolder: a folder with the name of the work folder and with
// other files in it is not changed.
func TestSomebodysPartialFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	theirs := filepath.Join(dir+".partial", "old", "a.txt")
	check(t, os.MkdirAll(filepath.Dir(theirs), 0o777), os.WriteFile(theirs, []byte("theirs"), 0o666))
	if _, err := features.Create(t.Context(), dir, header, features.Options{Force: true}); !errors.Is(err, features.ErrNotSet) {
		t.Errorf("got %v", err)
	}
	if text, err := os.ReadFile(theirs); err != nil || string(text) != "theirs" {
		t.Errorf("it became %q, %v", text, err)
	}
	absent(t, dir)
}

func TestCommitWithoutRows(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	commit(t, create(t, dir, header, features.Options{}), four[:1], features.Failure{Path: four[0].path, Error: "no image"})
	s := open(t, dir)
	images, err := s.Images()
	if s.N != 0 || s.D != 2 || len(s.Features()) != 0 || len(s.Labels()) != 0 || len(images) != 0 || err != nil {
		t.Errorf("got %+v, %v, %v", s.Meta, images, err)
	}
}

func TestAppendAndCommitRefuse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	w := create(t, dir, header, features.Options{})
	img, bad := four[0].image(), four[0].image()
	bad.SHA256 = "00"
	if w.Append(img, []float32{1}, []float32{1, 2, 3}) == nil || w.Append(img, []float32{1, 2}, nil) == nil || w.Append(bad, []float32{1, 2}, []float32{1, 2, 3}) == nil {
		t.Error("a row of another shape or without a hash was taken")
	}
	check(t, add(w, four[0]))
	tests := []struct {
		name    string
		listing []picture
		classes []string
		places  []int64
		want    string
	}{
		{"no row", four[:2], classes, nil, "no row of cat/"},
		{"row of another state", []picture{{four[0].path, 0, 2}}, classes, nil, "as it is now"},
		{"places", four[:1], classes, []int64{1, 2}, "2 places for 1 images"},
		{"class", four[:1], classes[1:], nil, "none of the 1 classes"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var listing []features.Image
			for _, p := range test.listing {
				listing = append(listing, p.image())
			}
			if _, err := w.Commit(t.Context(), features.Contents{Units: []features.Unit{{Images: listing, Places: test.places}}, Classes: test.classes}); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	commit(t, w, four)
}

func TestNamesThatAreNotUTF8(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "set")
	h := header
	h.Root = "root\xff"
	w := create(t, dir, h, features.Options{})
	class := "class\xff"
	img := four[1].image()
	img.Label = &class
	check(t, add(w, four[1]))
	_, err := w.Commit(t.Context(), features.Contents{Units: []features.Unit{{Images: []features.Image{img}}}, Classes: []string{class}})
	check(t, err)
	s := open(t, dir)
	images, err := s.Images()
	check(t, err)
	if s.Root != h.Root || s.Classes[0] != "class%FF" || *images[0].Label != "class%FF" || images[0].Path != four[1].path {
		t.Errorf("got %+v, %+v", s.Meta, images[0])
	}
}

func TestOutIsALink(t *testing.T) {
	parent := t.TempDir()
	target, link := filepath.Join(parent, "target"), filepath.Join(parent, "link")
	commit(t, create(t, target, header, features.Options{}), four[:2])
	if err := os.Symlink("target", link); err != nil {
		t.Skip(err)
	}
	if to, err := os.Readlink(link); err != nil || to != "target" {
		t.Skip("no links here, as under Wine")
	}
	commit(t, create(t, link, header, features.Options{}), four)
	if info, err := os.Lstat(link); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link is now %v, %v", info, err)
	}
	if s := open(t, target); s.N != 4 {
		t.Errorf("%d rows", s.N)
	}
}

// TestWithoutExchange covers systems where folders cannot be exchanged.
func TestWithoutExchange(t *testing.T) {
	noExchange := func(op, _ string) error {
		if op == "exchange" {
			return errors.ErrUnsupported
		}
		return nil
	}
	disk.SetFault(noExchange)
	defer disk.SetFault(nil)
	dir := filepath.Join(t.TempDir(), "set")
	commit(t, create(t, dir, header, features.Options{}), four[:2])
	commit(t, create(t, dir, header, features.Options{}), four)
	if s := open(t, dir); s.N != 4 {
		t.Errorf("%d rows", s.N)
	}
	absent(t, dir+".partial")

	// Killed between the two renames: the old set comes back.
	before := contents(t, dir)
	aside := false
	disk.SetFault(func(op, path string) error {
		if aside {
			return errKilled
		}
		aside = op == "rename" && filepath.Base(path) == "old"
		return noExchange(op, path)
	})
	w := create(t, dir, header, features.Options{})
	if err := finish(w, four[:1]); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	w.Close()
	absent(t, dir)
	disk.SetFault(noExchange)
	check(t, create(t, dir, header, features.Options{}).Close())
	if after := contents(t, dir); !mapsEqual(before, after) {
		t.Error("the old set did not come back")
	}
}

// TestInterruptedRunsGiveTheSameBytes kills runs at random moments: both files
// of the journal end anywhere in what was written, independently, as after a
// power failure; sometimes a stretch of them is overwritten, too.
func TestInterruptedRunsGiveTheSameBytes(t *testing.T) {
	withoutSync(t)
	var pictures []picture
	for i := range 12 {
		pictures = append(pictures, picture{fmt.Sprintf("cat/%d%%ff.png", i), int64(i % 2), i})
	}
	failed := features.Failure{Path: pictures[5].path, Error: "cut short"}
	once := filepath.Join(t.TempDir(), "once")
	commit(t, create(t, once, header, features.Options{}), pictures, failed)
	parent, run := t.TempDir(), 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		dir := filepath.Join(parent, fmt.Sprint(run))
		if rapid.Bool().Draw(rt, "old set") {
			commit(t, create(t, dir, header, features.Options{}), pictures[:rapid.IntRange(0, 4).Draw(rt, "old rows")])
		}
		for range rapid.IntRange(0, 4).Draw(rt, "kills") {
			w := create(t, dir, header, features.Options{})
			for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(pictures)-1), 0, 6).Draw(rt, "appended") {
				if !pictures[i].known(w) {
					check(t, add(w, pictures[i]))
				}
			}
			check(t, w.Close())
			for _, name := range []string{"rows.f32", "rows.jsonl"} {
				path := filepath.Join(dir+".partial", name)
				data, err := os.ReadFile(path)
				if errors.Is(err, fs.ErrNotExist) || len(data) == 0 {
					continue
				}
				check(t, err)
				data = data[:rapid.IntRange(0, len(data)).Draw(rt, "length of "+name)]
				if len(data) > 0 && rapid.Bool().Draw(rt, "damage") {
					from := rapid.IntRange(0, len(data)-1).Draw(rt, "from")
					clear(data[from:min(len(data), from+30)])
				}
				check(t, os.WriteFile(path, data, 0o666))
			}
		}
		w := create(t, dir, header, features.Options{})
		// The workers of the last run finish in any order.
		for _, i := range rapid.Permutation([]int{0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11}).Draw(rt, "order") {
			if !pictures[i].known(w) {
				check(t, add(w, pictures[i]))
			}
		}
		commit(t, w, pictures, failed)
		sameContents(t, once, dir)
		absent(t, dir+".partial")
	})
}

// BenchmarkCommit writes 20,000 rows of 768 features.
func BenchmarkCommit(b *testing.B) {
	h := header
	h.D, h.LogitsDim = 768, 0
	values := make([]float32, h.D)
	for i := range values {
		values[i] = rand.Float32()
	}
	var listing []features.Image
	for i := range 20_000 {
		listing = append(listing, picture{fmt.Sprintf("cat/%d.png", i), 1, i}.image())
	}
	dir := filepath.Join(b.TempDir(), "set")
	for b.Loop() {
		w := create(b, dir, h, features.Options{})
		for _, img := range listing {
			if !w.Has(img.Path, img.Bytes, img.MTime) {
				check(b, w.Append(img, values, nil))
			}
		}
		_, err := w.Commit(b.Context(), features.Contents{Units: []features.Unit{{Images: listing}}, Classes: classes})
		check(b, err)
		b.StopTimer()
		check(b, os.RemoveAll(dir))
		b.StartTimer()
	}
	b.SetBytes(int64(len(listing)) * int64(h.D) * 4)
}

func Example() {
	dir, err := os.MkdirTemp("", "features-example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)

	w, err := features.Create(context.Background(), filepath.Join(dir, "set"), features.Header{D: 2, Fingerprint: "model and preprocessing"}, features.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer w.Close()
	cat := "cat"
	img := features.Image{Path: "cat/1.png", Label: &cat, Bytes: 120, MTime: 1700000000000000000, SHA256: strings.Repeat("00", 32)}
	if !w.Has(img.Path, img.Bytes, img.MTime) {
		err = w.Append(img, []float32{0.25, -1}, nil)
	}
	if err == nil {
		_, err = w.Commit(context.Background(), features.Contents{Units: []features.Unit{{Images: []features.Image{img}}}, Classes: []string{cat}})
	}
	if err != nil {
		fmt.Println(err)
		return
	}

	s, err := features.Open(context.Background(), filepath.Join(dir, "set"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	fmt.Println(s.N, s.D, s.Row(0), s.Classes[s.Labels()[0]])
	// Output: 1 2 [0.25 -1] cat
}
