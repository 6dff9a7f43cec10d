package command

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/serve/store"
)

// TestStore: a store is copied, comes back, and loses what is old, each time with a trail
// that holds.
func TestStore(t *testing.T) {
	t.Chdir(t.TempDir())
	db, err := store.Open(t.Context(), "a.db", store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Add(t.Context(), []store.Verdict{{ID: "old", Time: time.Now().Add(-time.Hour)}, {ID: "new", Time: time.Now()}}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	call(t, done, "store", "backup", "a.db", "copy")
	call(t, failed, "store", "backup", "a.db", "copy")
	call(t, failed, "store", "backup", "none.db", "other")
	out, _ := call(t, done, "store", "prune", "--older-than", "30m", "a.db")
	if !strings.Contains(out, "1 lines went") {
		t.Error(out)
	}
	call(t, failed, "store", "restore", "copy", "a.db")
	call(t, done, "store", "restore", "copy", "b.db")
	for _, name := range []string{"a.db", "b.db"} {
		call(t, done, "audit", name)
	}
	data, err := os.ReadFile("copy")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("copy", []byte(strings.Replace(string(data), "old", "odd", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	call(t, failed, "store", "restore", "copy", "c.db")
	call(t, usage, "store", "prune", "a.db")
	call(t, usage, "store")
}

// TestSocketThatWasLeft: the socket of a service that was killed is taken over, and that of
// one that runs, or another file, is not.
func TestSocketThatWasLeft(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows removes such a file")
	}
	file := filepath.Join(t.TempDir(), "s")
	first, err := listenOn("unix:" + file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listenOn("unix:" + file); err == nil {
		t.Error("the socket of a service that runs was taken")
	}
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	first.Close()
	again, err := listenOn("unix:" + file)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listenOn("unix:" + file); err == nil {
		t.Error("a file was taken for a socket")
	}
	if _, err := os.ReadFile(file); errors.Is(err, os.ErrNotExist) {
		t.Error("a file was removed")
	}
}

// TestFromEnvironment: a variable stands for a flag that is not given, and a wrong one is
// wrong usage that names it.
func TestFromEnvironment(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("MLRBFN_SERVE_DETECTOR", "a=none.safetensors\nb=none.safetensors")
	if _, said := call(t, failed, "serve", "--listen", "unix:s"); !strings.Contains(said, "none.safetensors") {
		t.Error(said)
	}
	t.Setenv("MLRBFN_SERVE_WORKERS", "many")
	if _, said := call(t, usage, "serve"); !strings.Contains(said, "MLRBFN_SERVE_WORKERS") {
		t.Error(said)
	}
}
