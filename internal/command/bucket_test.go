//go:build unix

package command

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/teststore"
)

// flaky is a server before another that refuses some requests, and breaks the connection
// of others, before or after they were carried out.
type flaky struct {
	next http.Handler

	mu     sync.Mutex
	chance *rand.Rand
}

func (f *flaky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	c := f.chance.Float64()
	f.mu.Unlock()
	switch {
	case c < 0.06:
		http.Error(w, "busy", http.StatusServiceUnavailable)
	case c < 0.12: // the answer is lost
		f.next.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	case c < 0.15: // the request is
		panic(http.ErrAbortHandler)
	default:
		f.next.ServeHTTP(w, r)
	}
}

// partFiles returns the files of a part, by their names.
func partFiles(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(data)
	}
	return files
}

// TestPartsInBucket writes a set of parts into an object store whose connections break, by
// processes that are killed at random moments. At every moment there is a whole set or
// none. In the end the parts have the bytes of those on the disk, and commands that read
// the set find in it what they find on the disk. When images are added, the old set is
// there until the new one is whole.
func TestPartsInBucket(t *testing.T) {
	folder, address := teststore.Start(t)
	target, err := url.Parse("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(&flaky{chance: rand.New(rand.NewPCG(5, 6)), next: &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // which is signed
	}}})
	defer server.Close()
	dir := t.TempDir()
	images := filepath.Join(dir, "images")
	add := func(from, to int) {
		for i := from; i < to; i++ {
			picture(t, filepath.Join(images, []string{"disc", "square", "ramp"}[i%3], fmt.Sprintf("%03d.png", i)), i%3, uint64(i))
		}
	}
	add(0, 60)
	const shards = 3
	set := "s3://data/a/set"
	run := func(out string, shard int, more ...string) *exec.Cmd {
		cmd := process(t, append([]string{"extract", "--model", "pixels", "--size", "64", "--images", images, "--out", out, "--parts", "--shard", fmt.Sprintf("%d/%d", shard, shards), "--quiet"}, more...)...)
		cmd.Env = append(cmd.Env, "AWS_ENDPOINT_URL_S3="+server.URL)
		return cmd
	}
	local, cache := filepath.Join(dir, "local"), filepath.Join(dir, "cache")
	// here compares what is in the bucket with what is on the disk.
	here := func(when string) {
		t.Helper()
		s, err := features.OpenContext(t.Context(), set)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		defer s.Close()
		want, err := features.Open(local)
		if err != nil {
			t.Fatal(err)
		}
		defer want.Close()
		if err := s.Verify(t.Context()); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		if s.N != want.N || !bytes.Equal(asBytes(s.Features()), asBytes(want.Features())) {
			t.Errorf("%s: %d rows, want %d, or other features", when, s.N, want.N)
		}
		a, errA := s.Content(t.Context())
		b, errB := want.Content(t.Context())
		if a != b || errA != nil || errB != nil {
			t.Errorf("%s: content %s %v, want %s %v", when, a, errA, b, errB)
		}
		for i := range shards {
			shard := features.Shard{Index: i + 1, Count: shards}
			found, err := filepath.Glob(filepath.Join(folder, "a/set", filepath.Base(features.PartDir("", shard))+"-*"))
			if err != nil || len(found) != 1 {
				t.Fatalf("%s: part %s is in %q, %v", when, shard, found, err)
			}
			if !maps.Equal(partFiles(t, found[0]), partFiles(t, features.PartDir(local, shard))) {
				t.Errorf("%s: part %s has other bytes than on the disk", when, shard)
			}
		}
		if left, err := filepath.Glob(filepath.Join(cache, "*-of-3")); err != nil || len(left) > 0 {
			t.Errorf("%s: the cache still has %q, %v", when, left, err)
		}
	}
	chance := rand.New(rand.NewPCG(7, 8))
	killed := 0
	// all runs all shards, each until it ends, and kills some before.
	all := func(kills int, whole bool) {
		t.Helper()
		for shard := 1; shard <= shards; shard++ {
			for tries := 0; ; tries++ {
				ctx, cancel := context.WithCancel(t.Context())
				cmd := run(set, shard, "--cache", cache)
				var stderr strings.Builder
				cmd.Stderr = &stderr
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				if tries < kills {
					go func() {
						select {
						case <-time.After(time.Duration(chance.IntN(400)) * time.Millisecond):
							_ = cmd.Process.Kill()
						case <-ctx.Done():
						}
					}()
				}
				_ = cmd.Wait()
				cancel()
				s, err := features.OpenContext(t.Context(), set)
				switch {
				case err == nil:
					if err := s.Verify(t.Context()); err != nil {
						t.Errorf("a set that is not whole: %v", err)
					}
					s.Close()
				case whole:
					t.Fatalf("the set before is gone: %v", err)
				}
				if code := cmd.ProcessState.ExitCode(); code == 0 {
					break
				} else if code > 0 {
					t.Fatalf("exit code %d: %s", code, &stderr)
				}
				killed++
			}
		}
	}
	onDisk := func() {
		for shard := 1; shard <= shards; shard++ {
			finish(t, run(local, shard), 0)
		}
	}
	onDisk()
	all(4, false)
	here("at first")

	before := partFiles(t, filepath.Join(folder, "a"))
	all(0, true)
	if !maps.Equal(partFiles(t, filepath.Join(folder, "a")), before) {
		t.Error("a finished set was written again")
	}
	add(60, 75)
	onDisk()
	all(4, true)
	here("with more images")
	if killed < 8 {
		t.Errorf("only %d processes were killed", killed)
	}

	for _, args := range [][]string{
		{"train", "--features", "FEATURES", "--no-assess", "--epochs", "2", "--quiet", "--json", "--force", "--out", filepath.Join(dir, "d.safetensors")},
		{"merge", "--out", filepath.Join(dir, "merged"), "FEATURES"},
		{"show", "--json", "FEATURES"},
		{"inspect", "--features", "FEATURES", "--no-images", "--json", "--quiet", "--out", filepath.Join(dir, "inspection")},
	} {
		for _, at := range []string{set, local} {
			for i := range args {
				args[i] = strings.Replace(args[i], "FEATURES", at, 1)
			}
			cmd := process(t, args...)
			cmd.Env = append(cmd.Env, "AWS_ENDPOINT_URL_S3="+server.URL)
			finish(t, cmd, 0)
			for i := range args {
				args[i] = strings.Replace(args[i], at, "FEATURES", 1)
			}
		}
	}
	sameSet(t, filepath.Join(dir, "merged"), filepath.Join(dir, "merged"))
	call(t, 2, "merge", "--out", "s3://data/merged", set)
	call(t, 2, "train", "--features", set, "--out", "s3://data/d.safetensors")
	if _, err := os.Stat("s3:"); err == nil {
		t.Error("there is a folder that is called s3:")
	}
}
