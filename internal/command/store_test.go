package command

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
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
	db, err := store.Open(t.Context(), "a.db")
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

// TestResend: an event that was set aside is sent again, by a command, to the address that it
// is meant for.
func TestResend(t *testing.T) {
	t.Chdir(t.TempDir())
	var got []string
	status := http.StatusTeapot
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = append(got, r.Header.Get("webhook-id")+string(body))
		w.WriteHeader(status)
	}))
	defer receiver.Close()
	db, err := store.Open(t.Context(), "a.db")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(receiver.URL))
	key := "webhook/" + hex.EncodeToString(sum[:8])
	for key, value := range map[string]string{key: `{}`, "refused-" + key + "/x": `{"id":"x","status":418,"event":{"of":"x"}}`} {
		if err := db.SetState(t.Context(), key, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(db.Close(), os.WriteFile("secret", []byte("a secret of this test\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	call(t, failed, "store", "resend", "--webhook", receiver.URL+"/other", "--webhook-secret", "secret", "a.db")
	call(t, failed, "store", "resend", "--webhook", receiver.URL, "a.db") // without a secret
	if out, _ := call(t, failed, "store", "resend", "--webhook", receiver.URL, "--webhook-secret", "secret", "a.db"); !strings.Contains(out, "0 taken, 1 refused") {
		t.Error(out)
	}
	status = http.StatusNoContent
	for _, says := range []string{"1 taken, 0 refused", "0 taken, 0 refused"} {
		if out, _ := call(t, done, "store", "resend", "--webhook", receiver.URL, "--webhook-secret", "secret", "a.db"); !strings.Contains(out, says) {
			t.Error(out)
		}
	}
	if len(got) != 2 || got[1] != `x{"of":"x"}` {
		t.Errorf("%q came", got)
	}
	call(t, done, "audit", "a.db")
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
