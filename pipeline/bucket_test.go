package pipeline_test

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/mlrbfn/mlrbfn/bucket/s3"
	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
	"github.com/mlrbfn/mlrbfn/pipeline"
)

// TestPartsInBucket: no manifest is made of shards of two detectors, or while the verdicts
// of one are not those that were written, and the reason is said. Verdicts that were sent
// again are whole, whatever their ETag. Where a record is damaged its shard is judged again.
func TestPartsInBucket(t *testing.T) {
	folder, address := testenv.Start(t, "s3")
	target, err := url.Parse("http://" + address)
	check(t, err)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // which is signed
	}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); q.Has("list-type") && !strings.HasPrefix(q.Get("prefix"), "v/verdicts-") {
			t.Errorf("it lists %q", q.Get("prefix"))
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	t.Setenv("AWS_ENDPOINT_URL_S3", server.URL)
	bucket.SetLimits(bucket.Limits{})
	ctx := t.Context()
	set, err := pipeline.OpenVerdictBucket(ctx, "s3://data/v")
	check(t, err)
	at, err := bucket.Open(ctx, "s3://data/v")
	check(t, err)
	first, second := features.Shard{Index: 1, Count: 2}, features.Shard{Index: 2, Count: 2}
	send := func(shard features.Shard, judge, path string) {
		t.Helper()
		dir := t.TempDir()
		check(t, set.SendPart(ctx, shard, dir, makePart(t, dir, shard, workOf(judge, "l"), path, pipeline.VerdictOptions{})))
	}
	commit := func(says string) {
		t.Helper()
		unfinished, err := set.Commit(ctx, 2)
		check(t, err)
		if says == "" && unfinished != nil || says != "" && (unfinished == nil || !strings.Contains(unfinished.Error(), says)) {
			t.Errorf("unfinished: %v, want %q", unfinished, says)
		}
	}
	prepare := func(want bool) *pipeline.VerdictRecord {
		t.Helper()
		r, whole, err := set.Prepare(ctx, first, false)
		check(t, err)
		if r == nil || whole != want {
			t.Fatalf("%+v, whole: %v", r, whole)
		}
		return r
	}
	object := "verdicts-00001-of-00002.json"
	put := func(r pipeline.VerdictRecord) {
		t.Helper()
		text, err := json.Marshal(r)
		check(t, err)
		check(t, at.Put(ctx, object, text))
	}
	if r, _, err := set.Prepare(ctx, first, false); r != nil || err != nil {
		t.Errorf("%v, %v", r, err)
	}
	send(first, "j", "a")
	commit("missing are 2/2")
	send(second, "other", "b")
	commit("different detectors")
	send(second, "j", "b")
	commit("")
	r := *prepare(true)
	// Another machine sent the same bytes.
	sent := r
	sent.ETag = "0123"
	put(sent)
	prepare(true)
	commit("")
	check(t, set.Fetch(ctx, &sent, filepath.Join(t.TempDir(), "fetched")))
	// Bytes that are not those that were written.
	whole, _, err := at.Read(ctx, r.File, 1<<10)
	check(t, err)
	put(r)
	for _, text := range []string{"", strings.Replace(string(whole), "cat", "dog", 1)} {
		check(t, at.Put(ctx, r.File, []byte(text)))
		if old := prepare(false); old.Work.Judge != "j" {
			t.Errorf("%+v", old)
		}
		commit("run shard 1/2 again")
		file := filepath.Join(t.TempDir(), "fetched")
		if err := set.Fetch(ctx, &r, file); !errors.Is(err, features.ErrDamaged) {
			t.Errorf("%v", err)
		}
		if _, err := os.Stat(file); err == nil {
			t.Error("what was fetched is damaged, and is there")
		}
	}
	check(t, at.Delete(ctx, r.File))
	if err := set.Fetch(ctx, &r, filepath.Join(t.TempDir(), "fetched")); !errors.Is(err, features.ErrDamaged) {
		t.Errorf("%v", err)
	}
	// A record of another shard does not say what it replaced.
	damaged := r
	damaged.Work.Shard = "2/2"
	put(damaged)
	commit("it is of shard 2/2")
	prepare(false)
	// Nor does one that is no JSON, or has no checksum.
	damaged = r
	damaged.SHA256 = ""
	put(damaged)
	commit("run shard 1/2 again")
	if old := prepare(false); old.Work.Judge != "j" { // which is not replaced by another
		t.Errorf("%+v", old)
	}
	check(t, at.Put(ctx, object, []byte("{")))
	commit("run shard 1/2 again")
	if r, whole, err := set.Prepare(ctx, first, false); r != nil || whole || err != nil {
		t.Errorf("%+v, whole: %v, %v", r, whole, err)
	}
	send(first, "j", "c")
	commit("")
	files, err := filepath.Glob(filepath.Join(folder, "v", "verdicts*"))
	check(t, err)
	names := map[string]bool{"verdicts.json": true}
	for _, i := range []int{1, 2} {
		r, err := set.Look(ctx, features.Shard{Index: i, Count: 2})
		check(t, err)
		names[r.File] = true
		names[[]string{object, "verdicts-00002-of-00002.json"}[i-1]] = true
	}
	for i := range files {
		files[i] = filepath.Base(files[i])
	}
	if want := slices.Sorted(maps.Keys(names)); !slices.Equal(slices.Sorted(slices.Values(files)), want) {
		t.Errorf("there is %q, want %q", files, want)
	}
	check(t, at.Put(ctx, "parts.json", []byte("{}")))
	if _, _, err := set.Prepare(ctx, first, false); err == nil || !strings.Contains(err.Error(), "feature set") {
		t.Errorf("%v", err)
	}
}
