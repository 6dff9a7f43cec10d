package extractor

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestKept: a model that is opened twice in the same way is one session, also after it was
// closed, until its files or the settings are others; few stay open without a user.
func TestKept(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(exports, "nhwc-int8"))); err != nil {
		t.Fatal(err)
	}
	kept := new(Kept)
	open := func(opts Options) *Model {
		t.Helper()
		opts.Kept = kept
		return openTest(t, dir, opts)
	}
	closed := func(models ...*Model) {
		t.Helper()
		for _, m := range models {
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	run := func(m *Model) {
		t.Helper()
		r, err := m.newRunner(1)
		if err == nil {
			err = errors.Join(r.Run(t.Context(), 1), r.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	first, same := open(Options{}), open(Options{Drifted: func(string) {}, Workers: 2, Batch: 2, MaxPixels: 9, ImageTimeout: 1, NoHash: true, Progress: func(int, int, int) {}, Chosen: func(Plan) {}})
	session := first.session
	if same.session != session {
		t.Error("a second session is open")
	}
	run(first)
	closed(first, first) // twice is once
	run(same)
	closed(same)
	again := open(Options{})
	if again.session != session {
		t.Error("it was not kept")
	}
	run(again)
	two := open(Options{IntraOpThreads: 2})
	if two.session == session {
		t.Error("another number of threads is the same session")
	}
	file := filepath.Join(dir, "preprocessor_config.json")
	if err := os.Chtimes(file, time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	other := open(Options{})
	if other.session == session {
		t.Error("files that have changed are the same session")
	}
	closed(again, two, other)
	if len(kept.models) != mostKept || kept.models[1].session == nil {
		t.Errorf("%d models are open without a user", len(kept.models))
	}
	if err := kept.closeIdle(mostKept, 0); err != nil || len(kept.models) > 0 {
		t.Errorf("%d models are open that nobody has used for long: %v", len(kept.models), err)
	}
}
