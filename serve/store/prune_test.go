package store

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// testPrune: verdicts that are old go, but for reviewed ones; the trail says so, holds, and
// does not when somebody lets more go, or hides that some went.
func testPrune(t *testing.T, place string) {
	s := open(t, place)
	list := verdicts(40)
	for i := range list {
		list[i].Features = []float32{1}
	}
	must(t, s.Add(ctx, list[:20]))
	must(t, s.Review(ctx, []Review{{ID: list[3].ID, Decision: IsFine, Time: list[19].Time}}))
	early, err := s.Head(ctx)
	must(t, err)
	must(t, s.Add(ctx, list[20:]))
	cut := list[30].Time
	n, err := s.Prune(ctx, cut, "ann")
	if must(t, err); n != 31 { // and one is a review
		t.Errorf("%d lines went", n)
	}
	if n, err := s.Prune(ctx, cut, "ann"); n != 0 || err != nil {
		t.Errorf("again %d lines went (%v)", n, err)
	}
	left, err := s.List(ctx, Query{Order: Oldest, WithFeatures: true})
	if must(t, err); len(left) != 11 || left[0].ID != list[3].ID || left[0].Review == nil || left[1].ID != list[30].ID {
		t.Errorf("%d are left: %+v", len(left), left[0])
	}
	said, err := s.Reviews(ctx, "prune")
	if must(t, err); len(said) != 1 || said[0].By != "ann" || !strings.HasPrefix(said[0].Class, "31 lines up to 31:") {
		t.Errorf("%+v", said)
	}
	must(t, s.Add(ctx, verdicts(45)[40:]))
	head, err := s.Verify(ctx)
	must(t, err)
	if _, err := s.Verify(ctx, head); err != nil {
		t.Error(err)
	}
	var broken *BrokenError
	if _, err := s.Verify(ctx, early); !errors.As(err, &broken) || !strings.Contains(err.Error(), "it went") {
		t.Errorf("a head that went: %v", err)
	}
	for _, alter := range []string{
		`DELETE FROM verdicts WHERE seq = (SELECT min(seq) FROM verdicts WHERE seq > 31)`,
		`UPDATE state SET value = NULL WHERE key = 'trail/base'`,
	} {
		_, err := s.write.ExecContext(ctx, alter)
		must(t, err)
		if _, err := s.Verify(ctx); !errors.As(err, &broken) {
			t.Errorf("%s: %v", alter, err)
		}
	}
}

// TestRemoved: a store whose file was removed, or replaced, stores nothing and says so.
func TestRemoved(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows removes no file that is open")
	}
	file := filepath.Join(t.TempDir(), "store.db")
	s := open(t, file)
	must(t, s.Add(ctx, verdicts(1)))
	must(t, os.Rename(file, file+".moved"))
	if err := s.Add(ctx, verdicts(2)); err == nil || !strings.Contains(err.Error(), "removed or replaced") {
		t.Errorf("removed: %v", err)
	}
	open(t, file)
	if err := s.Ping(ctx); err == nil {
		t.Error("a store that was replaced can be used")
	}
	must(t, os.Remove(file))
	must(t, os.Rename(file+".moved", file))
	must(t, s.Add(ctx, verdicts(2)))
}

// TestBackup: a copy has all that was stored when it was made, and it and the store are
// for nobody else to read.
func TestBackup(t *testing.T) {
	dir := t.TempDir()
	s := open(t, filepath.Join(dir, "store.db"))
	must(t, s.Add(ctx, verdicts(20)))
	want, err := s.Head(ctx)
	must(t, err)
	copied := filepath.Join(dir, "copy")
	must(t, s.Backup(ctx, copied))
	must(t, s.Add(ctx, verdicts(30)[20:]))
	if err := s.Backup(ctx, copied); err == nil {
		t.Error("a file was replaced")
	}
	got, err := opened(t)(OpenReadOnly(ctx, copied)).Verify(ctx)
	if must(t, err); got != want {
		t.Errorf("%v, want %v", got, want)
	}
	images := &Images{}
	err = images.Open(filepath.Join(dir, "images"))
	must(t, err)
	sum := strings.Repeat("ab", 32)
	must(t, images.Put(sum, []byte("x")))
	images.Close()
	must(t, s.Compact(ctx))
	for name, mode := range map[string]os.FileMode{"store.db": 0o600, "store.db-wal": 0o600, "copy": 0o600, "images": 0o700, "images/ab": 0o700, "images/ab/" + sum: 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); runtime.GOOS != "windows" && (err != nil || info.Mode().Perm() != mode) {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
}
