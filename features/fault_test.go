package features_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/disk"

	"pgregory.net/rapid"
)

// errKilled is the error of every operation after a run was killed.
var errKilled = errors.New("killed")

// failures are the ways in which the operation with the number at, and all after
// it, can fail.
var failures = map[string]func(at int) disk.Fault{
	"killed": func(at int) disk.Fault {
		return counted(func(n int, _ string) error { return when(n >= at, errKilled) })
	},
	"disk full": func(at int) disk.Fault {
		return counted(func(n int, op string) error {
			return when(n >= at && op != "remove" && op != "rename" && op != "exchange" && op != "truncate", syscall.ENOSPC)
		})
	},
	"one failure": func(at int) disk.Fault {
		return counted(func(n int, _ string) error { return when(n == at, syscall.EIO) })
	},
}

func when(yes bool, err error) error {
	if yes {
		return err
	}
	return nil
}

// counted is a fault that knows how many operations came before.
func counted(fault func(n int, op string) error) disk.Fault {
	n := -1
	return func(op, _ string) error {
		n++
		return fault(n, op)
	}
}

// withoutExchange makes a fault that cannot exchange folders either.
func withoutExchange(fault disk.Fault) disk.Fault {
	return func(op, path string) error {
		if err := fault(op, path); err != nil || op != "exchange" {
			return err
		}
		return errors.ErrUnsupported
	}
}

// withoutSync saves the time of syncing in a test that does not depend on it.
func withoutSync(t testing.TB) {
	disk.SetFault(func(string, string) error { return nil })
	t.Cleanup(func() { disk.SetFault(nil) })
}

// attempt extracts the pictures onto dir while fault is in force.
func attempt(t testing.TB, dir string, pictures []picture, failed features.Failure, fault disk.Fault) error {
	t.Helper()
	if fault == nil {
		fault = func(string, string) error { return nil } // nor does it sync
	}
	disk.SetFault(fault)
	defer disk.SetFault(nil)
	w, err := features.Create(t.Context(), dir, header, features.Options{})
	if err != nil {
		return err
	}
	err = finish(w, pictures, failed)
	return errors.Join(err, w.Close())
}

// TestEveryOperationFails makes each disk operation of an extraction fail, in each
// of the ways, and then lets the next run continue: the set is that of a run
// without failures, and until then the old one can be read.
func TestEveryOperationFails(t *testing.T) {
	before := []picture{{"ant & bee/1.png", 0, 1}, {"gone.png", -1, 9}, {"cat/100%.png", 1, 5}}
	failed := features.Failure{Path: four[1].path, Error: "cut short"}
	once := filepath.Join(t.TempDir(), "once")
	check(t, attempt(t, once, four, failed, nil))
	tests := map[string]struct {
		prepare  func(dir string) error
		exchange bool
	}{
		"no set":                       {func(string) error { return nil }, true},
		"a set":                        {func(dir string) error { return attempt(t, dir, before, features.Failure{}, nil) }, true},
		"a set, folders do not change": {func(dir string) error { return attempt(t, dir, before, features.Failure{}, nil) }, false},
		"an unfinished set": {func(dir string) error {
			w := create(t, dir, header, features.Options{})
			return errors.Join(add(w, four[3]), add(w, before[2]), w.Close())
		}, true},
	}
	for name, test := range tests {
		test.exchange = test.exchange && runtime.GOOS == "linux" // package disk exchanges folders nowhere else
		for way, failure := range failures {
			t.Run(name+", "+way, func(t *testing.T) {
				parent, at, step := t.TempDir(), 0, 1
				if testing.Short() {
					step = 7
				}
				for ; ; at += step {
					dir := filepath.Join(parent, fmt.Sprint(at))
					check(t, test.prepare(dir))
					_, noSet := os.Stat(dir)
					fault, reached := failure(at), false
					seen := disk.Fault(func(op, path string) error {
						err := fault(op, path)
						reached = reached || err != nil
						return err
					})
					if !test.exchange {
						seen = withoutExchange(seen)
					}
					err := attempt(t, dir, four, failed, seen)
					if !reached {
						check(t, err)
						break
					}
					if noSet == nil && test.exchange {
						s, err := features.Open(t.Context(), dir)
						if err != nil {
							t.Fatalf("after operation %d the old set is lost: %v", at, err)
						}
						check(t, s.Verify(t.Context()), s.Close())
					}
					if err := attempt(t, dir, four, failed, nil); err != nil {
						t.Fatalf("after operation %d: %v", at, err)
					}
					sameContents(t, once, dir)
					absent(t, dir+".partial")
				}
				if at < 20 {
					t.Errorf("%d operations, want more", at)
				}
			})
		}
	}
}

// TestFailureAfterFailure lets several runs fail one after another.
func TestFailureAfterFailure(t *testing.T) {
	failed := features.Failure{Path: four[1].path, Error: "cut short"}
	once := filepath.Join(t.TempDir(), "once")
	check(t, attempt(t, once, four, failed, nil))
	parent, run := t.TempDir(), 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		dir := filepath.Join(parent, fmt.Sprint(run))
		if rapid.Bool().Draw(rt, "old set") {
			check(t, attempt(t, dir, four[2:], features.Failure{}, nil))
		}
		exchange := rapid.Bool().Draw(rt, "exchange")
		for range rapid.IntRange(1, 5).Draw(rt, "failures") {
			way := rapid.SampledFrom([]string{"killed", "disk full", "one failure"}).Draw(rt, "way")
			fault := failures[way](rapid.IntRange(0, 60).Draw(rt, "at"))
			if !exchange {
				fault = withoutExchange(fault)
			}
			_ = attempt(t, dir, slices.Clone(four), failed, fault) // it may succeed as well
		}
		check(t, attempt(t, dir, four, failed, nil))
		sameContents(t, once, dir)
		absent(t, dir+".partial")
	})
}

// TestCancelledCommit: the old set remains, and a later run continues.
func TestCancelledCommit(t *testing.T) {
	dir, once := filepath.Join(t.TempDir(), "set"), filepath.Join(t.TempDir(), "once")
	commit(t, create(t, once, header, features.Options{}), four)
	commit(t, create(t, dir, header, features.Options{}), four[:2])
	before := contents(t, dir)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := features.Create(ctx, dir, header, features.Options{Force: true}); !errors.Is(err, context.Canceled) {
		t.Errorf("Create: %v", err)
	}
	w := create(t, dir, header, features.Options{})
	check(t, add(w, four[2]))
	if _, err := w.Commit(ctx, features.Contents{Units: []features.Unit{{Images: []features.Image{four[2].image()}}}}); !errors.Is(err, context.Canceled) {
		t.Errorf("Commit: %v", err)
	}
	check(t, w.Close())
	if !mapsEqual(before, contents(t, dir)) {
		t.Error("it changed the set")
	}
	if _, err := features.Create(ctx, dir, header, features.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Create with unfinished work: %v", err)
	}
	w = create(t, dir, header, features.Options{})
	if !four[2].known(w) {
		t.Error("the row is lost")
	}
	commit(t, w, four)
	sameContents(t, once, dir)
}
