package parts

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/mlrbfn/mlrbfn/internal/bucket"
	_ "github.com/mlrbfn/mlrbfn/internal/bucket/web"
)

// TestNames: every name is that of one shard, and others are of none.
func TestNames(t *testing.T) {
	for _, s := range []Shard{{1, 1}, {7, 12}, {65535, 65536}} {
		if got, ok := Parse("part", Name("part", s)); got != s || !ok {
			t.Errorf("%s: %v, %v", Name("part", s), got, ok)
		}
	}
	for _, name := range []string{"", "part", "part-1-of-3", "part-00004-of-00003", "part-00000-of-00003", "part-00001-of-00003x", "parts-00001-of-00003"} {
		if s, ok := Parse("part", name); ok {
			t.Errorf("%q is %v", name, s)
		}
	}
}

// TestMade: what a shard made has its checksum in the name; what users named alike is theirs.
func TestMade(t *testing.T) {
	s := Shard{1, 3}
	b := Set[struct{}]{Layout: Layout[struct{}]{Kind: "part", Ends: []string{".jsonl"}}}
	sum := hex.EncodeToString(make([]byte, sha256.Size))
	if name := b.Made(s, sum) + ".jsonl"; !b.made(s, name) || b.made(Shard{2, 3}, name) {
		t.Errorf("%s is not of %s alone", name, s)
	}
	for _, end := range []string{"", "0.jsonl", ".jsonl.bak", "-backup.jsonl", "/../x.jsonl"} {
		if name := b.Made(s, sum) + end; b.made(s, name) {
			t.Errorf("%s made %s", s, name)
		}
	}
	for _, name := range []string{"part-00001-of-00003-0.jsonl", "part-00001-of-00003-my-own-backup-0.jsonl", "part-00001-of-00003.json"} {
		if b.made(s, name) {
			t.Errorf("%s made %s", s, name)
		}
	}
}

// TestCopy: an object is compared with what was written. One that is replaced while it is
// read is not called damaged.
func TestCopy(t *testing.T) {
	text := []byte("some bytes")
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/object":
			_, _ = w.Write(text)
		case "/replaced": // after its first bytes
			asked++
			w.Header().Set("ETag", []string{`"old"`, `"new"`}[min(asked, 2)-1])
			w.Header().Set("Content-Length", "10")
			_, _ = w.Write(text[:5])
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	bucket.SetLimits(bucket.Limits{})
	folder, _, err := bucket.OpenObject(t.Context(), server.URL+"/object")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	good := hex.EncodeToString(sum[:])
	for _, c := range []struct {
		Written
		want error
	}{
		{Written{Name: "object", Bytes: 10, SHA256: good}, nil},
		{Written{Name: "object", Bytes: 10, Unchecked: true}, nil},
		{Written{Name: "object", Bytes: 10}, ErrDamaged},
		{Written{Name: "object", Bytes: 9, SHA256: good}, ErrDamaged},
		{Written{Name: "object", Bytes: 11, SHA256: good}, ErrDamaged},
		{Written{Name: "missing", Bytes: 10, SHA256: good}, ErrDamaged},
		{Written{Name: "replaced", Bytes: 10, SHA256: good}, bucket.ErrChanged},
	} {
		var got bytes.Buffer
		err := c.Copy(t.Context(), folder, &got)
		if !errors.Is(err, c.want) || errors.Is(err, ErrDamaged) != (c.want == ErrDamaged) {
			t.Errorf("%+v: %v, want %v", c.Written, err, c.want)
		}
		if err == nil && !bytes.Equal(got.Bytes(), text) {
			t.Errorf("%q", got.Bytes())
		}
	}
}
