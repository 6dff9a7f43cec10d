//go:build unix

package command

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
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

// TestSetInBucket reads a set of parts from an object store whose connections break:
// commands find in it what they find on the disk. Nothing is written there.
func TestSetInBucket(t *testing.T) {
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
	for i := range 60 {
		picture(t, filepath.Join(images, []string{"disc", "square", "ramp"}[i%3], fmt.Sprintf("%03d.png", i)), i%3, uint64(i))
	}
	local, set := filepath.Join(dir, "local"), "s3://data/a/set"
	for shard := 1; shard <= 3; shard++ {
		call(t, 0, "extract", "--model", "pixels", "--size", "16", "--images", images, "--out", local, "--parts", "--shard", fmt.Sprintf("%d/3", shard), "--quiet")
	}
	if err := os.CopyFS(filepath.Join(folder, "a", "set"), os.DirFS(local)); err != nil {
		t.Fatal(err)
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
	detect(2, "--out", "s3://data/verdicts", images)
	call(t, 2, "extract", "--model", "pixels", "--images", images, "--out", "s3://data/new", "--parts", "--shard", "1/1")
	call(t, 2, "show", set)
	call(t, 2, "merge", "--out", "s3://data/merged", set)
	call(t, 2, "train", "--features", set, "--out", "s3://data/d.safetensors")

	if _, err := os.Stat("s3:"); err == nil {
		t.Error("there is a folder that is called s3:")
	}
}

// TestVerdictsOfTarsInBucket judges tars of an object store whose connections break, by
// processes that are killed. In the end the verdicts are those of runs that nothing
// happened to. A tar that was missing is judged alone when it is there, and finished verdicts
// stay where they are while the store does not answer.
func TestVerdictsOfTarsInBucket(t *testing.T) {
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
	var good bool
	var down, read string // what a path has for which the store does not answer; what was read
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		good, refuse := good, down != "" && strings.Contains(r.URL.Path, down)
		if r.Method == http.MethodGet {
			read += r.URL.Path + "\n"
		}
		mu.Unlock()
		switch {
		case refuse:
			http.Error(w, "no", http.StatusForbidden)
		case good:
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
	tars, out, plain := "s3://data/{0..4}.tar", filepath.Join(dir, "v"), filepath.Join(dir, "plain")
	command := func(out string, shard int) *exec.Cmd {
		cmd := process(t, "detect", "--detector", w.detector, "--out", out, "--shard", fmt.Sprintf("%d/%d", shard, shards), "--quiet", tars)
		cmd.Env = append(cmd.Env, "AWS_ENDPOINT_URL_S3="+server.URL)
		return cmd
	}
	chance := rand.New(rand.NewPCG(11, 12))
	all := func(kills int) {
		t.Helper()
		for shard := 1; shard <= shards; shard++ {
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
			mu.Lock()
			good = true
			mu.Unlock()
			finish(t, command(plain, shard), 3)
			mu.Lock()
			good = false
			mu.Unlock()
			name := fmt.Sprintf("/part-%05d-of-%05d.jsonl", shard, shards)
			if got, want := filesIn(t, out)[name], filesIn(t, plain)[name]; got != want || want == "" {
				t.Errorf("%s has\n%s\nwant\n%s", name, got, want)
			}
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
	before := filesIn(t, out)
	mu.Lock()
	down = "/2.tar"
	mu.Unlock()
	if _, stderr := finish(t, command(out, 1), 1); !strings.Contains(stderr, "--force") || !strings.Contains(stderr, "2.tar") {
		t.Error(stderr)
	}
	if !maps.Equal(filesIn(t, out), before) {
		t.Error("finished verdicts are others after the store did not answer")
	}
}
