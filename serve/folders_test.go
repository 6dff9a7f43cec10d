package serve

import (
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/serve/internal/servetest"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

// TestFolders: the images of a folder are judged as those of requests are, each once over
// restarts and whatever becomes of the store, and broken ones are told once.
func TestFolders(t *testing.T) {
	dir := t.TempDir()
	in, file, place := filepath.Join(dir, "in"), servetest.Detector(t, 1), filepath.Join(dir, "store.db")
	write := func(name string, data []byte) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(in, name)), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(in, name), data, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	var db store.Store
	run := func(images, broken int) (all []store.Record) {
		t.Helper()
		var err error
		if db, err = store.Open(t.Context(), place); err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		s, err := New(t.Context(), Options{
			Store: db, Folders: []WatchedFolder{{"camera", in}}, FolderEvery: time.Millisecond, FolderSettle: 20 * time.Millisecond, MaxBody: 5000,
			Detectors: Detectors{Detectors: []Named{{Name: "main", File: file}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for until := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			if all, err = db.List(t.Context(), store.Query{Order: store.Oldest, Limit: 1000}); err != nil {
				t.Fatal(err)
			}
			values, err := db.States(t.Context(), brokenKey)
			if err != nil {
				t.Fatal(err)
			}
			maps.DeleteFunc(values, func(_ string, value []byte) bool { return len(value) == 0 })
			if len(all) >= images && len(values) >= broken || time.Now().After(until) {
				if len(all) != images || len(values) != broken {
					t.Errorf("%d verdicts and %d broken, want %d and %d", len(all), len(values), images, broken)
				}
				return all
			}
		}
	}
	write("a/0.png", servetest.Image(0, 1))
	write("1.png", servetest.Image(1, 2))
	broken := "<b>.png"
	if runtime.GOOS == "windows" {
		broken = "b.png" // where no name has such letters
	}
	write(broken, []byte("no image"))
	write("large.png", make([]byte, 5001))
	write("notes.txt", []byte("x"))
	all := run(2, 2)
	names := []string{all[0].Name, all[1].Name}
	if slices.Sort(names); !slices.Equal(names, []string{"1.png", "a/0.png"}) || all[0].Source != "camera" || len(all[0].Image) != 64 {
		t.Errorf("%+v", all)
	}
	write("2.png", servetest.Image(1, 3))
	if again := run(3, 2); again[0].ID != all[0].ID || again[2].Name != "2.png" {
		t.Errorf("%+v", again)
	}

	// What was repaired is broken no more.
	write("3.png", []byte("no image"))
	run(3, 3)
	write("3.png", servetest.Image(1, 4))
	run(4, 2)

	// The answer to who asks for broken files names no folder of this machine.
	w := start(t, func(o *Options) {
		var err error
		if db, err = store.Open(t.Context(), place); err != nil {
			t.Fatal(err)
		}
		o.Store, o.Folders = db, []WatchedFolder{{"camera", in}}
	})
	t.Cleanup(func() { db.Close() })
	status, _, text := ask(t, "GET", w.url+"/v1/broken", nil, nil)
	var got struct{ Broken []brokenFile }
	decode(t, text, &got)
	if status != 200 || len(got.Broken) != 2 || strings.Contains(text, dir) || strings.Contains(text, "MaxBody") || strings.Contains(text, "<") {
		t.Errorf("%d %s", status, text)
	}

	for _, folders := range [][]WatchedFolder{{{"camera", filepath.Join(dir, "none")}}, {{"", in}}, {{"a", in}, {"a", dir}}} {
		if s, err := New(t.Context(), Options{Store: db, Folders: folders, Detectors: Detectors{Detectors: []Named{{Name: "main", File: file}}}}); err == nil {
			t.Errorf("%v was taken", folders)
			s.Close()
		}
	}
	if s, err := New(t.Context(), Options{Folders: []WatchedFolder{{"camera", in}}, Detectors: Detectors{Detectors: []Named{{Name: "main", File: file}}}}); err == nil {
		t.Error("a folder without a store")
		s.Close()
	}
}
