package command

import (
	"context"
	"database/sql"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/pipeline/detector"
	"github.com/mlrbfn/mlrbfn/serve/store"
)

func TestAudit(t *testing.T) {
	dir := t.TempDir()
	place, heads := filepath.Join(dir, "store.db"), filepath.Join(dir, "heads")
	add := func(names ...string) {
		t.Helper()
		s, err := store.Open(t.Context(), place)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		for _, name := range names {
			if err := s.Add(t.Context(), []store.Verdict{{ID: name, Time: time.Unix(1, 0), Verdict: detector.Verdict{Class: "cat"}}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	change := func(statement string) {
		t.Helper()
		db, err := sql.Open("sqlite", place)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.ExecContext(context.Background(), statement); err != nil {
			t.Fatal(err)
		}
	}
	fails(t, "no such file", "audit", place)
	add("a", "b", "c")
	text, _ := call(t, 0, "audit", "--heads", heads, place)
	if !strings.Contains(text, "3 lines") || !strings.Contains(text, "\nhead 3:") {
		t.Errorf("it prints\n%s", text)
	}
	add("d")
	first, err := os.ReadFile(heads)
	if err != nil {
		t.Fatal(err)
	}
	text, _ = call(t, 0, "audit", "--head", strings.TrimSpace(string(first)), "--json", place)
	var got struct {
		OK    bool
		Lines int
		Head  string
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil || !got.OK || got.Lines != 4 || !strings.HasPrefix(got.Head, "4:") {
		t.Errorf("%v: %s", err, text)
	}
	call(t, 0, "audit", "--heads", heads, place)
	call(t, 0, "audit", "--heads", heads, place)
	if both, err := os.ReadFile(heads); err != nil || string(both) != string(first)+got.Head+"\n" {
		t.Errorf("the file of heads has\n%s%v", both, err)
	}
	// The last line goes, and the head with it: only the file shows that.
	change("DELETE FROM verdicts WHERE seq = 4")
	change("UPDATE head SET seq = 3, hash = (SELECT hash FROM verdicts WHERE seq = 3)")
	call(t, 0, "audit", place)
	fails(t, "line 4: it is missing", "audit", "--heads", heads, place)
	change("UPDATE verdicts SET class = 'dog' WHERE id = 'b'")
	fails(t, "line 2 (verdict b)", "audit", place)
	text, _ = call(t, failed, "audit", "--json", place)
	if !strings.HasPrefix(text, `{"ok":false,"line":2,"id":"b",`) {
		t.Errorf("it prints %s", text)
	}
	refused(t, "--head", "audit", "--head", "4", place)
	refused(t, "one store", "audit")
	write(t, filepath.Join(dir, "other"), "no store\n")
	fails(t, "other", "audit", filepath.Join(dir, "other"))
}
