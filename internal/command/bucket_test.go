//go:build unix

package command

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mlrbfn/mlrbfn/features"
	"github.com/mlrbfn/mlrbfn/internal/bucket"
	"github.com/mlrbfn/mlrbfn/internal/testenv"
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

// tarOf writes the files below a folder into a tar, in the order of their names.
func tarOf(t *testing.T, file, dir string) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close(), os.WriteFile(file, b.Bytes(), 0o666)); err != nil {
		t.Fatal(err)
	}
}

// filesIn returns the files in a folder and those below it, by their names.
func filesIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		files[strings.TrimPrefix(path, dir)] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestPartsInBucket writes a set of parts into an object store whose connections break, by
// processes that are killed at random moments. At every moment there is a whole set or
// none. In the end the parts have the bytes of those on the disk, and commands that read
// the set find in it what they find on the disk. When images are added, the old set is
// there until the new one is whole.
func TestPartsInBucket(t *testing.T) {
	folder, address := testenv.Start(t, "s3")
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
		cmd := process(t, append([]string{"extract", "--model", "pixels", "--size", "16", "--images", images, "--out", out, "--parts", "--shard", fmt.Sprintf("%d/%d", shard, shards), "--quiet"}, more...)...)
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
		if s.N != want.N || !slices.Equal(s.Features(), want.Features()) {
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
			if !maps.Equal(filesIn(t, found[0]), filesIn(t, features.PartDir(local, shard))) {
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
					wait := time.Duration(chance.IntN(400)) * time.Millisecond
					go func() {
						select {
						case <-time.After(wait):
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
	// A run that was killed says how far it had come. Its first state is sent when work
	// begins, unless its connection breaks.
	state := filepath.Join(folder, "a/set", "part-00002-of-00003.progress")
	for tries := 0; ; tries++ {
		finished, err := filepath.Glob(filepath.Join(folder, "a/set", "part-00002-*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range finished { // the run before was too fast
			if err := os.RemoveAll(name); err != nil {
				t.Fatal(err)
			}
		}
		cmd := run(set, 2, "--cache", cache)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			if _, err := os.Stat(state); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if _, err := os.Stat(state); err == nil {
			break
		}
		if tries == 50 {
			t.Fatal("no run says how far it has come")
		}
	}
	show := process(t, "show", set)
	show.Env = append(show.Env, "AWS_ENDPOINT_URL_S3="+server.URL)
	if text, _ := finish(t, show, 0); !strings.Contains(text, "0 of 3 shards finished") || !strings.Contains(text, "2/3    running") && !strings.Contains(text, "2/3    being sent") {
		t.Error(text)
	}
	all(4, false)
	here("at first")
	if left, err := filepath.Glob(filepath.Join(folder, "a/set", "*.progress")); err != nil || len(left) > 0 {
		t.Errorf("there is still %q, %v", left, err)
	}

	before := filesIn(t, filepath.Join(folder, "a"))
	all(0, true)
	if !maps.Equal(filesIn(t, filepath.Join(folder, "a")), before) {
		t.Error("a finished set was written again")
	}
	add(60, 75)
	onDisk()
	all(4, true)
	here("with more images")
	if killed == 0 {
		t.Error("no process was killed")
	}

	// What a command makes of the set here and there.
	both := func(args ...string) (there, here string) {
		t.Helper()
		var outs [2]string
		for i, at := range []string{set, local} {
			some := slices.Clone(args)
			for j := range some {
				some[j] = strings.NewReplacer("FEATURES", at, "OUT", filepath.Join(dir, fmt.Sprint("out", i))).Replace(some[j])
			}
			cmd := process(t, some...)
			cmd.Env = append(cmd.Env, "AWS_ENDPOINT_URL_S3="+server.URL)
			outs[i], _ = finish(t, cmd, 0)
		}
		return outs[0], outs[1]
	}
	if a, b := both("show", "--json", "FEATURES"); lines(t, a)[0]["done"] != lines(t, b)[0]["done"] || lines(t, a)[0]["finished"] != 3. {
		t.Errorf("show: %s, %s", a, b)
	}
	both("merge", "--out", "OUT", "FEATURES")
	sameSet(t, filepath.Join(dir, "out0"), filepath.Join(dir, "out1"))
	both("inspect", "--features", "FEATURES", "--no-images", "--quiet", "--out", "OUT-inspection")
	sameSet(t, filepath.Join(dir, "out0-inspection", "issues.csv"), filepath.Join(dir, "out1-inspection", "issues.csv"))
	both("train", "--features", "FEATURES", "--no-assess", "--epochs", "2", "--quiet", "--out", "OUT.safetensors")
	judge := func(detector string) string {
		text, _ := call(t, 0, "detect", "--detector", filepath.Join(dir, detector), "--format", "jsonl", "--quiet", images)
		return text
	}
	if judge("out0.safetensors") != judge("out1.safetensors") {
		t.Error("detectors that were trained on the set in the bucket and on the disk judge differently")
	}
	// Detect reads tars and Parquet files from there as it reads images on the disk.
	detect := func(want int, more ...string) (stdout, stderr string) {
		t.Helper()
		cmd := process(t, append([]string{"detect", "--detector", filepath.Join(dir, "out1.safetensors")}, more...)...)
		cmd.Env = append(cmd.Env, "AWS_ENDPOINT_URL_S3="+server.URL)
		return finish(t, cmd, want)
	}
	tarOf(t, filepath.Join(folder, "x.tar"), images)
	near, _ := detect(0, "--json", "--quiet", images)
	there, _ := detect(0, "--json", "--quiet", "s3://data/x.tar")
	if got := strings.ReplaceAll(there, "s3://data/x.tar#", images+"/"); got != near {
		t.Errorf("verdicts of a tar in the bucket are not those of the disk:\n%.300s\n%.300s", got, near)
	}
	detect(0, "--quiet", "--report", filepath.Join(dir, "r.html"), "--features", set, "s3://data/x.tar")
	if _, stderr := detect(1, "--move-ood", filepath.Join(dir, "moved"), "s3://data/x.tar"); !strings.Contains(stderr, "--move-ood: images in tars, tables and buckets stay where they are") {
		t.Error(stderr)
	}
	detect(2, "--labels", "s3://data/x.tar")
	detect(2, "--out", "https://host/verdicts", images)
	call(t, 2, "merge", "--out", "s3://data/merged", set)
	call(t, 2, "train", "--features", set, "--out", "s3://data/d.safetensors")

	// An object of several parts, on the same bad way.
	t.Setenv("AWS_ENDPOINT_URL_S3", server.URL)
	bucket.SetLimits(bucket.Limits{Pause: 5 * time.Millisecond})
	defer bucket.SetLimits(bucket.Limits{})
	at, err := bucket.Open(t.Context(), "s3://data/large")
	if err != nil {
		t.Fatal(err)
	}
	large := bytes.Repeat([]byte("0123456789abcdef"), 36<<20/16)
	for i := range 4 {
		err := at.Create(t.Context(), fmt.Sprint(i), func(w io.Writer) error {
			_, err := w.Write(large)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(folder, "large", fmt.Sprint(i))); err != nil || !bytes.Equal(got, large) {
			t.Errorf("object %d: %d bytes, %v", i, len(got), err)
		}
	}
	if _, err := os.Stat("s3:"); err == nil {
		t.Error("there is a folder that is called s3:")
	}
}

// TestVerdictsInBucket writes verdicts into an object store whose connections break, by
// processes that are killed. In the end they are those of the disk, with a manifest that
// adds them up. A tar that was missing is judged alone when it is there, and finished
// verdicts stay where they are while the store does not answer.
func TestVerdictsInBucket(t *testing.T) {
	w := newWorld(t)
	folder, address := testenv.Start(t, "s3")
	target, err := url.Parse("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // which is signed
	}}
	bad := &flaky{chance: rand.New(rand.NewPCG(9, 10)), next: proxy}
	var mu sync.Mutex
	var down, read string // what a path has for which the store does not answer; what was read
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		refuse := down != "" && strings.Contains(r.URL.Path, down)
		if r.Method == http.MethodGet {
			read += r.URL.Path + "\n"
		}
		mu.Unlock()
		switch {
		case refuse:
			http.Error(w, "no", http.StatusForbidden)
		case r.Method == http.MethodGet:
			proxy.ServeHTTP(w, r)
		default:
			bad.ServeHTTP(w, r)
		}
	}))
	defer server.Close()
	dir := t.TempDir()
	for i := range 4 {
		tarOfPictures(t, filepath.Join(folder, fmt.Sprintf("%d.tar", i)), 5*i, 5)
	}
	const shards = 2
	tars, out, local := "s3://data/{0..4}.tar", "s3://data/v", filepath.Join(dir, "local")
	cache := filepath.Join(dir, "cache")
	command := func(out string, shard int) *exec.Cmd {
		cmd := process(t, "detect", "--detector", w.detector, "--out", out, "--shard", fmt.Sprintf("%d/%d", shard, shards), "--cache", cache, "--quiet", tars)
		cmd.Env = append(cmd.Env, "AWS_ENDPOINT_URL_S3="+server.URL)
		return cmd
	}
	chance := rand.New(rand.NewPCG(11, 12))
	all := func(kills int) {
		t.Helper()
		for shard := 1; shard <= shards; shard++ {
			finish(t, command(local, shard), 3)
			for range kills {
				cmd := command(out, shard)
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Duration(100+chance.IntN(900)) * time.Millisecond)
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
			finish(t, command(out, shard), 3)
		}
		files := filesIn(t, filepath.Join(folder, "v"))
		if len(files) != 2*shards+1 {
			t.Errorf("there is %q", slices.Sorted(maps.Keys(files)))
		}
		for shard := 1; shard <= shards; shard++ {
			want := filesIn(t, local)[fmt.Sprintf("/part-%05d-of-%05d.jsonl", shard, shards)]
			for name, got := range files {
				if strings.HasPrefix(name, fmt.Sprintf("/verdicts-%05d-of-%05d-", shard, shards)) && (got != want || want == "") {
					t.Errorf("%s has\n%s\nwant\n%s", name, got, want)
				}
			}
		}
		show := process(t, "show", "--json", out)
		show.Env = append(show.Env, "AWS_ENDPOINT_URL_S3="+server.URL)
		there, _ := finish(t, show, 0)
		here, _ := call(t, 0, "show", "--json", local)
		if a, b := lines(t, there)[0]["summary"], lines(t, here)[0]["summary"]; fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("show: %v, want %v", a, b)
		}
		if m, b := lines(t, strings.ReplaceAll(files["/verdicts.json"], "\n", ""))[0], lines(t, here)[0]["summary"].(map[string]any); m["images"] != b["images"] || m["failed"] != b["failed"] {
			t.Errorf("the manifest is %v", m)
		}
	}
	reads := func(do func()) string {
		mu.Lock()
		read = ""
		mu.Unlock()
		do()
		mu.Lock()
		defer mu.Unlock()
		return read
	}
	all(3) // without 4.tar
	tarOfPictures(t, filepath.Join(folder, "4.tar"), 20, 5)
	if got := reads(func() { finish(t, command(out, 1), 3) }); strings.Count(got, "/0.tar") > 1 || !strings.Contains(got, "/4.tar") {
		t.Errorf("to judge 4.tar it read %s", got)
	}
	all(0)
	before := filesIn(t, filepath.Join(folder, "v"))
	if got := reads(func() { finish(t, command(out, 1), 3) }); strings.Contains(got, "jsonl") {
		t.Errorf("finished verdicts were read: %s", got)
	}
	mu.Lock()
	down = "/2.tar"
	mu.Unlock()
	for _, at := range []string{out, local} {
		_, stderr := finish(t, command(at, 1), 1)
		if !strings.Contains(stderr, "--force") || !strings.Contains(stderr, "2.tar") {
			t.Errorf("%s: %s", at, stderr)
		}
	}
	if !maps.Equal(filesIn(t, filepath.Join(folder, "v")), before) {
		t.Error("finished verdicts are others after the store did not answer")
	}
	if left, err := filepath.Glob(filepath.Join(cache, "*-of-2")); err != nil || len(left) > 0 {
		t.Errorf("the cache still has %q, %v", left, err)
	}
}
