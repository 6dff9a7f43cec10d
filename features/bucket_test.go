package features_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/mlrbfn/mlrbfn/bucket/s3"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
)

// inBucket opens the folder set of a real object store, behind a proxy that calls before
// ahead of each request, and returns the folder on the disk that has its objects.
func inBucket(t *testing.T, before func(*http.Request)) (set *features.Bucket, folder string) {
	t.Helper()
	folder, address := testenv.Start(t, "s3")
	target, err := url.Parse("http://" + address)
	check(t, err)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // which is signed
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		before(r)
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	t.Setenv("AWS_ENDPOINT_URL_S3", server.URL)
	bucket.SetLimits(bucket.Limits{})
	set, err = features.OpenBucket(t.Context(), "s3://data/set", features.Options{})
	check(t, err)
	return set, filepath.Join(folder, "set")
}

// send makes part i of two, of another model for each version, and sends it.
func send(t *testing.T, set *features.Bucket, i, version int) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "part")
	shard(t, dir, i, func(h *features.Header) { h.Fingerprint = fmt.Sprint("f", version) })
	check(t, set.SendPart(t.Context(), features.Shard{Index: i, Count: 2}, dir, "inputs", nil))
}

// prepare prepares to make part i of two, which is there, as a whole or not.
func prepare(t *testing.T, set *features.Bucket, i int, whole bool) *features.BucketPart {
	t.Helper()
	part, is, err := set.Prepare(t.Context(), features.Shard{Index: i, Count: 2}, false)
	check(t, err)
	if part == nil || is != whole {
		t.Errorf("%+v is whole: %v", part, is)
	}
	return part
}

// TestPartThatIsNotWholeInBucket: an object of a finished part that is missing, shorter or
// another is noticed, and no manifest is made of such parts. The listing is enough, unless it
// has another ETag for an object of the same size: then its checksum says whether it is the
// same.
func TestPartThatIsNotWholeInBucket(t *testing.T) {
	var reads atomic.Int64 // of features.npy
	set, folder := inBucket(t, func(r *http.Request) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/features.npy") {
			reads.Add(1)
		}
	})
	send(t, set, 1, 1)
	send(t, set, 2, 1)
	unfinished, err := set.Commit(t.Context(), 2)
	check(t, unfinished, err)
	part := prepare(t, set, 1, true)
	manifest, err := os.ReadFile(filepath.Join(folder, "parts.json"))
	check(t, err)
	at, err := bucket.Open(t.Context(), set.String()+"/"+part.Name)
	check(t, err)
	big, _, err := at.Read(t.Context(), "features.npy", 1<<20)
	check(t, err)
	other := append([]byte{}, big...)
	other[len(other)-1]++
	for name, tt := range map[string]struct {
		do   func() error
		says string
	}{
		"missing": {func() error { return at.Delete(t.Context(), "features.npy") }, "features.npy is missing"},
		"shorter": {func() error { return at.Put(t.Context(), "features.npy", big[:len(big)-4]) }, "cut short"},
		"another": {func() error { return at.Put(t.Context(), "features.npy", other) }, "checksum"},
	} {
		check(t, tt.do())
		reads.Store(0)
		prepare(t, set, 1, false)
		unfinished, err := set.Commit(t.Context(), 2)
		if err != nil || !errors.Is(unfinished, features.ErrDamaged) || !strings.Contains(unfinished.Error(), tt.says) {
			t.Errorf("%s: commit: %v, %v", name, unfinished, err)
		}
		if now, err := os.ReadFile(filepath.Join(folder, "parts.json")); err != nil || string(now) != string(manifest) {
			t.Errorf("%s: the manifest is another: %v", name, err)
		}
		if n := reads.Load(); n > 0 && name != "another" {
			t.Errorf("%s: features.npy was read %d times", name, n)
		}
	}
	check(t, at.Put(t.Context(), "features.npy", other))
	if err := set.Fetch(t.Context(), part, filepath.Join(t.TempDir(), "fetched")); !errors.Is(err, features.ErrDamaged) {
		t.Errorf("fetch: %v", err)
	}
	send(t, set, 1, 1)
	part = prepare(t, set, 1, true)
	part.Objects["features.npy"] = features.Stored{Bytes: part.Objects["features.npy"].Bytes, ETag: `"of a copy"`}
	record, err := json.Marshal(part)
	check(t, err, set.Folder.Put(t.Context(), "part-00001-of-00002.json", record))
	prepare(t, set, 1, true)
}

// TestManifestOfOldPartsInBucket: while a run writes the manifest another makes a part
// again. The manifest names the new part in the end, and what it replaced is gone.
func TestManifestOfOldPartsInBucket(t *testing.T) {
	var armed atomic.Bool
	var set *features.Bucket
	set, folder := inBucket(t, func(r *http.Request) {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/parts.json") && armed.CompareAndSwap(true, false) {
			send(t, set, 1, 2)
			send(t, set, 2, 2)
		}
	})
	send(t, set, 1, 1)
	send(t, set, 2, 1)
	armed.Store(true)
	unfinished, err := set.Commit(t.Context(), 2)
	check(t, unfinished, err)
	if armed.Load() {
		t.Fatal("no manifest was written")
	}
	if runtime.GOOS == "linux" { // which reads sets in buckets
		s, err := features.OpenContext(t.Context(), set.String())
		check(t, err)
		if s.Fingerprint != "f2" {
			t.Errorf("the set is of %s", s.Fingerprint)
		}
		check(t, s.Verify(t.Context()), s.Close())
	}
	if left, err := filepath.Glob(filepath.Join(folder, "*-of-*-*")); err != nil || len(left) != 2 {
		t.Errorf("%q, %v", left, err)
	}
}

// TestReplacedPartsInBucket: a part names those before it that may still be there, and
// no others, however often it is made again.
func TestReplacedPartsInBucket(t *testing.T) {
	set, folder := inBucket(t, func(*http.Request) {})
	for version := range 4 { // the second shard is not made: nothing is deleted
		send(t, set, 1, version)
	}
	if part := prepare(t, set, 1, true); len(part.Replaces) != 3 {
		t.Errorf("%+v", part)
	}
	for version := 4; version < 8; version++ {
		send(t, set, 1, version)
		send(t, set, 2, version)
		unfinished, err := set.Commit(t.Context(), 2)
		check(t, unfinished, err)
	}
	if part := prepare(t, set, 1, true); len(part.Replaces) != 1 {
		t.Errorf("%+v", part)
	}
	if left, err := filepath.Glob(filepath.Join(folder, "*-of-*-*")); err != nil || len(left) != 2 {
		t.Errorf("%q, %v", left, err)
	}
	before := contents(t, folder)
	unfinished, err := set.Commit(t.Context(), 2)
	check(t, unfinished, err)
	if !maps.Equal(contents(t, folder), before) {
		t.Error("another commit wrote something")
	}
}

// TestDamagedRecordInBucket: where the record of a shard is damaged the shard is made again.
// Then the part is deleted that the manifest named, but nothing that is not known to be
// replaced: neither a user's copy nor what another run is sending. A record that vanishes while
// the manifest is made is said to be missing.
func TestDamagedRecordInBucket(t *testing.T) {
	var gone atomic.Bool
	var set *features.Bucket
	record := "part-00001-of-00002.json"
	set, folder := inBucket(t, func(r *http.Request) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/"+record) && gone.CompareAndSwap(true, false) {
			check(t, set.Folder.Delete(t.Context(), record))
		}
	})
	ctx, first := t.Context(), features.Shard{Index: 1, Count: 2}
	send(t, set, 1, 1)
	send(t, set, 2, 1)
	unfinished, err := set.Commit(ctx, 2)
	check(t, unfinished, err)
	old := prepare(t, set, 1, true)
	others := []string{old.Name + "-backup/features.npy", "part-00001-of-00002-0123456789abcdef/features.npy"}
	for _, name := range others {
		check(t, set.Folder.Put(ctx, name, []byte("of others")))
	}
	check(t, set.Folder.Put(ctx, record, []byte("{")))
	unfinished, err = set.Commit(ctx, 2)
	if err != nil || !errors.Is(unfinished, features.ErrDamaged) || !strings.Contains(unfinished.Error(), "run shard 1/2 again") {
		t.Errorf("%v, %v", unfinished, err)
	}
	if part, _, err := set.Prepare(ctx, first, false); part != nil || err != nil {
		t.Errorf("%v, %v", part, err)
	}
	send(t, set, 1, 2)
	send(t, set, 2, 2)
	unfinished, err = set.Commit(ctx, 2)
	check(t, unfinished, err)
	for _, name := range others {
		if _, err := os.Stat(filepath.Join(folder, filepath.FromSlash(name))); err != nil {
			t.Error(err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(folder, "*-of-*-*")); err != nil || len(left) != 2+len(others) {
		t.Errorf("%q, %v", left, err)
	}
	gone.Store(true)
	if _, err := set.Commit(ctx, 2); !errors.Is(err, features.ErrShards) {
		t.Errorf("%v", err)
	}
}

// TestPartMadeAgainInBucket: while a run deletes what its parts replaced, another makes such a
// part again. It stays.
func TestPartMadeAgainInBucket(t *testing.T) {
	var armed atomic.Bool
	var set *features.Bucket
	set, _ = inBucket(t, func(r *http.Request) {
		if r.Method == http.MethodDelete && armed.CompareAndSwap(true, false) {
			send(t, set, 2, 1)
		}
	})
	for version := 1; version <= 2; version++ {
		send(t, set, 1, version)
		send(t, set, 2, version)
		armed.Store(version == 2)
		unfinished, err := set.Commit(t.Context(), 2)
		check(t, unfinished, err)
	}
	if armed.Load() {
		t.Fatal("nothing was deleted")
	}
	prepare(t, set, 2, true)
}

// TestCopyOutlivesTheFirstCallerInBucket: two open a set at once, and the first gives up
// while it is copied. It returns, and the other gets the set; then nothing is left open.
func TestCopyOutlivesTheFirstCallerInBucket(t *testing.T) {
	asked, answer := make(chan struct{}, 9), make(chan struct{})
	var armed atomic.Bool
	set, _ := inBucket(t, func(r *http.Request) {
		if armed.Load() && r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/features.npy") {
			asked <- struct{}{}
			<-answer
		}
	})
	features.SetCopies(features.Copies{Dir: t.TempDir()})
	t.Cleanup(func() { features.SetCopies(features.Copies{}) })
	send(t, set, 1, 1)
	part := prepare(t, set, 1, true)
	armed.Store(true)
	type opened struct {
		*features.Set
		err error
	}
	open := func(ctx context.Context) chan opened {
		done := make(chan opened, 1)
		go func() {
			s, err := features.OpenContext(ctx, set.String()+"/"+part.Name)
			done <- opened{s, err}
		}()
		return done
	}
	ctx, cancel := context.WithCancel(t.Context())
	first := open(ctx)
	<-asked
	second := open(t.Context())
	for features.CopyUsers() < 2 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if got := <-first; !errors.Is(got.err, context.Canceled) {
		t.Errorf("the first gets %v", got.err)
	}
	close(answer)
	got := <-second
	check(t, got.err, got.Verify(t.Context()), got.Close())
	if n := features.CopyUsers(); n != 0 {
		t.Errorf("%d still use copies", n)
	}
}
