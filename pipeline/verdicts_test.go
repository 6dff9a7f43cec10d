package pipeline_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/disk"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

var one = features.Shard{Index: 1, Count: 1}

func check(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func line(path string) []byte {
	return fmt.Appendf(nil, `{"path": %q, "class": "cat", "confidence": 0.9, "score": 1.5, "ood": false, "p_value": 0.4}`+"\n", path)
}

func workOf(judge, listing string) pipeline.Work {
	return pipeline.Work{Judge: judge, Images: -1, Listing: listing, Format: pipeline.JSONL}
}

func yes(string) bool { return true }

// makePart makes a part of one image.
func makePart(t *testing.T, dir string, shard features.Shard, work pipeline.Work, path string) *pipeline.VerdictRecord {
	t.Helper()
	w, err := pipeline.CreateVerdicts(dir, shard, work, yes)
	check(t, err)
	if !w.Finished() && w.Len() == 0 {
		check(t, w.Append(line(path)))
	}
	r, err := w.Commit()
	check(t, err)
	return r
}

// TestUnreadOfKilledRun: the list is read as earlier versions wrote it, and without a line
// that was not written to its end.
func TestUnreadOfKilledRun(t *testing.T) {
	dir := t.TempDir()
	work := filepath.Join(dir, "part-00001-of-00001.partial")
	w, err := pipeline.CreateVerdicts(dir, one, workOf("j", "l"), yes)
	check(t, err)
	check(t, w.Unread("b"), w.Unread("c"), w.Unread("b"), w.Append(line("x")), w.Close())
	check(t, os.WriteFile(filepath.Join(work, "unread.json"), []byte(`["a","b"]`), 0o666))
	list, err := os.ReadFile(filepath.Join(work, "unread.jsonl"))
	check(t, err)
	if string(list) != "\"b\"\n\"c\"\n" {
		t.Errorf("the list is %q", list)
	}
	check(t, os.WriteFile(filepath.Join(work, "unread.jsonl"), append(list, `"d`...), 0o666))
	w, err = pipeline.CreateVerdicts(dir, one, workOf("j", "l"), yes)
	check(t, err)
	check(t, w.Unread("e"))
	r, err := w.Commit()
	check(t, err)
	if want := []string{"a", "b", "c", "e"}; !slices.Equal(r.Unread, want) {
		t.Errorf("%q, want %q", r.Unread, want)
	}
}

// TestRecordRemains: a run that ends while its verdicts replace those of a finished part
// leaves their record, unless the new verdicts have the same size: the record would match them.
func TestRecordRemains(t *testing.T) {
	defer disk.SetFault(nil)
	for _, path := range []string{"longer", "b"} { // b has the size of a
		for _, at := range []string{".jsonl", ".json"} {
			dir := t.TempDir()
			base := filepath.Join(dir, "part-00001-of-00001")
			makePart(t, dir, one, workOf("j", "before"), "a")
			w, err := pipeline.CreateVerdicts(dir, one, workOf("j", "now"), yes)
			check(t, err)
			check(t, w.Append(line(path)))
			broken := errors.New("broken")
			disk.SetFault(func(op, file string) error {
				if op == "rename" && strings.HasSuffix(file, at) {
					return broken
				}
				return nil
			})
			_, err = w.Commit()
			disk.SetFault(nil)
			if !errors.Is(err, broken) {
				t.Fatalf("%v", err)
			}
			check(t, w.Close())
			_, err = os.Stat(base + ".json")
			if there := err == nil; there != (path == "longer") {
				t.Errorf("%s, %s: a record: %v", path, at, there)
			}
			makePart(t, dir, one, workOf("j", "now"), path)
			if text, err := os.ReadFile(base + ".jsonl"); err != nil || !bytes.Equal(text, line(path)) {
				t.Errorf("%v: %s", err, text)
			}
		}
	}
}
